"""What a dry run foretells of large models: messages are mapped from files, and clients are not rehearsed."""

import pytest

from fedspill.audit import cost_estimate
from fedspill.audit.cost_estimate import (
    _Calibration,
    _operations_of_rehearsals,
    _own_trainings,
    _Rehearsals,
    _rehearsals,
    _Sizes,
    _sizes,
    _unit_memory,
    _unit_seconds,
)
from fedspill.audit.matrix import Pair
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan
from fedspill.observe.rehearsal_plan import MOST_FLOPS
from fedspill.registry import make, options_of

EMPTY = 300 << 20  # bytes of a process that has done nothing


def deployed(width: int, rounds: int) -> Deployment:
    return Deployment.of(
        Plan.model_validate(
            {
                "model": {"name": "mlp", "widths": [width]},
                "federation": {"clients": 4, "rounds": rounds},
                "training": {"lr": 0.1, "batch_size": 16},
            }
        )
    )


def test_memory_grows_with_the_messages_that_are_recorded_only_where_they_are_small() -> None:
    few, many = (_unit_memory(deployed(64, rounds), EMPTY) for rounds in (2, 40))
    assert few < many
    few, many = (_unit_memory(deployed(20_000, rounds), EMPTY) for rounds in (2, 40))
    assert few == many


def test_clients_of_a_model_that_is_too_large_are_not_reckoned_as_rehearsed() -> None:
    assert _operations_of_rehearsals(deployed(64, 2), 8) < MOST_FLOPS
    assert _operations_of_rehearsals(deployed(40_000, 2), 8) > MOST_FLOPS
    assert _operations_of_rehearsals(deployed(64, 2), 2_000) > MOST_FLOPS  # nor are so many messages


SIZES = _Sizes(rounds=4, messages=80, parameters=20_000, classes=10, products=0.0)


def seconds(adversary: str, rehearsals: _Rehearsals) -> float:
    return _unit_seconds(Pair("labels", adversary, {}), SIZES, rehearsals, slowness=1.0)


def test_only_who_has_data_and_the_model_is_reckoned_to_rehearse() -> None:
    some, none = _Rehearsals(1.0, training=100.0), _Rehearsals(float("inf"))
    assert seconds("curious-server", some) > 100 > seconds("curious-server", none)
    assert seconds("eavesdropper", some) == seconds("eavesdropper", none) == seconds("curious-server", none)


def test_decaf_is_reckoned_to_rehearse_larger_models_than_labels_does() -> None:
    """And half of its messages, which is a guess."""
    large = _Rehearsals(10 * MOST_FLOPS, training=100.0)
    took = {name: _unit_seconds(Pair(name, "curious-server", {}), SIZES, large, 1.0) for name in ("labels", "decaf")}
    assert took["labels"] < 50 < took["decaf"] < 100


def test_a_federation_that_an_attack_runs_for_itself_is_reckoned() -> None:
    """All clients train in each of its rounds, whatever takes part in the deployment's."""
    pairs = {name: Pair(name, "malicious-server-updates", options_of(make("attacks", name, {}))) for name in PLANTING}
    trained = {name: _own_trainings(pair, deployed(64, 2)) for name, pair in pairs.items()}
    assert trained["llbg"] == 0
    assert trained["robbing-the-fed"] >= 4
    assert trained["robbing-the-fed"] % 4 == 0  # clients


PLANTING = ("llbg", "robbing-the-fed")


def test_clients_of_many_sizes_are_read_one_by_one() -> None:
    """Those with as many samples are read together, so that a federation of uneven clients costs more."""
    even, uneven = (_sizes(with_shares(partition)) for partition in ("iid", "dirichlet"))
    assert even.schedules <= 2
    assert uneven.schedules > 5
    assert uneven.messages == even.messages
    pair, never = Pair("labels", "eavesdropper", {}), _Rehearsals(float("inf"))
    assert _unit_seconds(pair, uneven, never, 1.0) > 2 * _unit_seconds(pair, even, never, 1.0)


def with_shares(partition: str) -> Deployment:
    return Deployment.of(
        Plan.model_validate({"federation": {"clients": 12, "rounds": 2}, "partition": {"name": partition}})
    )


def test_clients_of_a_round_share_what_is_rehearsed_for_it() -> None:
    """As many messages in fewer rounds take fewer fits; the broad rehearsals of a round are made once for all."""
    measured = _Calibration(slowness=1.0, client_seconds=0.0, first_use=0.0, gpu_bytes=0)
    deployment = deployed(16, 12)
    few, many = (_rehearsals(deployment, _Sizes(rounds, 48, 1_000, 10, 0.0), measured).fitting for rounds in (2, 24))
    assert few < many < 2 * few


def test_trials_of_habits_are_reckoned(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = _Calibration(slowness=1.0, client_seconds=0.0, first_use=0.0, gpu_bytes=0)
    sizes = _Sizes(2, 8, 1_000, 10, 0.0)
    with_habits = _rehearsals(deployed(16, 2), sizes, measured)
    monkeypatch.setattr(cost_estimate, "unsaid_habits", lambda *_: iter(()))
    assert with_habits.fitting > _rehearsals(deployed(16, 2), sizes, measured).fitting


def test_records_are_reckoned_at_layers_that_see_one_vector_each() -> None:
    dense = _sizes(deployed(64, 2))
    records = dense.products / (64 * 64 + 64 * 10)
    assert records == int(records)
    assert records > 100
