"""A plan's federation run by Flower: simulated on Ray, or by the nodes of a running SuperLink."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import Tensor, nn

from fedspill.deployment.deployment import Deployment
from fedspill.errors import FedspillError, UsageError
from fedspill.federation.horizontal import RoundResult
from fedspill.federation.local import state_of
from fedspill.flower.arrays import array_record, tensors_of
from fedspill.flower.plan_app import (
    TIMEOUT,
    PlannedFederation,
    PlannedStrategy,
    address_of_node,
    client_app,
    model_with_state,
    partitions_of_nodes,
    planned_federation,
)
from fedspill.flower.record import record
from fedspill.flower.secagg import run_secure_aggregation
from fedspill.messages import Message
from fedspill.trace import Event, Origin, Recorder

Runner = Callable[[ServerApp, ClientApp, int], None]  # runs server and clients with so many nodes to the end


@dataclass(eq=False)
class FlowerFederation:
    """A federation that Flower runs: `federation.run()`; the global model is then `federation.model`."""

    deployment: Deployment
    recorder: Recorder
    runner: Runner | None = None  # None: Flower's simulation on Ray, with two processors

    def __post_init__(self) -> None:
        self._plan = plan_json(self.deployment)
        self.model: nn.Module = self.deployment.build_model()
        self._planned()  # so that a plan that Flower cannot run is refused here, before anything starts

    def run(self) -> list[RoundResult]:
        """All rounds; the recording is finished at the end."""
        server, rounds = ServerApp(), _RoundsRecorder(self.recorder)

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self.model = run_server(self._planned(), rounds, grid, context)

        # Nodes get the plan and load their data themselves, once per process, so that no data travels in messages.
        plan, data_dir = self._plan, self._data_dir()
        with quiet_flower():
            clients = client_app(lambda context: planned_federation(plan, data_dir))
            (self.runner or on_ray(2))(server, clients, len(self.deployment.shares.clients))
        return rounds.done

    def close(self) -> None:
        """Nothing is held between runs."""

    def _planned(self) -> PlannedFederation:
        return planned_federation(self._plan, self._data_dir())

    def _data_dir(self) -> str:
        return str(self.deployment.data_dir.absolute()) if self.deployment.data_dir else ""


@final
class _RoundsRecorder(Recorder):
    """Passes everything on to another recorder, and notes which clients took part in each round."""

    def __init__(self, inner: Recorder) -> None:
        self._inner = inner
        self._clients: list[int] = []
        self._events: list[Event] = []
        self.done: list[RoundResult] = []

    def say(self, message: Message) -> None:
        if message.kind == "update":
            self._clients.append(int(message.sender.removeprefix("client:")))
        self._inner.say(message)

    def note_truth(self, origin: Origin, name: str, value: Tensor) -> None:
        self._inner.note_truth(origin, name, value)

    def note_event(self, event: Event) -> None:
        self._events.append(event)
        self._inner.note_event(event)

    def end_round(self, number: int) -> None:
        self.done.append(RoundResult(number, tuple(self._clients), tuple(self._events)))
        self._clients, self._events = [], []
        self._inner.end_round(number)

    def finish(self) -> None:
        self._inner.finish()


def run_server(plan: PlannedFederation, recorder: Recorder, grid: Grid, context: Context) -> nn.Module:
    """The server side: asks each node which partition it holds, then runs the rounds; returns the global model."""
    settings = plan.deployment.settings
    nodes = partitions_of_nodes(grid, len(plan.deployment.shares.clients))
    if settings.secure_aggregation:
        return model_with_state(plan, run_secure_aggregation(plan, nodes, recorder, grid, context))
    strategy = record(
        PlannedStrategy(plan, nodes),
        recorder,
        weighting=settings.weighting,
        leave_out_unsound=True,
        client_name=address_of_node(nodes),
        truth=plan.truth,
    )
    start = array_record(state_of(plan.deployment.build_model()))
    result = strategy.start(grid, start, num_rounds=settings.rounds, timeout=TIMEOUT)
    return model_with_state(plan, tensors_of(result.arrays)) if result.arrays else plan.deployment.build_model()


def plan_json(deployment: Deployment) -> str:
    """The plan as JSON, with all defenses of the deployment: an audit may have added some to those of the plan."""
    defenses = [{"name": defense.name, **asdict(defense)} for defense in deployment.settings.defenses]  # type: ignore[call-overload]
    return json.dumps(deployment.plan.model_dump(mode="json") | {"defenses": defenses}, sort_keys=True)


def on_ray(processors: int) -> Runner:
    """Runs both sides in Flower's simulation on Ray, which listens on this machine alone."""

    def run(server: ServerApp, clients: ClientApp, nodes: int) -> None:
        try:
            import ray  # noqa: F401
            from flwr.simulation import run_simulation
        except ImportError:
            raise UsageError(
                "Flower's simulation needs Ray.", remedy="Install it with: pip install 'fedspill[flower]'"
            ) from None
        backend: dict[str, Any] = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": processors, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
        }
        run_simulation(server, clients, nodes, backend_config=backend)

    return run


def on_superlink(deployment: Deployment, trace: Path, superlink: str, *, seconds: float = 3600) -> None:
    """The same by the nodes of a running SuperLink, named as in Flower's configuration; the server writes `trace`.

    Every SuperNode needs fedspill, the plan's data, and its partition-id. `flwr` must be on the path.
    """
    command = shutil.which("flwr")
    if command is None:
        raise UsageError("The command flwr is not on the path.", remedy="pip install 'fedspill[flower]'")
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "app"
        shutil.copytree(Path(__file__).parent / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
        settings = {
            "plan": plan_json(deployment),
            "trace": str(trace.absolute()),
            "data-dir": str(deployment.data_dir or ""),
        }
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in settings.items()
        ]  # every JSON string is a TOML string
        with (app / "pyproject.toml").open("a", encoding="utf-8") as file:
            file.write("\n".join(["", "[tool.flwr.app.config]", *lines, ""]))
        try:
            done = subprocess.run(  # noqa: S603
                [command, "run", str(app), superlink, "--stream"],
                env=os.environ | _QUIET,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FedspillError(f"SuperLink {superlink} did not finish within {seconds:.0f} s.") from None
    if done.returncode or not (trace / "trace.json").is_file():
        output = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise FedspillError(f"SuperLink {superlink} did not run the plan:\n" + "\n".join(output))


_QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Turns off Flower's telemetry, and all of its log below warnings."""
    log, environment_before = logging.getLogger("flwr"), dict(os.environ)
    level = log.level
    os.environ.update(_QUIET)
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)
        for name in _QUIET:
            if name in environment_before:
                os.environ[name] = environment_before[name]
            else:
                os.environ.pop(name, None)
