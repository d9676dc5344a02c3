"""The federations of paper 004, on the data at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from fedspill.data.adult_users import AdultUsers
from fedspill.data.cop_mode_standin import CopModeStandin
from fedspill.dataset import Dataset, Examples
from fedspill.defenses.model_checks.own_data_trial import roc_area
from fedspill.partitions.by_user import ByUser
from fedspill.partitions.iid import IID
from fedspill.training import Tensors

from .experiment import FederationSetting, Repetition, repeat

SEED = 2024  # the first held-out repetition; development used 100 to 103
DATA = ("adult", "cop-mode stand-in", "celeba")
SETTINGS = {
    "adult": FederationSetting(ByUser(), 93, (128, 64), 5000, 5),
    "adult, every column": FederationSetting(ByUser(), 93, (128, 64), 5000, 5),
    "cop-mode stand-in": FederationSetting(ByUser(), 93, (128, 64), 5000, 5),
    "celeba": FederationSetting(IID(), 10, (1024, 512), 300, 2),
}
ATTRIBUTES = {
    "adult": ("sex=Male", "marital-status=Married-civ-spouse", "native-country=United-States"),
    "adult, every column": ("sex=Male", "marital-status=Married-civ-spouse"),
    "cop-mode stand-in": ("isWeekend", "isTopAppRequestingApp", "isForeground"),
    "celeba": ("Male", "Young", "Heavy_Makeup"),
}


@dataclass(frozen=True)
class Case:
    """One repetition of one setting: what it trains on, and with which activation."""

    data: str
    elu: bool
    number: int  # of the repetition; negative ones are for development
    attribute: str = ""  # empty: the first of the data set
    per_cell: int = 8  # targets for each of member or not, attribute or not
    device: str = "cpu"

    @property
    def seed(self) -> int:
        return SEED + self.number if self.number >= 0 else 99 - self.number

    @property
    def asked(self) -> str:
        return self.attribute or ATTRIBUTES[self.data][0]

    @property
    def setting(self) -> FederationSetting:
        return SETTINGS[self.data]

    def cells(self) -> dict[str, str | int | bool]:
        return {"data": self.data, "attribute": self.asked, "elu": self.elu, "rep": self.number}


@lru_cache(maxsize=2)
def load(data: str, seed: int, folder: Path) -> Dataset:
    if data == "adult":
        return AdultUsers(seed=seed).load(folder)
    if data == "adult, every column":
        return AdultUsers(seed=seed, without=("relationship",)).load(folder)
    if data == "cop-mode stand-in":
        return CopModeStandin(seed=seed).load()
    prepared = folder / "celeba.pt"  # embedded beforehand, where images cannot be decoded
    if prepared.is_file():
        kept = torch.load(prepared, weights_only=True)
        n = kept["n"]
        train, test = Examples(kept["x"][:n], kept["y"][:n]), Examples(kept["x"][n:], kept["y"][n:])
        return Dataset("celeba-embedded", ("not Attractive", "Attractive"), train, test, tuple(kept["columns"]))
    from fedspill.data.celeba_embedded import CelebaEmbedded

    return CelebaEmbedded().load(folder)


def trained(case: Case, folder: Path, rounds: int | None = None) -> Repetition:
    """The repetition with its benign models up to `rounds`, on the case's device."""
    rep = repeat(
        load(case.data, case.seed, folder),
        case.setting,
        case.seed,
        elu=case.elu,
        attribute=case.asked,
        per_cell=case.per_cell,
        rounds=rounds or case.setting.rounds,
        device=case.device,
    )
    return rep.to(case.device)


def model_area(rep: Repetition, state: Tensors) -> float | None:
    """The model's ROC area on the test records."""
    test = rep.dataset.test
    logits = rep.dense.pre_activations(on_cpu(state), test.x, rep.dense.hidden)
    return roc_area(logits, test.y)


def on_cpu(state: Tensors) -> Tensors:
    return {name: tensor.cpu() for name, tensor in state.items()}
