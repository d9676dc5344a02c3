"""The Flower app that `fedspill.flower.engine.on_superlink` sends; its configuration holds the plan."""
