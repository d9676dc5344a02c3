"""The parts of a network in the order they run, whatever its class: its graph, cut wherever one tensor carries all.

A chain of modules is its modules. Of any other network, torch.fx traces what happens to the input; where one tensor
alone leads from what is done before to what is done after, the graph can be cut. What lies between two cuts is one
part: a module of the network by its own name, a function as the module that does the same, or a block of several
(a residual connection, an attention) as one module. A network that branches on values is traced along the branch that
an example takes.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from fedspill.errors import NotAChain
from fedspill.models.branch_tracer import graph_of_branch

F = nn.functional
_TORCH = Path(torch.__file__).parent
# Functions and methods that a module stands for exactly; options beside the input make them a block.
_SAME: dict[Any, type[nn.Module]] = {
    F.relu: nn.ReLU, torch.relu: nn.ReLU, "relu": nn.ReLU, "relu_": nn.ReLU,
    F.sigmoid: nn.Sigmoid, torch.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    F.tanh: nn.Tanh, torch.tanh: nn.Tanh, "tanh": nn.Tanh,
    F.elu: nn.ELU, F.gelu: nn.GELU, F.silu: nn.SiLU, F.softplus: nn.Softplus,
    F.leaky_relu: nn.LeakyReLU,
}  # fmt: skip
# Options of those functions that the module takes by the same name, in the order of the function.
_OPTIONS: dict[Any, tuple[str, ...]] = {F.elu: ("alpha",), F.gelu: ("approximate",), F.leaky_relu: ("negative_slope",)}
_RESHAPES = (torch.flatten, torch.reshape, "flatten", "view", "reshape")


def module_chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts by name, in the order they run; raises NotAChain with the line that stopped the tracing.

    A network whose layer is used twice is none: what was observed of that layer is of two places at once.
    """
    found = _nested(model) if isinstance(model, nn.Sequential) else _traced(model)
    seen = [id(parameter) for _, module in found for parameter in module.parameters()]
    if len(set(seen)) < len(seen):
        raise NotAChain("a layer is used more than once")
    return found


def split_before_parameters(model: nn.Module) -> tuple[nn.Module, nn.Module] | None:
    """What is done before the first layer that learns, and the rest, whose parameters have the names that they had.

    None where nothing is done before but to lay samples out flat; raises NotAChain as module_chain does.
    """
    graph, entry = _traced_graph(model)
    parts, before = _cuts(graph, entry), 0
    while before < len(parts) and not any(_learns(model, node) for node in parts[before][1]):
        before += 1
    front, rest = ([node for _, nodes in part for node in nodes] for part in (parts[:before], parts[before:]))
    if not rest or all(_is_reshape(node) for node in front):
        return None
    return _block(model, entry, front), _block(model, parts[before][0], rest)


def kind_of(module: nn.Module) -> str:
    """What a part is, for people: its class, or that it is several layers which cannot be told apart."""
    return "a block of several layers" if isinstance(module, fx.GraphModule) else type(module).__name__


def _nested(model: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """The leaves of nested nn.Sequential."""
    found: list[tuple[str, nn.Module]] = []
    for name, module in model.named_children():
        if isinstance(module, nn.Sequential):
            found += [(f"{name}.{under}", leaf) for under, leaf in _nested(module)]
        else:
            found.append((name, module))
    return found


def _traced(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [_part(model, number, *cut) for number, cut in enumerate(_cuts(*_traced_graph(model)))]


def _traced_graph(model: nn.Module) -> tuple[fx.Graph, fx.Node]:
    """The graph and its one input."""
    graph = _graph(model)
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        raise NotAChain(f"{type(model).__name__} takes {len(inputs)} inputs, and one is expected")
    used: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            used[str(node.target)] = used.get(str(node.target), 0) + 1
    if any(many > 1 and _has_parameters(model, name) for name, many in used.items()):
        raise NotAChain("a layer is used more than once")
    return graph, inputs[0]


def _learns(model: nn.Module, node: fx.Node) -> bool:
    """Whether a parameter takes part in it."""
    modules = [str(node.target)] if node.op == "call_module" else []
    attributes = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return any(_has_parameters(model, name) for name in modules) or not parameters.isdisjoint(attributes)


def _graph(model: nn.Module) -> fx.Graph:
    """Of all inputs where that can be had, else of the branch that an example takes."""
    try:
        with _length_can_be_asked(model):
            return fx.Tracer().trace(model)
    except Exception as error:  # whatever the user's forward does to a stand-in for its input
        stopped = f"{type(model).__name__} cannot be traced: {type(error).__name__} at {_own_line(error)}"
    try:
        with _length_can_be_asked(model):
            graph = graph_of_branch(model)
    except Exception:  # the first line that stopped it says more
        graph = None
    if graph is None:
        raise NotAChain(stopped)
    return graph


@contextmanager
def _length_can_be_asked(model: nn.Module) -> Iterator[None]:
    """Lets `len(x)` in the user's own code be traced as x.size(0); Python itself takes nothing but a number for it."""
    modules = {type(module).forward for module in model.modules()}
    spaces = [space for forward in modules if "len" not in (space := getattr(forward, "__globals__", {"len": len}))]
    own = {id(space): space for space in spaces if not str(space.get("__name__")).startswith("torch.")}.values()
    for space in own:
        space["len"] = _length
    try:
        yield
    finally:
        for space in own:
            del space["len"]


def _length(x: Any) -> Any:
    return x.size(0) if isinstance(x, fx.Proxy) else len(x)


def _own_line(error: BaseException) -> str:
    """The last line of the user's own code before torch took over."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _TORCH not in Path(frame.filename).parents and frame.filename != __file__]
    last = own[-1] if own else frames[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _cuts(graph: fx.Graph, entry: fx.Node) -> list[tuple[fx.Node, list[fx.Node]]]:
    """(what comes in, the nodes that make what goes out), from the input to the output."""
    work = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    place = {node: number for number, node in enumerate(work)}
    after = len(work)
    last_use = {node: max((place.get(user, after) for user in node.users), default=-1) for node in [entry, *work]}
    parts, incoming, started = [], entry, 0
    open_until = last_use[entry]
    for number, node in enumerate(work):
        if open_until <= number:  # nothing made before is needed after it
            parts.append((incoming, work[started : number + 1]))
            incoming, started, open_until = node, number + 1, last_use[node]
        else:
            open_until = max(open_until, last_use[node])
    return parts


def _part(model: nn.Module, number: int, incoming: fx.Node, nodes: Sequence[fx.Node]) -> tuple[str, nn.Module]:
    first = nodes[0]
    if len(nodes) == 1 and first.op == "call_module":
        return str(first.target), model.get_submodule(str(first.target))
    if all(_is_reshape(node) for node in nodes):
        return f"flatten{number}", nn.Flatten()
    if len(nodes) == 1 and (same := _same_module(first)) is not None:
        return f"function{number}", same.train(model.training)
    return f"block{number}", _block(model, incoming, nodes)


def _block(model: nn.Module, incoming: fx.Node, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """Several nodes as one module."""
    graph = fx.Graph()
    held: dict[fx.Node, fx.Node] = {incoming: graph.placeholder("x")}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in held and source.op == "get_attr":
                held[source] = graph.node_copy(source)
        held[node] = graph.node_copy(node, lambda source: held[source])
    graph.output(held[nodes[-1]])
    return fx.GraphModule(model, graph)


def _is_reshape(node: fx.Node) -> bool:
    """Whether it only lays samples out flat: a view to (samples, -1) or a flatten from the second axis on.

    Asking for a shape, and for a part of one, belongs to it; a part of the values does not.
    """
    if node.op == "call_module":
        return False
    if node.target == operator.getitem:
        return isinstance(node.args[0], fx.Node) and _asks_for_shape(node.args[0])
    if _asks_for_shape(node):
        return True
    if node.target not in _RESHAPES:
        return False
    if node.target in (torch.flatten, "flatten"):
        return (*node.args[1:], *node.kwargs.values())[:1] == (1,)
    return len(node.args) in (2, 3) and -1 in (node.args[-1] if isinstance(node.args[-1], tuple) else node.args)


def _asks_for_shape(node: fx.Node) -> bool:
    return node.target == "size" or (node.target is getattr and node.args[1:] == ("shape",))


def _same_module(node: fx.Node) -> nn.Module | None:
    """The module that does what a function does, with its options; None where there is none.

    Dropout counts as switched on: whether it is while clients train cannot be read off a graph.
    """
    given = {name: value for name, value in node.kwargs.items() if name != "inplace"}
    if node.target is F.dropout:
        share = (*node.args[1:2], given.get("p", 0.5))[0]
        return nn.Dropout(share) if isinstance(share, float | int) else None
    names = _OPTIONS.get(node.target, ())
    options = dict(zip(names, node.args[1:], strict=False)) | given
    plain = all(isinstance(value, float | int | str) for value in options.values())
    if node.target not in _SAME or not plain or not set(options) <= set(names) or len(node.args) > len(names) + 2:
        return None
    return _SAME[node.target](**options)


def _has_parameters(model: nn.Module, name: str) -> bool:
    try:
        return next(model.get_submodule(name).parameters(), None) is not None
    except AttributeError:
        return True  # a parameter by itself
