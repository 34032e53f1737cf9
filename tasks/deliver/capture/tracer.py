"""The tracer of seed 000: what only training needs is not in the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.nn.modules import loss
from torch.utils import _pytree as pytree

from handoff.tasks.deliver.capture.calls import Call
from handoff.tasks.deliver.capture.lines import current_user_line
from handoff.tasks.optimize.passes.drop_noops import DROPPED_MODULES


def first_argument(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as given
    """Return what a dropped module gives: its `input`, however it was passed."""
    return args[0] if args else kwargs.get("input", next(iter(kwargs.values()), None))


def _pass_through(_module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as given
    return first_argument(args, kwargs)


@contextmanager
def without_training_modules(
    counts: Counter[str] | None = None, mark_loss: Callable[[Any], Any] = lambda value: value
) -> Iterator[None]:
    """Let dropout, identity and loss modules give their first argument while the body runs.

    It is for eager runs and `torch.export` what `InferenceTracer` is for `torch.fx`, so that all
    three compute the same. `counts` gets the number of calls left out, by class, and with it
    `mark_loss` what a loss gives; Dynamo, which reads what is called here, can follow neither. It
    holds for the whole process, as
    `torch.fx`'s own patch of `nn.Module.__call__` does.
    """

    def count(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as given
        assert counts is not None
        counts[type(module).__name__] += 1
        value = first_argument(args, kwargs)
        return mark_loss(value) if isinstance(module, loss._Loss) else value

    for kind in DROPPED_MODULES:
        type.__setattr__(kind, "__call__", _pass_through if counts is None else count)
    try:
        yield
    finally:
        for kind in DROPPED_MODULES:
            type.__delattr__(kind, "__call__")


class InferenceTracer(torch.fx.Tracer):
    """Traces a module without its dropout, identity and loss modules: each gives its first input.

    That holds for one made inside `forward` as well, which `torch.fx` can't trace at all (it looks
    for the module among the root's children). Another module made inside `forward` is traced
    through where it has no weights (`nn.Softmax(-1)(x)`), and refused where it has: they would be
    drawn again with each call.

    `call` says how the root is called: its named tensors become the graph's inputs and its result's
    tensors the outputs, whatever structure the forward takes and gives them in; what is no tensor
    keeps the example's value, so that `if mask is None` is decided as in that call. Without it the
    forward's own arguments become the inputs.

    `left_out` counts what was left out, by class. `companions` are the values that went into it
    beside the first: the labels that a loss was given. Each node's `meta["source"]` is the line of
    the training side's code that made it, as file and number.
    """

    def __init__(self, call: Call | None = None) -> None:
        """Begin with nothing left out."""
        super().__init__()
        self.call = call
        self.left_out: Counter[str] = Counter()
        self.companions: list[torch.fx.Node] = []

    def create_args_for_root(
        self,
        root_fn: Callable[..., Any],
        is_module: bool,
        concrete_args: dict[str, Any] | tuple[Any, ...] | None = None,
    ) -> tuple[Any, list[Any]]:
        """Return the root's function and its arguments: one input for each tensor of the call."""
        call = self.call
        if call is None:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        proxies = [self.create_proxy("placeholder", name, (), {}) for name in call.names]

        def flat_forward(root: nn.Module, *tensors: Any) -> Any:  # noqa: ANN401 - proxies of any kind
            args, kwargs = call.bind(tensors)
            return call.flatten(root_fn(root, *args, **kwargs))

        return flat_forward, [self.root, *proxies]

    def create_node(self, *args: Any, **kwargs: Any) -> torch.fx.Node:  # noqa: ANN401 - as given
        """Return a new node that knows which line made it."""
        node = super().create_node(*args, **kwargs)
        node.meta["source"] = current_user_line()
        return node

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - whatever the module gives
        """Return the first argument for what is left out, and trace everything else."""
        if isinstance(m, DROPPED_MODULES):
            self.left_out[type(m).__name__] += 1
            result = first_argument(args, kwargs)
            for leaf in pytree.tree_leaves((args, kwargs)):
                if isinstance(leaf, torch.fx.Proxy) and leaf is not result:
                    self.companions.append(leaf.node)
            return result
        if not self._is_installed(m):
            if [*m.parameters(), *m.buffers()]:
                raise NameError(f"{type(m).__name__} is made inside forward, weights and all")
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def _is_installed(self, module: nn.Module) -> bool:
        try:
            self.path_of_module(module)
        except NameError:
            return False
        return True


@contextmanager
def unwrap_functions() -> Iterator[None]:
    """Let `torch.fx` trace through the functions that `torch.fx.wrap` names, while the body runs.

    A wrapped function would be a call of the training side's own code, which a delivery can't hold.
    Python's and torch's own stay wrapped: they are there when the delivery is read.
    """
    wrapped = torch.fx._symbolic_trace._wrapped_fns_to_patch
    unwrapped = {
        key: place for key, place in wrapped.items()
        if getattr(place.get(key[1]), "__module__", "torch").partition(".")[0]
        not in ("torch", "builtins", "math", "_operator")
    }  # fmt: skip
    for key in unwrapped:
        del wrapped[key]
    try:
        yield
    finally:
        wrapped.update(unwrapped)


def trace_for_inference(
    module: nn.Module, call: Call | None = None
) -> tuple[torch.fx.GraphModule, tuple[str, ...]]:
    """Return the traced module, and notes on what is not in it.

    An input that only a dropped module used (the label of a loss) is no input of the graph.
    Raises what `torch.fx` raises for what it can't trace.
    """
    tracer = InferenceTracer(call)
    with unwrap_functions():
        graph = tracer.trace(module)
    traced = torch.fx.GraphModule(module, graph, type(module).__name__)
    if call is not None and call.losses:
        graph.eliminate_dead_code()  # What weighs losses, and adds them up.
    notes = (*describe_left_out(tracer.left_out), *_drop_companions(graph, tracer.companions))
    traced.recompile()
    return traced, notes


def describe_left_out(left_out: Mapping[str, int]) -> tuple[str, ...]:
    """Return a note for each kind of module that was left out; identity is not worth one."""
    return tuple(
        f"left out: {count} {name}" for name, count in sorted(left_out.items())
        if name != "Identity"
    )  # fmt: skip


def describe_dropped_input(name: object) -> str:
    """Return the note on an input that the deployed model doesn't have."""
    return (
        f"the input {name} was used only by the part that was left out, so it is no longer an input"
    )


def _drop_companions(graph: torch.fx.Graph, companions: list[torch.fx.Node]) -> list[str]:
    """Erase what only the dropped modules used, back to the inputs; return a note for each."""
    notes = []
    worklist = list(companions)
    while worklist:
        node = worklist.pop()
        # A name that ends in an underscore is torch's for a method that changes its object.
        changes = node.op == "call_method" and str(node.target).endswith("_")
        if node.users or node._erased or changes:
            continue
        if node.op == "placeholder":
            notes.append(describe_dropped_input(node.target))
        worklist += node.all_input_nodes
        graph.erase_node(node)
    return sorted(notes)
