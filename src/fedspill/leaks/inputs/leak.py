"""The records themselves: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import RECONSTRUCTION_IDS, Leak, of_hundred
from fedspill.leaks.inputs.group_metrics import InputsGrouped
from fedspill.leaks.inputs.guess import Inputs
from fedspill.leaks.inputs.metrics import (
    CertificatePrecision,
    InputsLpips,
    InputsMse,
    InputsPsnr,
    InputsRecognisable,
    InputsRecovered,
    InputsSsim,
)
from fedspill.leaks.inputs.reading import read_samples
from fedspill.leaks.inputs.tile_metrics import TilePsnr

INPUTS = Leak(
    name="inputs",
    title="The records themselves",
    question="What did the samples look like that a client trained on?",
    guess=Inputs,
    metrics=(
        InputsRecovered(),
        CertificatePrecision(),
        InputsRecognisable(),
        InputsLpips(),
        InputsMse(),
        InputsPsnr(),
        InputsSsim(),
        TilePsnr(),
        InputsGrouped(),
    ),
    # One client a round with one small batch of a fresh network: the gradient holds every sample of it.
    control={
        "data": "digits",
        "model": {"name": "mlp", "widths": [32, 32], "activation": "tanh"},
        "partition": {"name": "uniform-batch", "batch": 4},
        "federation": {"clients": 6, "rounds": 6, "clients_per_round": 1},
        "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 4},
    },
    figure=of_hundred("records"),
    sentence="{figure} that a client computed a step on are rebuilt",
    claim="rebuild {much} of the records that a client trained on",
    taxonomy=RECONSTRUCTION_IDS,
    reader=read_samples,
)
