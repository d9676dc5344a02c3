"""Tracing a network whose forward looks at values: along the branch that an example takes.

torch.fx stands a symbol in for the input, which has no value to decide by. Here every step is also done on an example,
and where the forward asks, the example answers. What comes out is the network as it runs on inputs of that kind.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, fx, nn

_SIDES = (32, 28, 16, 8, 64, 224)  # of images, tried in this order


def graph_of_branch(model: nn.Module) -> fx.Graph | None:
    """The graph of the branch that an example takes; None where no example is known that goes through the network.

    What the forward raises at its own is raised.
    """
    scratch = copy.deepcopy(model)  # its buffers move as the example goes through
    for example in _examples(scratch):
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                copy.deepcopy(scratch)(example)
        except Exception:  # noqa: S112 - of the wrong size for this network; the next may fit
            continue
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            graph = BranchTracer(example).trace(scratch)
        _leave_out_questions(graph)
        return graph
    return None


def _leave_out_questions(graph: fx.Graph) -> None:
    """Takes out what was only asked: its answer is in the branch taken."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)


def _examples(model: nn.Module) -> list[Tensor]:
    """Two samples of a kind that the first layer takes."""
    rng = torch.Generator().manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            return [torch.rand(2, layer.in_features, generator=rng).to(layer.weight)]
        if isinstance(layer, nn.Conv2d):
            shapes = [(2, layer.in_channels, side, side) for side in _SIDES]
            return [torch.rand(shape, generator=rng).to(layer.weight) for shape in shapes]
        if isinstance(layer, nn.Embedding):
            return []  # tokens: nothing that walks layers reads them
    return []


@final
class BranchTracer(fx.Tracer):
    """Knows the value of every node on the example."""

    def __init__(self, example: Tensor) -> None:
        super().__init__()
        self._example = example
        self._values: dict[fx.Node, Any] = {}
        self._computes = False  # while a value is computed, modules are called and not traced

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Proxy:
        proxy: fx.Proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        self._computes = True
        try:
            self._values[proxy.node] = self._value(proxy.node)
        finally:
            self._computes = False
        return proxy

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self._computes else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._computes else super().getattr(attr, attr_val, parameter_proxy_cache)

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self._values[obj.node])

    def _value(self, node: fx.Node) -> Any:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda source: self._values[source])
        if node.op == "placeholder":
            return self._example
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target)).forward(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            return getattr(self.root.get_submodule(owner), name)
        return None if node.op == "output" else node.target(*args, **kwargs)  # type: ignore[operator]
