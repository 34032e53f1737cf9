"""The tracer of seed 000: what only training needs is not in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx
from torch import nn

from tasks.passes.drop_noops import DROPPED_MODULES


class InferenceTracer(torch.fx.Tracer):
    """Traces a module without its dropout, identity and loss modules: each gives its first input.

    That holds for a loss made inside `forward` as well, which `torch.fx` can't trace at all (it
    looks for the module among the root's children). `dropped` counts what was left out, by class.
    """

    def __init__(self) -> None:
        """Begin with nothing dropped."""
        super().__init__()
        self.dropped: dict[str, int] = {}

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # noqa: ANN401 - whatever the module gives
        """Return the first argument for what is dropped, and trace everything else."""
        if isinstance(m, DROPPED_MODULES):
            name = type(m).__name__
            self.dropped[name] = self.dropped.get(name, 0) + 1
            return args[0] if args else next(iter(kwargs.values()))
        return super().call_module(m, forward, args, kwargs)


def trace_for_inference(module: nn.Module) -> tuple[torch.fx.GraphModule, dict[str, int]]:
    """Return the traced module, and how many modules of which class were left out.

    Raises what `torch.fx` raises for what it can't trace.
    """
    tracer = InferenceTracer()
    graph = tracer.trace(module)
    return torch.fx.GraphModule(module, graph, type(module).__name__), tracer.dropped
