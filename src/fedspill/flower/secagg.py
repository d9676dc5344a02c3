"""A plan's federation under Flower's secure aggregation (SecAgg+): the server gets the sum and no single update."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import Context
from flwr.common import FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.server_config import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid
from torch import Tensor

from fedspill.federation.local import state_of
from fedspill.flower.plan_app import TIMEOUT, PlannedFederation, address_of_node
from fedspill.flower.record import record
from fedspill.trace import Recorder


class SummingStrategy(FedAvg):
    """Selects clients as the plan says, and moves the model by the sum."""

    def __init__(self, plan: PlannedFederation, nodes: dict[int, int]) -> None:
        model = state_of(plan.deployment.build_model())
        self.state = [model[name].clone() for name in plan.summed_names]
        super().__init__(fraction_evaluate=0.0, initial_parameters=_parameters(self.state))
        self.plan = plan
        self.nodes = nodes

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        present, silent = self.plan.selected(server_round - 1)
        chosen = {*present, *silent}
        proxies = [proxy for proxy in client_manager.all().values() if self.nodes[proxy.node_id] in chosen]
        proxies.sort(key=lambda proxy: self.nodes[proxy.node_id])
        return [(proxy, FitIns(parameters, {"server-round": server_round})) for proxy in proxies]

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        if not results:
            return None, {}
        rate = self.plan.deployment.settings.server_lr
        mean = [torch.from_numpy(array.copy()) for array in parameters_to_ndarrays(results[0][1].parameters)]
        self.state = [start + rate * (now.to(start.dtype) - start) for start, now in zip(self.state, mean, strict=True)]
        return _parameters(self.state), {}


def run_secure_aggregation(
    plan: PlannedFederation, nodes: dict[int, int], recorder: Recorder, grid: Grid, context: Context
) -> dict[str, Tensor]:
    """All rounds; returns the state that was summed."""
    recorded = record(
        SummingStrategy(plan, nodes),
        recorder,
        secure_aggregation=True,
        names=plan.summed_names,
        client_name=address_of_node(nodes),
        truth=plan.truth,
    )
    rounds = plan.deployment.settings.rounds
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=recorded)
    try:
        # Every client gives a share of its keys to all others, so that any two thirds of them can unmask the sum.
        workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.67, timeout=TIMEOUT)
        DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    finally:
        recorded.fedspill.close()  # type: ignore[attr-defined]
    return dict(zip(plan.summed_names, recorded.state, strict=True))


def _parameters(state: list[Tensor]) -> Parameters:
    return ndarrays_to_parameters([tensor.numpy() for tensor in state])
