"""Sites with a small classifier. Each test module skips by itself where NVFlare is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def sites(tmp_path: Path) -> Any:
    from site_kit import Sites

    torch.manual_seed(0)
    return Sites(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).state_dict(), tmp_path)
