"""Strategies of Flower's older kind (flwr.server.strategy), the only ones that its secure aggregation works with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Array
from flwr.common import FitIns, FitRes, Parameters, Scalar
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from fedspill.adapters.round_messages import examples_fault
from fedspill.errors import InputRefused
from fedspill.flower.arrays import Arrays
from fedspill.flower.round_messages import NodeReply
from fedspill.flower.strategy_recording import StrategyRecording


class RecordedLegacyStrategy(Strategy):
    """Comes before the strategy's own class in the order of inheritance, and so sees what it sends and receives.

    These strategies have no `start` at whose end the recording could be closed: call `strategy.fedspill.close()`.
    """

    fedspill: StrategyRecording

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        asked = super().configure_fit(server_round, parameters, client_manager)  # type: ignore[safe-super]
        names = self.fedspill.options.names
        receivers = {proxy.node_id: 0 for proxy, _ in asked}
        self.fedspill.note_sent(lambda: ((named_arrays(parameters, names),), receivers))
        return asked

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        self.fedspill.note_received(server_round - 1, lambda: list(replies_in(results, self.fedspill.options.names)))
        return super().aggregate_fit(server_round, results, failures)  # type: ignore[safe-super]


def named_arrays(parameters: Parameters, names: tuple[str, ...] | None) -> Arrays:
    """A bare list of arrays under the given names, else by number."""
    names = names or tuple(str(index) for index in range(len(parameters.tensors)))
    if len(names) != len(parameters.tensors):
        raise InputRefused(f"expected {len(names)} arrays ({', '.join(names[:8])}), got {len(parameters.tensors)}")
    return {
        name: Array(dtype="", shape=(), stype=parameters.tensor_type, data=data)
        for name, data in zip(names, parameters.tensors, strict=True)
    }


def replies_in(results: Iterable[tuple[Any, FitRes]], names: tuple[str, ...] | None) -> Iterable[NodeReply]:
    for proxy, result in results:
        try:
            fault = examples_fault(result.num_examples)
            examples = None if fault else int(result.num_examples)
            yield NodeReply(proxy.node_id, named_arrays(result.parameters, names), examples, fault=fault)
        except InputRefused as error:
            yield NodeReply(proxy.node_id, error=f"left out: {error}")
