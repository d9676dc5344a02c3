"""Attacks that know the defense: they get more than those that do not, and never less than the published ones."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedspill.attack import Attack
from fedspill.dataset import Examples
from fedspill.defense import Defense
from fedspill.defenses.clip_noise import ClipNoise
from fedspill.defenses.compression import Compression
from fedspill.defenses.frozen_head import FrozenHead
from fedspill.defenses.label_smoothing import LabelSmoothing
from fedspill.defenses.quantization import Quantization
from fedspill.federation.horizontal import Horizontal, Settings
from fedspill.leaks.labels.counts.layer_signals import Reader, linear_signals
from fedspill.leaks.labels.ebi import EBI
from fedspill.leaks.labels.guess import LabelCounts
from fedspill.leaks.labels.labels import Labels
from fedspill.leaks.labels.llbg import LLBG
from fedspill.leaks.labels.llg import LLG
from fedspill.leaks.labels.metrics import overlap, true_counts
from fedspill.partitions.half_quarter_rest import HalfQuarterRest
from fedspill.registry import make
from fedspill.seeds import generator
from fedspill.threat import CURIOUS_SERVER
from fedspill.trace import MemoryTrace
from fedspill.training import LocalTraining, gradient

CLASSES, BATCH, BATCHES = 60, 128, 3
WIDTH = 256  # more than twice the classes: a frozen head is read off as many active units as there are classes


def net(seed: int = 0) -> nn.Module:
    """A head that hardly looks at its input, as untrained networks have."""
    made: nn.Module = make("models", "mlp", {"widths": [48, WIDTH]}).build((20,), CLASSES, seed=seed)
    return made


@cache
def pool() -> Examples:
    rng = generator(3, "pool")
    return Examples(1 + 0.3 * torch.rand(CLASSES * 130, 20, generator=rng), torch.arange(CLASSES).repeat(130))


@cache
def updates(defenses: tuple[Defense, ...]) -> list[MemoryTrace]:
    shares = HalfQuarterRest(batch=BATCH).split(pool(), BATCHES, generator(5, "batches"))
    traces = []
    for index, share in enumerate(shares):
        protocol = {
            "classes": CLASSES, "head_weight": "head.weight", "head_bias": "head.bias", "algorithm": "fedavg",
            "batch_size": 13, "local_lr": 0.001, "local_epochs": 1, "optimizer": "sgd",
        }  # fmt: skip
        trace = MemoryTrace(protocol)
        training = LocalTraining(lr=0.001, batch_size=13)
        settings = Settings(rounds=1, training=training, defenses=defenses)
        Horizontal(net(index), [pool().take(share)], settings, 9, CLASSES, trace).run()
        traces.append(trace)
    return traces


def success(attack: Attack, defenses: tuple[Defense, ...], *, told: bool = False) -> float:
    found = []
    for index, trace in enumerate(updates(defenses)):
        known: dict[str, Any] = {"architecture": lambda index=index: net(index), "unlabelled_aux": pool().x[:64]}
        view = trace.view(CURIOUS_SERVER, knowledge={**known, **({"defense": defenses} if told else {})})
        guess = attack(view, seed=1)
        assert isinstance(guess, LabelCounts)
        assert ("defense" in view.used) is told
        found.append(float(overlap(guess.counts, true_counts(guess, trace.truth())).mean()))
    return sum(found) / len(found)


def test_all_layers_together_know_beta_exactly_where_samples_are_alike() -> None:
    model = net()
    x = torch.ones(1, 20).expand(16, -1)
    labels = torch.randint(CLASSES, (16,), generator=generator(1))
    gradients = {name: part.double() for name, part in gradient(model, Examples(x, labels)).items()}
    signals = linear_signals(model, x, CLASSES)
    assert [layer.weight for layer in signals] == ["fc1.weight", "fc2.weight", "head.weight"]
    reader = Reader.of(signals)
    assert reader is not None
    assert torch.allclose(reader.beta(gradients), gradients["head.bias"], atol=1e-4)
    alone = Reader.of(signals[-1:])
    assert alone is not None
    assert bool((reader.noise_gain() < alone.noise_gain()).all()), "more layers, less noise"


def test_noise_that_is_known_is_reckoned_with() -> None:
    defenses = (ClipNoise(clip=None, sigma=0.1, per="step"),)
    told, untold, published = (
        success(Labels(), defenses, told=True),
        success(Labels(), defenses),
        success(LLBG(), defenses),
    )
    assert told > published + 0.05
    assert told > untold + 0.05


@pytest.mark.parametrize("norm", [0.02, 0.1])
def test_clipping_alone_hides_nothing(norm: float) -> None:
    defenses = (ClipNoise(clip=norm, sigma=0.0, per="step"),)
    assert success(LLBG(), defenses) < 0.8
    assert success(Labels(), defenses, told=True) > 0.93


@pytest.mark.parametrize("drop", [0.1, 0.4, 0.9, 0.99])
def test_compression_leaves_more_than_the_published_attacks_read(drop: float) -> None:
    defenses = (Compression(drop=drop),)
    best = max(success(attack, defenses) for attack in (LLG(), EBI(), LLBG()))
    assert success(Labels(), defenses, told=True) >= best - 0.01


def test_a_frozen_head_is_read_off_the_layers_before_it() -> None:
    defenses = (FrozenHead(),)
    assert success(Labels(), defenses) < 0.4
    assert success(Labels(), defenses, told=True) > 0.7


def test_a_frozen_bias_is_read_off_the_weights() -> None:
    defenses = (FrozenHead(what="bias"),)
    assert success(Labels(), defenses, told=True) > success(LLG(), defenses)


def test_smoothing_is_divided_out() -> None:
    defenses = (LabelSmoothing(amount=0.6),)
    assert success(Labels(), defenses, told=True) > 0.95


@pytest.mark.parametrize("bits", ["int8", "bf16", "fp16"])
def test_rounding_hides_next_to_nothing(bits: Any) -> None:
    assert success(Labels(), (Quantization(type=bits),), told=True) > 0.9


def test_without_a_defense_knowing_it_changes_nothing() -> None:
    trace: Any = updates(())[0]
    known: dict[str, Any] = {"architecture": net, "unlabelled_aux": pool().x[:64]}
    guesses: list[Tensor] = []
    for more in ({}, {"defense": ()}):
        guess = Labels()(trace.view(CURIOUS_SERVER, knowledge={**known, **more}), seed=1)
        assert isinstance(guess, LabelCounts)
        guesses.append(guess.counts)
    assert torch.equal(*guesses)


def test_rounds_of_one_client_are_averaged() -> None:
    """Ten rounds of the same noise-ridden client say more than one."""
    protocol = {
        "classes": CLASSES, "head_weight": "head.weight", "head_bias": "head.bias", "algorithm": "fedavg",
        "batch_size": 13, "local_lr": 0.001, "local_epochs": 1, "optimizer": "sgd",
    }  # fmt: skip
    share = HalfQuarterRest(batch=BATCH).split(pool(), 1, generator(6, "batches"))[0]
    defenses = (ClipNoise(clip=None, sigma=0.3, per="step"),)
    scores = []
    for rounds in (1, 10):
        trace = MemoryTrace(protocol)
        settings = Settings(rounds=rounds, training=LocalTraining(lr=0.001, batch_size=13), defenses=defenses)
        Horizontal(net(), [pool().take(share)], settings, 9, CLASSES, trace).run()
        known = {"architecture": net, "unlabelled_aux": pool().x[:64], "defense": defenses}
        guess = Labels()(trace.view(CURIOUS_SERVER, knowledge=known), seed=1)
        assert isinstance(guess, LabelCounts)
        scores.append(float(overlap(guess.counts, true_counts(guess, trace.truth())).mean()))
    assert scores[1] > scores[0] + 0.05
