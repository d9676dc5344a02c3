"""A digest of the data that an audit is about, to tell whether two machines have the same."""

from __future__ import annotations

import hashlib

from fedspill.audit.target import Target
from fedspill.deployment.deployment import Deployment


def data_digest(target: Target) -> str:
    """Over every sample; empty for a recording whose data nobody says."""
    if target.trace is not None and not target.explicit_plan:
        return ""
    dataset = Deployment.of(target.plan, target.data_dir).dataset
    digest = hashlib.sha256(repr([dataset.name, dataset.classes, dataset.columns]).encode())
    for part in (dataset.train, dataset.test):
        for tensor in (part.x, part.y, part.users):
            digest.update(b"none" if tensor is None else tensor.reshape(-1).numpy().data)
    return digest.hexdigest()
