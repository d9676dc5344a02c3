"""What the recorder writes of rounds, of replies that are unsound, and that nothing it does reaches training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare.apis.filter", reason="needs NVFlare: pip install 'fedspill[nvflare]'")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from site_kit import Sites, context, model_sent, small_change, update_sent

from fedspill.errors import FedspillError
from fedspill.nvflare import RecordRounds
from fedspill.trace_folder import FolderTrace


def senders(trace: FolderTrace, number: int) -> list[str]:
    return [message.sender for message in trace.messages("update") if message.round == number]


def test_a_round_is_a_model_its_updates_and_their_mean(sites: Sites) -> None:
    trace = sites.recorded()
    assert [senders(trace, number) for number in range(2)] == 2 * [["client:site-1", "client:site-2", "client:site-3"]]
    model = next(iter(trace.messages("model")))
    assert all(torch.equal(model.tensors[name], tensor) for name, tensor in sites.state.items())
    update = next(iter(trace.messages("update")))
    assert np.array_equal(update.tensors["0.weight"].numpy(), small_change(sites.state, 0)["0.weight"])
    assert update.info["examples"] == 20
    mean = next(iter(trace.messages("aggregate"))).tensors["2.bias"]
    each = [torch.from_numpy(small_change(sites.state, place)["2.bias"]) for place in range(3)]
    assert torch.allclose(mean, torch.stack(each).mean(0))
    assert (trace.protocol["head_weight"], trace.protocol["classes"]) == ("2.weight", 3)
    assert trace.protocol["local_lr"] == 0.1


def test_whole_models_become_updates(sites: Sites) -> None:
    def whole(number: int, site: str, honest: Shareable) -> list[Shareable]:
        return [DXO(DataKind.WEIGHTS, {name: (t + 1).numpy() for name, t in sites.state.items()}).to_shareable()]

    sites.answer = whole
    update = next(iter(sites.recorded().messages("update")))
    assert torch.allclose(update.tensors["0.weight"], torch.ones(8, 6), atol=1e-6)


def test_tensors_are_read_as_arrays_are(sites: Sites) -> None:
    sites.answer = lambda *_: [update_sent({name: torch.full_like(t, 0.5) for name, t in sites.state.items()})]
    update = next(iter(sites.recorded().messages("update")))
    assert torch.equal(update.tensors["2.bias"], torch.full((3,), 0.5))


def test_steps_times_batch_size_where_no_number_of_examples_is_said(sites: Sites) -> None:
    change = small_change(sites.state, 0)
    sites.answer = lambda *_: [DXO(DataKind.WEIGHT_DIFF, change, {"NUM_STEPS_CURRENT_ROUND": 4}).to_shareable()]
    assert {update.info["examples"] for update in sites.recorded().messages("update")} == {20}


def spoiled(sites: Sites, **changes: Any) -> Shareable:
    change = {**small_change(sites.state, 1), **changes}
    return update_sent({name: value for name, value in change.items() if value is not None})


def unsound(sites: Sites) -> dict[str, tuple[Any, str]]:
    nan, infinite = np.full((3,), np.nan, np.float32), np.full((3,), np.inf, np.float32)
    change = small_change(sites.state, 1)
    return {
        "nan": (spoiled(sites, **{"2.bias": nan}), "has NaN at '2.bias'"),
        "infinite": (spoiled(sites, **{"2.bias": infinite}), "has an infinite value"),
        "shape": (spoiled(sites, **{"2.bias": np.zeros((1, 3), np.float32)}), "has shape (1, 3)"),
        "missing": (spoiled(sites, **{"2.bias": None}), "lacks tensor '2.bias'"),
        "unknown": (spoiled(sites, other=np.zeros(2, np.float32)), "has an unknown tensor 'other'"),
        "no array": (spoiled(sites, **{"2.bias": "hello"}), "other than an array of numbers at '2.bias'"),
        "objects": (spoiled(sites, **{"2.bias": np.array([object()])}), "other than an array of numbers"),
        "empty": (update_sent({}), "no arrays"),
        "no dxo": (Shareable(), "no DXO"),
        "metrics": (DXO(DataKind.METRICS, {"accuracy": 1.0}).to_shareable(), "expected weights"),
        "examples nan": (update_sent(change, float("nan")), "nan examples"),
        "examples inf": (update_sent(change, float("inf")), "inf examples"),
        "examples 0": (update_sent(change, 0), "from 0 examples"),
        "examples -20": (update_sent(change, -20), "from -20 examples"),
        "examples many": (update_sent(change, 10**18), "from 1e+18 examples"),
        "examples text": (update_sent(change, "many"), "no number of examples"),
    }


CASES = ["nan", "infinite", "shape", "missing", "unknown", "no array", "objects", "empty", "no dxo", "metrics"]
CASES += [f"examples {what}" for what in ("nan", "inf", "0", "-20", "many", "text")]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("leaves_out", [False, True])
def test_an_unsound_reply_is_an_event_and_the_others_are_recorded(case: str, leaves_out: bool, sites: Sites) -> None:
    bad, words = unsound(sites)[case]
    sites.answer = lambda number, site, honest: [bad] if (number, site) == (0, "site-2") else [honest]
    trace = sites.recorded(leave_out_unsound=leaves_out)
    assert senders(trace, 0) == ["client:site-1", "client:site-3"]
    assert len(senders(trace, 1)) == 3
    (event,) = [event for event in trace.events if event.round == 0]
    assert event.party == "client:site-2"
    assert words in event.what
    assert sites.blocked == (["site-2"] if leaves_out else [])


def test_of_two_replies_the_first_counts(sites: Sites) -> None:
    second = update_sent(small_change(sites.state, 99))
    sites.answer = lambda number, site, honest: [honest, second] if site == "site-1" else [honest]
    trace = sites.recorded(rounds=1, leave_out_unsound=True)
    assert senders(trace, 0) == ["client:site-1", "client:site-2", "client:site-3"]
    assert [event.what for event in trace.events] == ["left out: it answered twice"]
    assert sites.blocked == ["site-1"]


def test_sites_that_fail_or_are_silent_are_events(sites: Sites) -> None:
    def answer(number: int, site: str, honest: Shareable) -> list[Shareable]:
        return {"site-1": [], "site-2": [make_reply(ReturnCode.EXECUTION_EXCEPTION)]}.get(site, [honest])

    sites.answer = answer
    trace = sites.recorded(rounds=1, leave_out_unsound=True)
    assert {(event.party, event.what) for event in trace.events} == {
        ("client:site-1", "did not answer"),
        ("client:site-2", "failed: EXECUTION_EXCEPTION"),
    }
    assert not sites.blocked


def test_replies_to_no_task_of_this_round_are_events_and_pass(sites: Sites) -> None:
    recorder = RecordRounds(str(sites.folder / "trace"))
    for number in range(2):
        sent = model_sent(sites.state, number)
        recorder.handle_event(
            EventType.AFTER_TASK_DATA_FILTER, context("server", "site-1", f"t{number}", "train", data=sent)
        )
    late, strange = update_sent(small_change(sites.state, 1)), update_sent(small_change(sites.state, 2))
    assert recorder.process(late, context("server", "site-1", "t0", "train")) is late
    assert recorder.process(strange, context("server", "site-9", "t77", "train")) is strange
    recorder.handle_event(EventType.END_RUN, FLContext())
    said = {(event.party, event.what) for event in FolderTrace(sites.folder / "trace").events if event.round == 1}
    assert said >= {
        ("client:site-1", "answered too late"),
        ("client:site-9", "answered without having been asked"),
    }


def test_models_of_other_tasks_are_not_recorded(sites: Sites) -> None:
    recorder = RecordRounds(str(sites.folder / "trace"))
    sent = model_sent(sites.state, 0)
    recorder.handle_event(EventType.AFTER_TASK_DATA_FILTER, context("server", "site-1", "t", "validate", data=sent))
    recorder.handle_event(EventType.END_RUN, FLContext())
    assert not (sites.folder / "trace").exists()


def test_sites_that_were_sent_different_models_are_recorded_so(sites: Sites) -> None:
    recorder = RecordRounds(str(sites.folder / "trace"))
    for index, site in enumerate(("site-1", "site-2")):
        sent = model_sent({name: tensor + index for name, tensor in sites.state.items()}, 0)
        recorder.handle_event(EventType.AFTER_TASK_DATA_FILTER, context("server", site, site, "train", data=sent))
    recorder.handle_event(EventType.END_RUN, FLContext())
    models = list(FolderTrace(sites.folder / "trace").messages("model"))
    assert sorted(model.receiver for model in models) == ["client:site-1", "client:site-2"]


def test_a_folder_that_cannot_be_written_stops_nothing(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    (sites.folder / "file").touch()
    recorder = RecordRounds(str(sites.folder / "file" / "trace"))
    for number in range(2):
        sent = model_sent(sites.state, number)
        recorder.handle_event(
            EventType.AFTER_TASK_DATA_FILTER, context("server", "s", f"t{number}", "train", data=sent)
        )
        result = update_sent(small_change(sites.state, number))
        assert recorder.process(result, context("server", "s", f"t{number}", "train")) is result
    recorder.handle_event(EventType.END_RUN, FLContext())
    assert "is not recorded" in caplog.text


def test_a_context_like_no_other_stops_nothing(sites: Sites) -> None:
    recorder = RecordRounds(str(sites.folder / "trace"))
    result = update_sent(small_change(sites.state, 0))
    assert recorder.process(result, FLContext()) is result
    recorder.handle_event(EventType.AFTER_TASK_DATA_FILTER, FLContext())
    recorder.handle_event(EventType.END_RUN, FLContext())


def test_an_unknown_adversary_is_refused_where_the_job_is_written() -> None:
    with pytest.raises(FedspillError, match="nosy"):
        RecordRounds("trace", adversary="nosy")
