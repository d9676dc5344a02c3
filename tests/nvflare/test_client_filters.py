"""The guard and the defenses of an NVFlare client: what reaches training, and what leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare.apis.filter", reason="needs NVFlare: pip install 'fedspill[nvflare]'")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import ContentBlockedException
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from site_kit import Sites, context, model_sent, small_change, update_sent

from fedspill.errors import FedspillError
from fedspill.nvflare import CompareModels, DefendUpdate, GuardModel

CLIP = [{"name": "clip-noise", "clip": 0.001, "per": "update", "sigma": 0.0}]


def ctx(data: Any = None) -> Any:
    return context("site-1", "server", "t", "train", data=data)


def told(defend: DefendUpdate, sent: Shareable, start: Shareable | None = None) -> None:
    """The events of NVFlare's client before it trains."""
    defend.handle_event(EventType.BEFORE_TASK_DATA_FILTER, ctx(sent))
    defend.handle_event(EventType.BEFORE_TASK_EXECUTION, ctx(start or sent))


def norm(change: dict[str, Any]) -> float:
    return float(torch.stack([torch.as_tensor(value).square().sum() for value in change.values()]).sum().sqrt())


def test_a_difference_leaves_defended(sites: Sites) -> None:
    defend = DefendUpdate(CLIP)
    told(defend, model_sent(sites.state, 0))
    left = from_shareable(defend.process(update_sent(small_change(sites.state, 0)), ctx()))
    assert left.data_kind == DataKind.WEIGHT_DIFF
    assert norm(left.data) == pytest.approx(0.001, rel=1e-3)
    assert left.meta["examples"] == 20


def test_a_whole_model_leaves_as_what_was_sent_plus_the_defended_update(sites: Sites) -> None:
    defend = DefendUpdate(CLIP)
    told(defend, model_sent(sites.state, 0))
    trained = {name: tensor.numpy() + small_change(sites.state, 0)[name] for name, tensor in sites.state.items()}
    left = from_shareable(defend.process(DXO(DataKind.WEIGHTS, trained).to_shareable(), ctx()))
    moved = {name: left.data[name] - tensor.numpy() for name, tensor in sites.state.items()}
    assert norm(moved) == pytest.approx(0.001, rel=1e-2)


def test_behind_a_repaired_model_the_update_is_that_of_training(sites: Sites) -> None:
    defend = DefendUpdate([{"name": "clip-noise", "clip": 1000.0, "per": "update", "sigma": 0.0}])
    repaired = {name: torch.zeros_like(tensor) for name, tensor in sites.state.items()}
    told(defend, model_sent(sites.state, 0), model_sent(repaired, 0))
    change = small_change(sites.state, 0)
    left = from_shareable(defend.process(DXO(DataKind.WEIGHTS, dict(change)).to_shareable(), ctx()))
    assert np.allclose(left.data["2.bias"], sites.state["2.bias"].numpy() + change["2.bias"], atol=1e-6)


def test_counters_leave_as_they_are(sites: Sites) -> None:
    state = {**sites.state, "count": torch.tensor(7)}
    defend = DefendUpdate(CLIP)
    told(defend, model_sent(state, 0))
    left = from_shareable(defend.process(update_sent({**small_change(sites.state, 0), "count": np.array(3)}), ctx()))
    assert left.data["count"] == 3


def test_the_same_seed_gives_the_same_noise_and_another_site_another(sites: Sites) -> None:
    def sent_by(site: str, seed: int | None) -> Any:
        defend = DefendUpdate([{"name": "clip-noise", "clip": 1.0, "per": "update", "sigma": 0.1}], seed=seed)
        told(defend, model_sent(sites.state, 0))
        result = update_sent(small_change(sites.state, 0))
        return from_shareable(defend.process(result, context(site, "server", "t", "train"))).data["2.bias"]

    assert np.array_equal(sent_by("site-1", 7), sent_by("site-1", 7))
    assert not np.array_equal(sent_by("site-1", 7), sent_by("site-2", 7))
    assert not np.array_equal(sent_by("site-1", None), sent_by("site-1", None))


@pytest.mark.parametrize(
    "bad", [{"2.bias": np.zeros((1, 3), np.float32)}, {"new": np.zeros(2, np.float32)}, {"2.bias": "text"}]
)
def test_what_does_not_fit_the_model_does_not_leave(bad: dict[str, Any], sites: Sites) -> None:
    defend = DefendUpdate(CLIP)
    told(defend, model_sent(sites.state, 0))
    with pytest.raises(ContentBlockedException, match="not sent"):
        defend.process(update_sent({**small_change(sites.state, 0), **bad}), ctx())


def test_without_a_model_nothing_leaves(sites: Sites) -> None:
    with pytest.raises(ContentBlockedException, match="does not fit"):
        DefendUpdate(CLIP).process(update_sent(small_change(sites.state, 0)), ctx())


def test_errors_of_training_pass() -> None:
    failed = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    assert DefendUpdate(CLIP).process(failed, ctx()) is failed


@pytest.mark.parametrize("name", ["label-smoothing", "secure-aggregation"])
def test_defenses_that_no_filter_can_be_are_refused(name: str) -> None:
    with pytest.raises(FedspillError, match="filter"):
        DefendUpdate([{"name": name}])
    with pytest.raises(FedspillError, match="at least one"):
        GuardModel([])


def test_a_sound_model_passes_the_guard_and_a_planted_one_does_not(sites: Sites, tmp_path: Path) -> None:
    def arrived(guard: GuardModel, state: dict[str, torch.Tensor], number: int) -> Shareable:
        sent = model_sent(state, number)
        assert guard.process(sent, ctx(sent)) is sent
        return sent

    strict = [{"name": "guard", "on_alarm": "refuse"}]
    guard = GuardModel(strict, memory=str(tmp_path / "memory"))
    arrived(guard, sites.state, 0)
    moved = {name: tensor + 0.001 for name, tensor in sites.state.items()}
    arrived(guard, moved, 1)
    planted = {**moved, "0.weight": moved["0.weight"][:1].repeat(8, 1) * 100}
    for now in (guard, GuardModel(strict, memory=str(tmp_path / "memory"))):  # and after a restart
        with pytest.raises(ContentBlockedException, match="refused the model"):
            now.process(model_sent(planted, 2), ctx())


def test_a_planted_model_is_repaired_with_the_last_one_that_was_accepted(sites: Sites) -> None:
    guard = GuardModel([{"name": "guard"}])
    guard.process(model_sent(sites.state, 0), ctx())
    planted = {**sites.state, "0.weight": sites.state["0.weight"][:1].repeat(8, 1) * 100}
    trained_on = from_shareable(guard.process(model_sent(planted, 1), ctx())).data
    assert all(np.array_equal(trained_on[name], tensor.numpy()) for name, tensor in sites.state.items())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ContentBlockedException, match="cannot be read"):
        GuardModel([{"name": "guard"}]).process(Shareable(), ctx())


def test_clients_that_were_handed_different_models_find_out(sites: Sites, tmp_path: Path) -> None:
    filters = {site: CompareModels(str(tmp_path / "digests")) for site in sites.names}

    def arrives(site: str, number: int, shift: float = 0.0) -> None:
        sent = model_sent({name: tensor + shift for name, tensor in sites.state.items()}, number)
        assert filters[site].process(sent, context(site, "server", "t", "train")) is sent

    for site in sites.names:
        arrives(site, 0)
    arrives("site-1", 1, shift=0.5)  # the first to ask has nobody to compare with yet
    with pytest.raises(ContentBlockedException, match="1 of 1 other clients were handed another model"):
        arrives("site-2", 1)
    with pytest.raises(ContentBlockedException, match="of round 1"):  # and finds out when it is asked again
        arrives("site-1", 2)
