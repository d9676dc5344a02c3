"""The client side."""

from fedspill.flower.plan_app import client_app, planned

app = client_app(lambda context: planned(str(context.run_config["plan"]), str(context.run_config["data-dir"])))
