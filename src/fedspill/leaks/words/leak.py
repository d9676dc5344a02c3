"""Which words a client wrote: what this leak is, how it is scored, and how people speak of it."""

from __future__ import annotations

from types import MappingProxyType

from fedspill.leak import RECONSTRUCTION_IDS, Leak, of_hundred
from fedspill.leaks.words.guess import ClientText
from fedspill.leaks.words.metrics import (
    CertifiedSequences,
    ExactSequences,
    Rouge1,
    Rouge2,
    TokenPrecision,
    TokenRecall,
    WordsFound,
)
from fedspill.leaks.words.reading import read_text

WORDS = Leak(
    name="words",
    title="Which words a client wrote",
    question="Which words, and which sentences, did a client train on?",
    guess=ClientText,
    metrics=(
        WordsFound(),
        TokenPrecision(),
        TokenRecall(),
        Rouge1(),
        Rouge2(),
        ExactSequences(),
        CertifiedSequences(),
    ),
    # A few short sentences a client: the rows of the embedding that moved are their words.
    control={
        "data": {"name": "made-up-sentences", "sentences": 200},
        "model": {"name": "gpt", "layers": 2, "hidden": 128},
        "partition": {"name": "uniform-batch", "batch": 3},
        "federation": {"clients": 24, "rounds": 6, "clients_per_round": 2},
        "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 3},
        "adversary_data": {"per_class": 4},
    },
    figure=of_hundred("words"),
    sentence="{figure} that a client wrote are named",
    claim="name {much} of the words that a client wrote",
    taxonomy=RECONSTRUCTION_IDS,
    reader=read_text,
)

# The same where tokens and positions are frozen, so that the words have to be read off the other layers.
FROZEN_CONTROL = MappingProxyType(
    {**WORDS.control, "model": {"name": "gpt", "layers": 2, "hidden": 128, "freeze_embeddings": True}}
)
# One very short sentence a client, which is what matching gradients is made for.
MATCHED_CONTROL = MappingProxyType(
    {
        **WORDS.control,
        "data": {"name": "made-up-sentences", "sentences": 200, "words": 100, "shortest": 3, "longest": 5},
        "partition": {"name": "uniform-batch", "batch": 1},
        "training": {"algorithm": "fedsgd", "lr": 0.01, "batch_size": 1},
    }
)
