"""The images of a client of split learning: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from fedspill.leak import RECONSTRUCTION_IDS, Leak, of_hundred
from fedspill.leaks.split_images.guess import RebuiltImages
from fedspill.leaks.split_images.metrics import ImagesRecognised, ImageVariance

SPLIT_IMAGES = Leak(
    name="split_images",
    title="The images of a client of split learning",
    question="What do the images look like that the client keeps to itself?",
    guess=RebuiltImages,
    metrics=(ImagesRecognised(), ImageVariance()),
    control={
        "data": "digits",
        "model": {"name": "split-lenet", "cut": 2, "kernel": 3, "padding": 1},
        "federation": {
            "kind": "vertical", "towers": "private", "samples": 400, "rounds": 300, "batches": "epochs",
            "predictions": 60,
        },
        "training": {"batch_size": 20, "optimizer": "adam", "lr": 0.003},
        "adversary_data": {"per_class": 0, "shadow": 800},
    },
    figure=of_hundred("images"),
    sentence="{figure} that a client keeps to itself are rebuilt so that each is recognised among all",
    claim="rebuild {much} of the images that a client of split learning keeps to itself",
    taxonomy=RECONSTRUCTION_IDS,
    federations=("private towers",),
    split_learning_only=True,
)  # fmt: skip
