"""The server side of a plan's federation."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedspill.flower.engine import run_server
from fedspill.flower.plan_app import planned_federation
from fedspill.trace_folder import FolderRecorder

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    plan = planned_federation(str(config["plan"]), str(config["data-dir"]))
    keep = plan.deployment.keep()
    run_server(plan, FolderRecorder(Path(str(config["trace"])), plan.deployment.protocol(), keep), grid, context)
