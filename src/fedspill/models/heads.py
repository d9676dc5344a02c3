"""Which layer leaks labels: the last linear one.

Attacks read parameters by name, so the layer must be one whose gradient means what they take it to mean: a plain
`features @ weight.T + bias` that runs once per input and has its parameters to itself. Whatever else is refused, with
the reason. Given an example input, the layer is found by watching the network run; without one, by registration order.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedParameter

from fedspill.errors import NoHead
from fedspill.models.forward_once import forward_once

_UNSEEN = "A product with a bare parameter, or torch.nn.functional.linear, is not seen: use torch.nn.Linear."


@dataclass(frozen=True)
class Head:
    """The last layer; `weight` (classes, features) and `bias` (classes) are parameter names of the model."""

    name: str
    weight: str
    bias: str | None
    classes: int
    features: int
    plain: bool = True  # features @ weight.T + bias; else each row of the weight is of one class, see class_rows.py


def last_linear(model: nn.Module, example: Tensor | None = None, *, classes: int | None = None) -> Head:
    """The linear layer that gives the model's logits; with `classes`, it must have as many outputs.

    A final log-softmax is let pass: cross-entropy and softmax see through it, so the gradient is that of the logits. So
    is what another layer adds to the logits (wide and deep networks): it leaves the gradient as it is.
    """
    _refuse_lazy(model)
    if example is None:
        name, layer = _registered_last(model)
    else:
        call = _giving_the_output(model, _watch(model, example), example)
        name, layer = call.name, call.layer
    _refuse_indirect(model, name, layer)
    if classes is not None and layer.out_features != classes:
        raise NoHead(
            f"Expected a last linear layer of {classes} outputs, one per class; {name!r} has {layer.out_features}.",
            remedy="Build the model for the data's classes.",
        )
    return Head(name, *_parameter_names(name, layer), layer.out_features, layer.in_features)


@dataclass(frozen=True, eq=False)
class _Call:
    """One run of a linear layer."""

    name: str
    layer: nn.Linear
    features: Tensor
    logits: Tensor
    version: int  # how often the logits had been changed in place when the layer returned them


@dataclass(eq=False)
class _Watched:
    """What was seen of one forward pass."""

    calls: list[_Call] = field(default_factory=list)  # of linear layers, in order
    last_trained: tuple[str, nn.Module] | None = None  # the layer with parameters that ran last, of any kind
    output: object = None


def _watch(model: nn.Module, example: Tensor) -> _Watched:
    watched = _Watched()
    handles = [
        layer.register_forward_hook(partial(_note, watched, name), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) or (list(layer.parameters()) and not list(layer.children()))
    ]
    try:
        watched.output = forward_once(model, example)
    except Exception as error:
        raise NoHead(
            f"The model fails on the example of shape {tuple(example.shape)}: {type(error).__name__}: {error}.",
            remedy="Pass a batch of inputs of the shape that the model takes.",
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return watched


def _note(
    watched: _Watched, name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
) -> None:
    """What each layer with parameters reports when it has run."""
    watched.last_trained = (name, layer)
    features = args[0] if args else kwargs.get("input")
    if isinstance(layer, nn.Linear) and isinstance(features, Tensor) and isinstance(output, Tensor):
        watched.calls.append(_Call(name, layer, features, output, output._version))


def _giving_the_output(model: nn.Module, watched: _Watched, example: Tensor) -> _Call:
    """The run of a linear layer whose result is the model's output, or a part of its sum; else the reason."""
    output = watched.output
    if not isinstance(output, Tensor):
        raise NoHead(
            f"Expected the model to return one tensor of logits, got a {type(output).__name__}.",
            remedy="Wrap it in a module whose forward returns the logits alone.",
        )
    for call in reversed(watched.calls):
        if _is_same(output, call.logits) or _is_log_softmax(output, call.logits):
            if call.logits._version != call.version:
                raise NoHead(
                    f"The outputs of {call.name!r} are changed in place before the model returns them.",
                    remedy="Return the logits as the last linear layer gives them, and move what follows to the loss.",
                )
            _refuse_repeated(call, watched, example)
            _refuse_overridden(call)
            return call
    for call in reversed(watched.calls):
        if call.logits.shape == output.shape and _is_added(model, example, call.name):
            _refuse_repeated(call, watched, example)
            _refuse_overridden(call)
            return call
    raise _why_not(watched, output)


def _is_added(model: nn.Module, example: Tensor, name: str) -> bool:
    """Whether what the layer gives goes into the output as it is: a push at the layer comes out as the same push.

    It must do so with other weights too, since a scale or normalisation behind the layer may change nothing at first.
    """
    other = copy.deepcopy(model)
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5 + torch.rand(parameter.shape, generator=chance).to(parameter))
    before = forward_once(other, example)
    assert isinstance(before, Tensor)
    push = torch.randn(before.shape, generator=chance).to(before) * (1 + before.abs().mean())
    other.get_submodule(name).register_forward_hook(lambda _layer, _args, logits: logits + push)
    after = forward_once(other, example)
    return isinstance(after, Tensor) and torch.allclose(after - before, push, rtol=1e-2, atol=1e-3 * float(push.std()))


def _is_same(output: Tensor, logits: Tensor) -> bool:
    """The very tensor, or a view of it that at most drops the column of a single logit."""
    shapes = [logits.shape, logits.shape[:-1]] if logits.shape[-1:] == (1,) else [logits.shape]
    return output.numel() > 0 and output.data_ptr() == logits.data_ptr() and output.shape in shapes


def _is_log_softmax(output: Tensor, logits: Tensor) -> bool:
    if output.shape != logits.shape or logits.shape[-1] < 2:
        return False
    return torch.allclose(output, functional.log_softmax(logits, dim=-1), rtol=1e-4, atol=1e-5)


def _why_not(watched: _Watched, output: Tensor) -> NoHead:
    expected = "Expected the model's output to be that of a linear layer"
    if watched.last_trained is not None and not isinstance(watched.last_trained[1], nn.Linear):
        name, layer = watched.last_trained
        convolution = "A 1x1 convolution and a global average equal the average and a linear layer: use these."
        return NoHead(
            f"{expected}; the last layer to run is {name!r} ({type(layer).__name__}).",
            remedy=convolution
            if isinstance(layer, nn.Conv2d)
            else f"Return the outputs of a torch.nn.Linear. {_UNSEEN}",
        )
    if not watched.calls:
        return NoHead(f"{expected}; no torch.nn.Linear runs.", remedy=_UNSEEN)
    call = watched.calls[-1]
    for what, function in (("softmax", _softmax), ("sigmoid", torch.sigmoid)):
        if output.shape == call.logits.shape and torch.allclose(output, function(call.logits), atol=1e-5):
            return NoHead(
                f"{expected}; the model returns the {what} of {call.name!r}.",
                remedy=f"Return the logits, and move the {what} to the loss.",
            )
    return NoHead(
        f"{expected}; the last to run is {call.name!r}, with outputs of shape {tuple(call.logits.shape)}, "
        f"but the model returns something else, of shape {tuple(output.shape)}.",
        remedy="Return the logits as the last linear layer gives them.",
    )


def _softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, dim=-1)


def _registered_last(model: nn.Module) -> tuple[str, nn.Linear]:
    """The linear layer that was registered last, unless what comes behind it may run after it."""
    modules = list(model.named_modules())
    # Attention registers its output projection as a linear layer, but never calls it as one.
    linears = [
        (position, name, layer)
        for position, (name, layer) in enumerate(modules)
        if isinstance(layer, nn.Linear) and not isinstance(layer, NonDynamicallyQuantizableLinear)
    ]
    if not linears:
        raise _no_linear(model)
    position, last_name, last = linears[-1]
    doubtful = [
        f"{name!r} ({type(layer).__name__})"
        for name, layer in modules[position + 1 :]
        if isinstance(layer, nn.Softmax | nn.LogSoftmax | nn.Sigmoid) or list(layer.parameters(recurse=False))
    ]
    if type(last).forward is not nn.Linear.forward:
        doubtful.append("its own forward method")
    if doubtful:
        raise NoHead(
            f"Expected the last linear layer, {last_name!r}, to be the end of the model; "
            f"{', '.join(doubtful)} may change what it gives.",
            remedy="Pass an example input, so that the model can be watched.",
        )
    return last_name, last


def _no_linear(model: nn.Module) -> NoHead:
    some = any(isinstance(layer, nn.Linear) for layer in model.modules())
    found = "none of its torch.nn.Linear layers runs" if some else "it has no torch.nn.Linear layer"
    return NoHead(
        f"Expected a model with a last linear layer; {found}.",
        remedy=_UNSEEN,
    )


def _refuse_lazy(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise NoHead(
                f"Expected a model whose layers have their sizes; {name!r} is lazy and has none yet.",
                remedy="Run the model on one batch first, or use layers of given sizes.",
            )


def _refuse_repeated(call: _Call, watched: _Watched, example: Tensor) -> None:
    times = sum(other.layer is call.layer for other in watched.calls)
    if times > 1:
        raise NoHead(
            f"Expected {call.name!r} to run once per forward pass; it runs {times} times, "
            "so its gradient mixes several inputs of one example.",
            remedy="Use a layer of its own for each place.",
        )
    if call.logits.shape != (len(example), call.layer.out_features):
        raise NoHead(
            f"Expected {call.name!r} to give one row per example, {(len(example), call.layer.out_features)}; "
            f"it gives {tuple(call.logits.shape)}.",
            remedy="Pass the example as a batch; a layer that runs per position or token is not supported.",
        )


def _refuse_overridden(call: _Call) -> None:
    """Recomputes the layer, which finds subclasses of nn.Linear that do something else."""
    expected = functional.linear(call.features, call.layer.weight, call.layer.bias).detach()
    if not torch.allclose(call.logits, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise NoHead(
            f"Expected {call.name!r} to give features @ weight.T + bias; "
            f"its class {type(call.layer).__name__} computes something else.",
            remedy="Use torch.nn.Linear for this layer.",
        )


def _refuse_indirect(model: nn.Module, name: str, layer: nn.Linear) -> None:
    """Refuses parameters that are computed from others, or that another layer uses too."""
    own = dict(layer.named_parameters(recurse=False))
    for part in ("weight", "bias"):
        if part not in own and getattr(layer, part) is not None:
            raise NoHead(
                f"Expected the {part} of {name!r} to be a parameter; it is computed from others "
                "(weight normalisation, spectral normalisation, pruning, or another parametrization).",
                remedy="Remove the parametrization from this layer.",
            )
    for other_name, other in model.named_modules():
        if other is not layer and any(
            shared is mine for shared in other.parameters(recurse=False) for mine in own.values()
        ):
            raise NoHead(
                f"Expected {name!r} to have its parameters to itself; {other_name!r} ({type(other).__name__}) "
                "uses them too, so their gradient is a sum of both.",
                remedy="Untie the two layers.",
            )


def _parameter_names(name: str, layer: nn.Linear) -> tuple[str, str | None]:
    prefix = f"{name}." if name else ""
    return f"{prefix}weight", None if layer.bias is None else f"{prefix}bias"
