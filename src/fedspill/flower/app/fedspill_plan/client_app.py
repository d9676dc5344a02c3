"""The client side of a plan's federation."""

from flwr.app import Context

from fedspill.flower.plan_app import PlannedFederation, client_app, planned_federation


def plan_of(context: Context) -> PlannedFederation:
    return planned_federation(str(context.run_config["plan"]), str(context.run_config["data-dir"]))


app = client_app(plan_of)
