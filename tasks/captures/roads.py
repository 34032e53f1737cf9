"""The capture technologies, each as a function from a module to something to call."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import nn

from handoff.artifacts.delivery.captures import Road
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.tasks.deliver.capture.lines import written_line
from handoff.tasks.optimize.capture import capture, dynamic_shapes
from handoff.tasks.verify.float64 import flat_tensors

Tensors = tuple[torch.Tensor, ...]


class RoadClosed(Exception):
    """The road can't be gone on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Capture:
    """A captured model to call with tensors one by one, and Dynamo's graph breaks.

    It takes the signature's shapes and dtypes, and gives its outputs flattened.
    """

    call: Callable[[Tensors], Tensors]
    breaks: tuple[str, ...] = ()


def go(
    road: Road, module: nn.Module, signature: ModelSignature, example: Tensors, rows: Tensors | None
) -> Capture:
    """Capture `module` by a road; raise what the technology raises, or `RoadClosed`.

    `example` and `rows` are of the signature's shapes and dtypes.
    """
    with _quietly(), torch.no_grad():
        match road:
            case "torch.fx":
                return _plain(torch.fx.symbolic_trace(module))
            case "torch.export" | "torch.export strict":
                strict = road == "torch.export strict"
                return _plain(capture(module, signature, rows=rows, strict=strict).module())
            case "torch.compile":
                return _dynamo(module, example)
            case "torch.jit.trace":
                return _plain(torch.jit.trace(module, example, check_trace=False, strict=False))
            case "torch.jit.script":
                return _plain(torch.jit.script(module))
            case "torch.onnx":
                return _onnx(module, signature, example)
            case "lazy tensors":
                return _lazy(module)


@contextmanager
def _quietly() -> Iterator[None]:
    # TorchScript says with every call that it is deprecated.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _plain(captured: Callable[..., Any]) -> Capture:
    return Capture(lambda inputs: flat_tensors(captured(*inputs)))


def _dynamo(module: nn.Module, example: Tensors) -> Capture:
    """Explain the graph breaks, and let Dynamo call what it captured: no other compiler."""
    explained = torch._dynamo.explain(module)(*example)
    breaks = []
    for reason in explained.break_reasons:
        first = reason.reason.strip().splitlines()[0]
        frame = reason.user_stack[-1] if reason.user_stack else None
        place = f" at {written_line((frame.filename, frame.lineno or 0))}" if frame else ""
        breaks.append(f"{first}{place}")
    torch._dynamo.reset()
    captured = torch.compile(module, backend="eager", dynamic=True)
    return Capture(lambda inputs: flat_tensors(captured(*inputs)), tuple(breaks))


def _onnx(module: nn.Module, signature: ModelSignature, example: Tensors) -> Capture:
    needed = ("onnx", "onnxscript", "onnxruntime")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise RoadClosed(f"not installed: {', '.join(missing)}")
    program = torch.onnx.export(
        module, example, dynamo=True, dynamic_shapes=dynamic_shapes(signature), verbose=False
    )
    assert program is not None
    return Capture(lambda inputs: flat_tensors(program(*inputs)))


def _lazy(module: nn.Module) -> Capture:
    """Move the model to the lazy device, whose operators run when results are asked for."""
    try:
        importlib.import_module("torch._lazy.ts_backend").init()
    except (ImportError, RuntimeError) as error:
        raise RoadClosed(f"this torch has no lazy tensors: {error}") from error
    mark_step = importlib.import_module("torch._lazy").mark_step
    captured = copy.deepcopy(module).to("lazy")

    def call(inputs: Tensors) -> Tensors:
        result = captured(*[tensor.to("lazy") for tensor in inputs])
        mark_step()
        return tuple(tensor.cpu() for tensor in flat_tensors(result))

    return Capture(call)
