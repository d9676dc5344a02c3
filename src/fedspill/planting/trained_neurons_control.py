"""What attacks by trained neurons need, and the small federations in which they surely find something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspill.threat import needs

# With few columns, trained neurons fire for other records too. So this federation has many columns, and clients that
# take one plain step.
TRAINED_CONTROL: Mapping[str, Any] = {
    "data": {"name": "made-up-people", "people": 900, "measures": 120},
    "model": {"name": "mlp", "widths": [64, 8], "activation": "elu", "alpha": -2.0, "logits": 1},
    "partition": {"name": "uniform-batch", "batch": 8},
    "federation": {"clients": 4, "rounds": 2, "secure_aggregation": True},
    "training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 8},
    "adversary_data": {"per_class": 20, "shadow": 400},
    "targets": {"attribute": "secret", "members": 24, "others": 0},
}
TRAINED_NEEDS = needs(sees=["aggregate"], knows=["architecture", "targets", "shadow_data"], does=["alter_model"])

# A trained neuron also fires for records that are unlike its shadow set. So this federation has a large shadow set, and
# few records in a sum.
RELU_CONTROL: Mapping[str, Any] = {
    **TRAINED_CONTROL,
    "data": {"name": "made-up-people", "people": 3000, "measures": 40},
    "model": {"name": "mlp", "widths": [256, 8], "logits": 1},
    "partition": {"name": "uniform-batch", "batch": 6},
    "training": {"algorithm": "fedsgd", "lr": 0.05, "batch_size": 6},
    "adversary_data": {"per_class": 20, "shadow": 1500},
}
