"""The recorder sees everything, changes nothing and stops nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAdam, FedAvg, FedMedian, Strategy
from inprocess import InProcess, run
from little import Little, all_nodes, node, same
from safetensors.torch import load_file

from fedspill.adapters.background_writer import RecordingLimits
from fedspill.flower import record
from fedspill.trace import Keep, MemoryTrace, Origin
from fedspill.trace_folder import FolderTrace

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
CONFIG = {
    "num-server-rounds": 5,
    "fraction-train": 1.0,
    "min-nodes": 5,
    "local-epochs": 1,
    "lr": 0.1,
    "batch-size": 16,
    "model": "model.safetensors",
}


def test_the_example_differs_from_a_plain_app_by_two_lines() -> None:
    lines = (EXAMPLE / "digits_app" / "server_app.py").read_text(encoding="utf-8").splitlines()
    assert sum("# fedspill: line" in line for line in lines) == 2
    others = [*EXAMPLE.glob("digits_app/task.py"), *EXAMPLE.glob("digits_app/client_app.py")]
    assert len(others) == 2
    assert not any("fedspill" in file.read_text(encoding="utf-8") for file in others)


def test_the_example_ends_with_the_same_model_with_and_without_the_recorder(
    tmp_path: Path, digits_app: Callable[[], Any]
) -> None:
    client_app, server_app = digits_app()
    source = Path(server_app.__file__).read_text(encoding="utf-8")
    plain = "\n".join(line for line in source.splitlines() if "# fedspill: line" not in line)
    names: dict[str, Any] = {}
    exec(compile(plain, "plain server_app", "exec"), names)
    models = []
    for app, name in ((server_app.app, "recorded"), (names["app"], "plain")):
        assert isinstance(app, ServerApp)
        config = CONFIG | {"trace": str(tmp_path / "digits.trace"), "model": str(tmp_path / name)}
        random.seed(0)
        run(app, InProcess(client_app.app, 5), config)
        models.append(load_file(tmp_path / name))
    assert same(*models)
    trace = FolderTrace(tmp_path / "digits.trace")
    assert len(list(trace.messages("model"))) == 5
    assert len(list(trace.messages("update"))) == 25
    assert trace.events == []
    assert trace.protocol["head_weight"] == "fc2.weight"
    assert trace.protocol["head_bias"] == "fc2.bias"
    assert trace.protocol["classes"] == 10
    assert trace.protocol["client_count"] == 5
    assert (trace.protocol["local_lr"], trace.protocol["batch_size"]) == (0.1, 16)


class Spy(FedAvg):
    """Keeps what it was asked to aggregate."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.sent: list[dict[str, torch.Tensor]] = []
        self.got: list[dict[int, dict[str, torch.Tensor]]] = []

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Any) -> Iterable[Message]:
        self.sent.append(arrays.to_torch_state_dict())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        self.got.append(
            {
                r.metadata.src_node_id: next(iter(r.content.array_records.values())).to_torch_state_dict()
                for r in replies
            }
        )
        return super().aggregate_train(server_round, replies)


def test_recorded_updates_are_what_the_strategy_aggregated_bit_for_bit(tmp_path: Path, little: Little) -> None:
    spy = record(Spy(), tmp_path / "trace")
    little.run(spy)
    assert isinstance(spy, Spy)
    trace = FolderTrace(tmp_path / "trace")
    compared = 0
    for number in range(little.rounds):
        (model,) = trace.messages("model", round=number)
        assert same(dict(model.tensors), spy.sent[number])
        for update in trace.messages("update", round=number):
            reply = spy.got[number][int(update.sender.removeprefix("client:"))]
            for name, tensor in update.tensors.items():
                difference = (reply[name] - spy.sent[number][name]).numpy()
                assert difference.tobytes() == tensor.numpy().tobytes()
                compared += tensor.numel()
    assert compared == little.rounds * little.clients * sum(p.numel() for p in little.model().parameters())


def test_the_aggregate_is_the_step_that_fedavg_takes(tmp_path: Path, little: Little) -> None:
    little.run(record(all_nodes(), tmp_path / "trace"))
    trace = FolderTrace(tmp_path / "trace")
    models, totals = list(trace.messages("model")), list(trace.messages("aggregate"))
    assert len(totals) == len(models) == little.rounds
    for before, after, total in zip(models[:-1], models[1:], totals[:-1], strict=True):
        assert total.info == {"clients": 4, "of": "update", "examples": 80}
        for name, step in total.tensors.items():
            assert torch.allclose(after.tensors[name] - before.tensors[name], step, atol=1e-6)


@pytest.mark.parametrize(
    "strategy",
    [
        FedAdam(fraction_evaluate=0.0),
        FedMedian(fraction_evaluate=0.0),
        DifferentialPrivacyServerSideFixedClipping(all_nodes(), 0.0, 1e6, num_sampled_clients=4),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_other_strategies_are_recorded_and_stay_themselves(tmp_path: Path, little: Little, strategy: Strategy) -> None:
    recorded = record(strategy, tmp_path / "trace")
    assert isinstance(recorded, type(strategy))
    little.run(recorded)
    assert len(list(FolderTrace(tmp_path / "trace").messages("update"))) == 12


def test_a_strategy_with_a_start_of_its_own_is_recorded(tmp_path: Path, little: Little) -> None:
    class Own(FedAvg):
        """As Flower's advanced example does it: own loop, own attributes, messages from a generator."""

        best = 0

        def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
            yield from super().configure_train(*args, **kwargs)

        def start(self, *args: Any, **kwargs: Any) -> Any:
            self.best += 1
            return super().start(*args, **kwargs)

    recorded = record(Own(fraction_evaluate=0.0), tmp_path / "trace")
    little.run(recorded)
    assert isinstance(recorded, Own)
    assert recorded.best == 1
    assert len(list(FolderTrace(tmp_path / "trace").messages("update"))) == 12


def test_bare_numpy_arrays_are_named_by_number_and_their_head_is_found(tmp_path: Path, little: Little) -> None:
    arrays = ArrayRecord([parameter.detach().numpy() for parameter in little.model().parameters()])
    little.run(record(all_nodes(), tmp_path / "trace"), start=arrays)
    trace = FolderTrace(tmp_path / "trace")
    assert (trace.protocol["head_weight"], trace.protocol["head_bias"], trace.protocol["classes"]) == ("2", "3", 3)
    assert [list(update.tensors) for update in trace.messages("update", round=0)] == 4 * [["0", "1", "2", "3"]]


def test_the_head_is_the_one_that_is_named(tmp_path: Path, little: Little) -> None:
    little.run(record(all_nodes(), tmp_path / "trace", head="0"))
    assert FolderTrace(tmp_path / "trace").protocol["head_weight"] == "0.weight"


def test_a_round_in_which_half_the_clients_are_selected_holds_their_updates_alone(
    tmp_path: Path, little: Little
) -> None:
    little.run(record(all_nodes(fraction_train=0.5), tmp_path / "trace"))
    trace = FolderTrace(tmp_path / "trace")
    assert [len(list(trace.messages("update", round=number))) for number in range(3)] == [2, 2, 2]
    assert trace.protocol["client_count"] == 2


@pytest.mark.parametrize(
    ("adversary", "kinds"),
    [
        ("curious-server", {"model", "update", "aggregate"}),
        ("curious-server-secagg", {"model", "aggregate"}),
        ("curious-client", {"model"}),
        ("eavesdropper", {"model", "update"}),
    ],
)
def test_what_the_adversary_does_not_see_is_not_written(
    tmp_path: Path, little: Little, adversary: str, kinds: set[str]
) -> None:
    little.run(record(all_nodes(), tmp_path / "trace", adversary=adversary))
    assert {message.kind for message in FolderTrace(tmp_path / "trace").messages()} == kinds


def test_a_model_of_its_own_for_one_client_is_a_message_of_its_own(tmp_path: Path, little: Little) -> None:
    class Favours(FedAvg):
        def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
            messages = list(super().configure_train(*args, **kwargs))
            content = messages[0].content.copy()
            content["arrays"] = ArrayRecord([array + 1 for array in content["arrays"].to_numpy_ndarrays()])
            content["arrays"] = ArrayRecord(
                dict(zip(messages[0].content["arrays"], content["arrays"].values(), strict=True))
            )
            messages[0] = Message(content, messages[0].metadata.dst_node_id, "train")
            return messages

    little.run(record(Favours(fraction_evaluate=0.0), tmp_path / "trace"))
    trace = FolderTrace(tmp_path / "trace")
    receivers = [message.receiver for message in trace.messages("model", round=0)]
    assert len(set(receivers)) == 4
    assert all(receiver.startswith("client:") for receiver in receivers)
    # Each update is the change of the model that this client got, so none of them shows the jump by 1.
    assert max(float(u.tensors["2.bias"].abs().max()) for u in trace.messages("update", round=0)) < 0.9


def test_keep_selects_rounds_clients_tensors_and_kinds(tmp_path: Path, little: Little) -> None:
    keep = Keep(
        rounds=frozenset({1}), clients=frozenset({f"client:{node(2)}"}), tensors=("2.*",), kinds=frozenset({"update"})
    )
    little.run(record(all_nodes(), tmp_path / "trace", keep=keep))
    (only,) = FolderTrace(tmp_path / "trace").messages()
    assert (only.round, only.sender, sorted(only.tensors)) == (1, f"client:{node(2)}", ["2.bias", "2.weight"])


def test_a_second_run_gets_a_folder_of_its_own(tmp_path: Path, little: Little) -> None:
    for _ in range(2):
        little.run(record(all_nodes(), tmp_path / "digits.trace"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits-2.trace", "digits.trace"]
    assert all(len(list(FolderTrace(path).messages("update"))) == 12 for path in tmp_path.iterdir())


def test_known_facts_of_a_round_are_recorded_as_its_truth(little: Little) -> None:
    def truth(number: int, summed: Sequence[str]) -> dict[tuple[Origin, str], torch.Tensor]:
        return {(Origin(number, address), "label_counts"): torch.tensor([number, 1]) for address in summed}

    trace = MemoryTrace()
    little.run(record(all_nodes(), trace, truth=truth))
    facts = trace.truth().facts
    assert len(facts) == 3 * 4
    assert facts[Origin(2, f"client:{node(1)}"), "label_counts"].tolist() == [2, 1]


def test_the_recording_stays_within_its_bytes(tmp_path: Path, little: Little) -> None:
    round_bytes = 6 * sum(p.numel() * 4 for p in little.model().parameters())  # model, four updates, aggregate
    little.run(record(all_nodes(), tmp_path / "trace", limits=RecordingLimits(disk=2 * round_bytes)))
    trace = FolderTrace(tmp_path / "trace")
    assert {message.round for message in trace.messages()} == {0, 1}
    (event,) = trace.events
    assert event.what.startswith("round 2 was not recorded: ")
    assert "exceed" in event.what


def test_an_update_keeps_the_type_that_was_sent_and_leaves_integers_out() -> None:
    start = {"w": np.ones((2, 3)), "steps": np.array(3), "scale": np.array(0.5)}
    from flwr.app import Array

    from fedspill.flower.arrays import read_array, tensors_of, update_from

    arrays = {name: Array(value) for name, value in start.items()}
    model = tensors_of(arrays)
    returned = {"w": Array(np.full((2, 3), 1.5)), "steps": Array(np.array(4)), "scale": Array(np.array(0.75))}
    update = update_from(model, returned)
    assert update.keys() == {"w", "scale"}
    assert update["w"].dtype == torch.float64
    assert float(update["scale"]) == 0.25
    assert not read_array("w", arrays["w"]).flags.writeable
    fortran = Array(np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert read_array("f", fortran).tolist() == [[0, 1, 2], [3, 4, 5]]
