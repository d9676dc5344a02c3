"""Tables of paper 001 (Jin et al., CAFE, NeurIPS 2021) as runnable checks: vertical federations on real images.

Every figure is the mean PSNR of tiles as the authors compute it, but over all samples and with a cap of 120 dB, so that
black tiles do not count as infinitely good. "ours" is `cafe` on 60 chosen rounds; "as published" is Algorithm 4 with
the released constants on random batches of a model that stands still.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from fedspill import reproduce
from fedspill.defenses.fake_gradients import FakeGradients
from fedspill.leaks.inputs.vertical.invert_features import InversionEffort
from fedspill.leaks.inputs.vertical.published_algorithms import STEPS, PublishedConstants
from fedspill.reproduce import Row, Run, Table, published
from fedspill.training import LocalTraining

measuring = partial(reproduce.measuring, __file__)
federation, outcome, cells = measuring("federation"), measuring("outcome"), measuring("cells")
matching, descent, altered = measuring("matching"), measuring("descent"), measuring("altered")
Setup, attempt = federation.Setup, cells.attempt


class CellTable(Table):
    """A table that says what its cells are before any of them is run."""

    @abstractmethod
    def cells(self) -> list[Any]:
        """What it has of cells.Cell, none of them run yet."""

    def rows(self, run: Run) -> Iterator[Row]:
        yield from cells.results(self.cells(), run)


@dataclass(frozen=True)
class StateOfTheArt(CellTable):
    """Table 2: CAFE against gradient matching, M = 4, K = 40."""

    name: ClassVar[str] = "001/2"
    title: ClassVar[str] = "All samples of a vertical federation, against gradient matching"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        printed = published(self.paper, "2")
        found: list[Any] = [
            attempt({"rounds": "chosen"}, printed.get(name, {}).get("cafe"), Setup(name))
            for name in (*federation.SOURCES, "linnaeus5")
        ]
        for name in ("mnist", "fashion-mnist"):
            setup = Setup(name, batches="random", rounds=1000, whole=120)
            found.append(attempt({"rounds": "random"}, printed.get(name, {}).get("cafe"), setup))
        for name in ("mnist", "cifar10", "linnaeus5"):
            for method in matching.COMPETITORS:
                found.append(matching.Matching(name, {"by": method}, printed[name].get(method), method))
        return found


@dataclass(frozen=True)
class BatchSizes(CellTable):
    """Table 3: K from 10 to 100 at N = 800, as many chosen rounds as separate all samples."""

    name: ClassVar[str] = "001/3"
    title: ClassVar[str] = "All samples by batch size"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        found: list[Any] = []
        for name, figures in published(self.paper, "3").items():
            for size, printed in ((int(size), figure) for size, figure in figures.items()):
                setup = Setup(name, batch=size, rounds=(4 if size == 100 else 3) * (800 // size))
                found.append(attempt({"batch": size}, printed, setup))
        return found


@dataclass(frozen=True)
class Regularizers(CellTable):
    """Table 4: what each term of Step III is worth to the published algorithm."""

    name: ClassVar[str] = "001/4"
    title: ClassVar[str] = "Terms of the published objective"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        variants = {
            "all terms": PublishedConstants(),
            "alpha = 0": PublishedConstants(alpha=0),
            "xi = 0": PublishedConstants(xi=0),
            "beta = 0": PublishedConstants(beta=0),
            "gamma = 0": PublishedConstants(gamma=0),
        }
        return [
            descent.Planned(name, {"terms": variant}, figures[variant], constants)
            for name, figures in published(self.paper, "4").items()
            for variant, constants in variants.items()
        ]


@dataclass(frozen=True)
class Loops(CellTable):
    """Table 5: single loop against nested loops; printed are rounds to 27 (CIFAR-10) and 38 dB (MNIST)."""

    name: ClassVar[str] = "001/5"
    title: ClassVar[str] = "Nested loops against a single loop, as published"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        loops = {"single": ((20000, STEPS),), "nested": ((8000, (1,)), (8000, (2,)), (4000, (3,)))}
        return [
            descent.Planned(name, {"loop": loop}, stages=stages)
            for name in ("mnist", "cifar10")
            for loop, stages in loops.items()
        ]


@dataclass(frozen=True)
class Workers(CellTable):
    """Table 6: 4 and 16 parties; and random rounds, which tell tiles apart that chosen ones find alike."""

    name: ClassVar[str] = "001/6"
    title: ClassVar[str] = "All samples by number of parties"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        found = [
            attempt({"parties": int(parties)}, printed, Setup(name, parties=int(parties)))
            for name, figures in published(self.paper, "6").items()
            for parties, printed in figures.items()
        ]
        setup = Setup("mnist", parties=16, batches="random", rounds=1000, whole=120)
        return [*found, attempt({"parties": 16, "rounds": "random"}, published(self.paper, "6")["mnist"]["16"], setup)]


@dataclass(frozen=True)
class WhileTraining(CellTable):
    """Table 7: the model is trained meanwhile; the paper does not name its optimizer."""

    name: ClassVar[str] = "001/7"
    title: ClassVar[str] = "Attack while the model is trained"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        printed = published(self.paper, "7")
        found: list[Any] = []
        for name in ("mnist", "fashion-mnist", "cifar10"):
            for optimizer, lr in (
                ("sgd", 1e-2), ("adam", 1e-6), ("sgd", 1e-3), ("sgd", 5e-4), ("sgd", 1e-4),
                ("sgd", 1e-1), ("adam", 1e-5), ("adam", 1e-4),
            ):  # fmt: skip
                training = LocalTraining(optimizer=optimizer, lr=lr)  # type: ignore[arg-type]
                setup = Setup(name, training=training, effort=InversionEffort(retry_blurs=()))
                figure = printed.get(name, {}).get(f"{lr:g}") if optimizer == "sgd" else None
                found.append(attempt({"optimizer": optimizer, "lr": lr}, figure, setup))
        return found


@dataclass(frozen=True)
class TrainingWhileAttacked(CellTable):
    """Table 8: the published attack on MNIST while Adam at 1e-6 trains the model."""

    name: ClassVar[str] = "001/8"
    title: ClassVar[str] = "The published attack while the model is trained, by round"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        printed = published(self.paper, "8")["20000"]
        return [descent.Planned("mnist", {"adam": 1e-6}, printed, stages=((20000, STEPS),), training=1e-6)]


@dataclass(frozen=True)
class Defenses(CellTable):
    """Section 4.4: fake gradients and other alterations, against attackers who do and do not know of them."""

    name: ClassVar[str] = "001/defenses"
    title: ClassVar[str] = "Fake gradients, noise, rounding and sparsity on vertical gradients"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        printed = published(self.paper, "defenses")
        found: list[Any] = [
            attempt({"defense": label, "rounds": rounds}, None, altered.federation_of(defenses, rounds))
            for label, defenses in altered.ALTERATIONS.items()
            for rounds in ("chosen", "random")
        ]
        for label, defenses in altered.FAKES.items():
            setup, cell = altered.federation_of(defenses, "chosen"), {"defense": label, "rounds": "chosen"}
            found.append(attempt({**cell, "attacker": "does not know"}, printed.get(label), setup))
            found.append(attempt({**cell, "attacker": "knows"}, None, replace(setup, knows_fakes=600)))
        return found


@dataclass(frozen=True)
class FakeTraining(CellTable):
    """Figure 7's data: training with true and with fake gradients; accuracy on held-out samples."""

    name: ClassVar[str] = "001/figure7"
    title: ClassVar[str] = "Training with true and fake gradients"
    paper: ClassVar[str] = "001"

    def cells(self) -> list[Any]:
        as_printed = (FakeGradients(candidates=1, scaled=False),)
        every = {"true": (), "fake, ranks, as printed": as_printed, **altered.FAKES}
        return [
            altered.Trained(name, {"gradients": label}, None, defenses)
            for name in ("mnist", "cifar10")
            for label, defenses in every.items()
        ]
