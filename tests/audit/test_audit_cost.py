"""What a dry run foretells of large models: messages are mapped from files, and clients are not rehearsed."""

from fedspill.audit.cost_estimate import _operations_of_rehearsals, _unit_memory
from fedspill.deployment.deployment import Deployment
from fedspill.deployment.plan import Plan
from fedspill.observe.rehearsal_plan import MOST_FLOPS

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
