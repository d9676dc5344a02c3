"""Where a machine keeps what it records for an audit whose folder it does not see."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def private_folder() -> Path:
    """Of this user, for all such audits."""
    return Path(tempfile.gettempdir()) / f"fedspill-{os.getuid()}"


def elsewhere(folder: Path) -> Path:
    """In the place of an audit's folder; removed when the audit is done."""
    return private_folder() / hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
