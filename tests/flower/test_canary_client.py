"""A canary client in a Flower federation: Flower's own noise is measured and not accused, missing noise is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from inprocess import FIRST_NODE
from little import Little, all_nodes, same
from torch import nn

from fedspill.dp_audit import Claim, DpResult, audit_canary_clients
from fedspill.errors import InputRefused, UsageError
from fedspill.flower import canary_client

CLIP, ROUNDS, CLIENTS = 0.5, 12, 5


@dataclass
class Wider(Little):
    """A model with enough numbers for canaries to point away from everything else."""

    def model(self) -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 3))


def first(context: Context) -> bool:
    return context.node_config["partition-id"] == 0


def private(multiplier: float, clip: float = CLIP) -> DifferentialPrivacyServerSideFixedClipping:
    return DifferentialPrivacyServerSideFixedClipping(all_nodes(), multiplier, clip, CLIENTS)


def audited(folder: Path, strategy: Any, multiplier: float, *, scale: float = 1.0, rounds: int = ROUNDS) -> DpResult:
    np.random.seed(7)  # noqa: NPY002, Flower draws from this generator
    mod = canary_client(CLIP, folder, scale=scale, where=first, seed=3)
    Wider(clients=CLIENTS, rounds=rounds, mods=[mod]).run(strategy)
    return audit_canary_clients(folder, Claim(multiplier * CLIP, CLIP, rounds))


def test_the_noise_of_flowers_own_server_is_measured_and_not_accused(tmp_path: Path) -> None:
    result = audited(tmp_path, private(0.5), 0.5)
    (test,) = result.tests
    assert test.name == f"canary clients at 1 x the clip, {ROUNDS - 1} rounds", "the last model is sent to nobody"
    assert not result.violated
    assert test.estimate == pytest.approx(result.claimed, rel=0.35)
    assert test.lower > 0.3 * result.claimed


def test_a_server_with_less_noise_than_it_claims_is_caught(tmp_path: Path) -> None:
    result = audited(tmp_path, private(0.1), 0.5)
    assert result.violated
    assert result.verdict.startswith("violated")


def test_a_server_that_clips_to_another_norm_is_caught_by_long_canaries(tmp_path: Path) -> None:
    """Its noise fits the clip that it says, so canaries of that length show nothing."""
    loose = private(0.5 * CLIP / 50, clip=50.0)
    assert not audited(tmp_path / "short", loose, 0.5, rounds=6).violated
    assert audited(tmp_path / "long", loose, 0.5, scale=30.0, rounds=6).violated


def test_only_the_chosen_client_is_a_canary_and_a_single_round_shows_nothing(tmp_path: Path) -> None:
    result = audited(tmp_path, private(0.5), 0.5, rounds=1)
    assert [path.name for path in tmp_path.iterdir()] == [f"1-{FIRST_NODE}.json"]
    assert result.verdict.startswith("not tested")
    assert not result.violated
    nobody = canary_client(CLIP, tmp_path / "nobody", where=lambda context: False)
    plain = Wider(clients=2, rounds=2).run(FedAvg(fraction_evaluate=0.0))
    assert same(plain, Wider(clients=2, rounds=2, mods=[nobody]).run(FedAvg(fraction_evaluate=0.0)))


def test_files_and_claims_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    claim = Claim(1.0, 1.0, 4)
    with pytest.raises(UsageError, match="no file"):
        audit_canary_clients(tmp_path, claim)
    audited(tmp_path, all_nodes(), 0.5, rounds=2)
    with pytest.raises(UsageError, match="clip"):
        audit_canary_clients(tmp_path, claim)
    (tmp_path / "other.json").write_text('{"scores": [{"round": 1, "value": "x", "numbers": 9}]}')
    with pytest.raises(InputRefused, match="canary"):
        audit_canary_clients(tmp_path, claim)
    with pytest.raises(UsageError, match="scale"):
        canary_client(1.0, tmp_path, scale=0)
