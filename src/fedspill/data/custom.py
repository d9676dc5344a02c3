"""A data set of your own, from a function in your own package."""

from __future__ import annotations

import importlib
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspill.dataset import Dataset, DataSource, Examples
from fedspill.errors import FedspillError, InputRefused, OwnCodeFailed, UsageError
from fedspill.failing_line import failed_with

EXPECTED = "a fedspill Dataset or a tuple (x_train, y_train, x_test, y_test)"


@dataclass(frozen=True)
class CustomData(DataSource):
    """Calls `factory`, "package.module:function", which returns a Dataset or (x_train, y_train, x_test, y_test).

    Inputs (n, ...) are taken as they are: whole numbers (tokens, for a model with torch.nn.Embedding) as int64, all
    else, bytes and truth values too, as float32. Labels (n,) are whole numbers from 0.
    """

    name = "custom"
    title = "Your own data set"
    source = "your own function, named by the option factory"

    factory: str = ""

    def read(self, folder: Path) -> Dataset:
        function = find_function(self.factory)
        try:
            made = function()
        except FedspillError:
            raise
        except Exception as error:
            raise own_code_failed(self.factory, error) from error
        if isinstance(made, Dataset):
            return made
        if not isinstance(made, tuple | list) or len(made) != 4:
            got = f"a {type(made).__name__}" + (f" of {len(made)}" if isinstance(made, tuple | list) else "")
            raise InputRefused(f"{self.factory} must return {EXPECTED}, got {got}.")
        train, test = self._examples("train", *made[:2]), self._examples("test", *made[2:])
        if train.x.shape[1:] != test.x.shape[1:]:
            shapes = f"{tuple(train.x.shape)} to train and {tuple(test.x.shape)} to test"
            raise InputRefused(f"{self.factory}: inputs must be alike but in number, got {shapes}.")
        if train.is_text != test.is_text:
            train, test = (Examples(part.x.float(), part.y) for part in (train, test))
        labels = torch.cat([train.y, test.y])
        if len(labels) and int(labels.min()) > 0:
            raise InputRefused(
                f"{self.factory}: the smallest label is {int(labels.min())}, and labels are counted from 0.",
                remedy="Subtract it: otherwise the model learns a class that nobody has.",
            )
        count = int(labels.max()) + 1 if len(labels) else 0
        return Dataset(self.name, tuple(str(number) for number in range(count)), train, test)

    def _examples(self, part: str, x: Any, y: Any) -> Examples:
        inputs, labels = self._tensor(f"x_{part}", x), self._tensor(f"y_{part}", y)
        if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
            got = f"{labels.dtype} of shape {tuple(labels.shape)}"
            raise InputRefused(
                f"{self.factory}: y_{part} must be whole numbers of shape (n,), got {got}.",
                remedy="Fedspill audits classification, so no regression; numbers cut into ranges are classes.",
            )
        if inputs.ndim < 2 or inputs.is_complex():
            raise InputRefused(f"{self.factory}: x_{part} must be of shape (n, ...), got {tuple(inputs.shape)}.")
        tokens = inputs.dtype in (torch.int16, torch.int32, torch.int64)
        return Examples(inputs.long() if tokens else inputs.float(), labels.long())

    def _tensor(self, what: str, value: Any) -> Tensor:
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise InputRefused(f"{self.factory}: {what} must be an array, got a {type(value).__name__}.") from None


def own_code_failed(factory: str, error: Exception) -> OwnCodeFailed:
    """What happened in the user's function: in full for the terminal, by type and line for everything else."""
    trace = "".join(traceback.format_exception(error))
    return OwnCodeFailed(f"The factory {factory!r} failed with {failed_with(error)}.", trace=trace)


def find_function(factory: str) -> Any:
    """What "package.module:function" names."""
    module_name, _, function_name = factory.partition(":")
    if not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise UsageError(f"The option factory must be 'package.module:function', got {factory!r}.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(
            f"The module {module_name!r} of factory {factory!r} cannot be imported: {error}.",
            remedy="Put it beside the plan, install it, or add its folder to PYTHONPATH.",
        ) from None
    except Exception as error:
        raise own_code_failed(factory, error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        problem = "does not exist" if function is None else "is not a function"
        raise UsageError(f"{function_name!r} of factory {factory!r} {problem}.")
    return function
