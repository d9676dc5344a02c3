"""An NVFlare server and its sites as far as filters see them: contexts, tasks and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("nvflare", reason="needs NVFlare: pip install 'fedspill[nvflare]'")

from site_kit import Sites


@pytest.fixture
def sites(tmp_path: Path) -> Any:
    torch.manual_seed(0)
    return Sites(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).state_dict(), tmp_path)
