"""Any network of the user's own, made by a function that a plan names."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Self, final

import torch
from torch import Tensor, nn

from fedspill.dataset import Dataset
from fedspill.errors import OwnCodeFailed, UsageError
from fedspill.failing_line import failed_with
from fedspill.model_spec import ModelSpec
from fedspill.models.forward_once import forward_once
from fedspill.models.lookups import rows_picked, token_tables

_TEXTS = 64  # of the data that are looked at


@final
@dataclass(frozen=True)
class CustomModel(ModelSpec):
    """Calls `factory`, "package.module:function", as f(shape, classes), or as f() where it takes nothing."""

    name = "custom"
    title = "Your own network"
    paper = ""

    factory: str
    # Some of the data (n, length), if text; the first two have the largest and the smallest token.
    texts: Any = field(default=None, init=False, repr=False, compare=False)

    def fitted_to(self, dataset: Dataset) -> Self:
        fitted, x = replace(self), dataset.train.x
        if dataset.is_text and len(x):
            largest, smallest = x.flatten(1).amax(1).argmax(), x.flatten(1).amin(1).argmin()
            object.__setattr__(fitted, "texts", torch.cat([x[largest][None], x[smallest][None], x[:_TEXTS]]))
        return fitted

    def module(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        network = self._made(shape, classes)
        self._check(network, shape, classes)
        return network

    def _made(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        function = self._function()
        arguments = _arguments(function, self.factory, shape, classes)
        try:
            network = function(*arguments)
        except Exception as error:
            raise _failed(f"The factory {self.factory!r} failed", error) from error
        if not isinstance(network, nn.Module):
            raise UsageError(
                f"The factory {self.factory!r} must return a torch.nn.Module, but returned {type(network).__name__}."
            )
        for layer in network.modules():
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                layer.sparse = False  # the same gradient, in a form that can be added, clipped and sent
        return network

    def takes_text(self, shape: tuple[int, ...], classes: int) -> bool:
        """Whether the network reads whole numbers: it runs on nothing else, or it picks a row for each of them."""
        with torch.random.fork_rng(devices=[]):
            network = self._made(shape, classes)
        if _fault(network, torch.zeros(2, *shape)) is not None:
            read = self.texts is not None and _fault(network, self.texts[:2]) is None
            return read or _readable_text(network, shape) is not None
        return self.texts is not None and _picks_every_token(network, self.texts)

    def _check(self, network: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        """One pass must give a row of logits per input, or one logit where there are two classes.

        A model of text may give a row of logits for every place instead, to predict the token that comes next.
        """
        example = torch.zeros(2, *shape)
        error = _fault(network, example)
        if error is not None and self.texts is not None:
            example = self.texts[:2]
            error = _fault(network, example)
            if error is not None:
                numbers = f"whole numbers from {int(self.texts.min())} to {int(self.texts.max())}"
                raise _failed(f"The network of {self.factory!r} fails on {numbers}", error) from error
        elif error is not None:
            text = _readable_text(network, shape)
            if text is None:
                raise _failed(f"The network of {self.factory!r} fails on inputs of shape {shape}", error) from error
            example = text
        output = forward_once(network, example)
        if predicts_next(output, example):
            return
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        wanted: list[object] = [(2, classes)] + ([(2, 1), (2,)] if classes == 2 else [])
        if got not in wanted:
            raise UsageError(
                f"The network of {self.factory!r} must turn 2 inputs into logits of shape {(2, classes)}, got {got}.",
                remedy=f"Let the factory take (shape, classes) and build it for {classes} classes."
                if isinstance(output, Tensor)
                else "Let its forward return the logits and nothing else.",
            )

    def _function(self) -> Callable[..., Any]:
        module_name, colon, path = self.factory.partition(":")
        if not (module_name and colon and path):
            raise UsageError(
                f"The option 'factory' takes 'package.module:function', got {self.factory!r}.",
                remedy="Name a function of an importable module, for example 'my_models:small_cnn'.",
            )
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or module_name
            raise UsageError(
                f"The factory {self.factory!r} cannot be imported: there is no module {missing!r}.",
                remedy="Put it beside the plan, install the package that holds it, or add its folder to PYTHONPATH.",
            ) from error
        except Exception as error:
            raise _failed(f"Importing the module of the factory {self.factory!r} failed", error) from error
        for part in path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                close = get_close_matches(part, dir(found), n=1)
                raise UsageError(
                    f"The module {module_name!r} has no {path!r}.",
                    remedy=f"Did you mean {close[0]!r}?" if close else "",
                ) from None
        if not callable(found):
            raise UsageError(f"{self.factory!r} is a {type(found).__name__}, not a function.")
        function: Callable[..., Any] = found
        return function


def predicts_next(output: object, x: Tensor) -> bool:
    """Whether the network gave logits (n, length, tokens) for the token behind each of x (n, length)."""
    return not x.is_floating_point() and isinstance(output, Tensor) and output.shape[:-1] == x.shape


def _readable_text(network: nn.Module, shape: tuple[int, ...]) -> Tensor | None:
    """(2, ...) whole numbers that the network runs on: of zeros, or of ones where an empty text is too little."""
    for token in (0, 1):  # 0 is padding for most, and some networks take no text of nothing else
        text = torch.full((2, *shape), token, dtype=torch.int64)
        if _fault(network, text) is None:
            return text
    return None


def _picks_every_token(network: nn.Module, texts: Tensor) -> bool:
    """Whether the network turns whole numbers into tokens itself, whatever they come as."""
    try:
        tables = token_tables(network, texts) if texts.ndim == 2 else []
        return bool(tables) and len(rows_picked(network, tables[0], texts[:1])[0]) >= len(torch.unique(texts[0]))
    except Exception:
        return False  # it takes no text of this kind


def _fault(network: nn.Module, x: Tensor) -> Exception | None:
    """What the network raises on these inputs."""
    try:
        forward_once(network, x)
    except Exception as error:
        return error
    return None


def _failed(what: str, error: Exception) -> OwnCodeFailed:
    """In full for the terminal, by type and line for everything else."""
    return OwnCodeFailed(f"{what}: {failed_with(error)}.", trace="".join(traceback.format_exception(error)))


def _arguments(
    function: Callable[..., Any], factory: str, shape: tuple[int, ...], classes: int
) -> tuple[tuple[int, ...], int] | tuple[()]:
    """(shape, classes) if the function takes two arguments, nothing if it takes none."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # written in C: no signature to read
        return shape, classes
    for arguments in ((shape, classes), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return arguments
    raise UsageError(
        f"The factory {factory!r} has the signature {signature}, but is called as f(shape, classes) or f().",
        remedy="Give the other arguments defaults.",
    )
