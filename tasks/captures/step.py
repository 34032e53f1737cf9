"""Captures: one capture technology's model, judged on inputs that it wasn't captured with."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import nn

from handoff.artifacts.delivery.captures import CaptureMethod, CaptureRow
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.errors import HandoffError
from handoff.tasks.captures.messages import CaptureJob
from handoff.tasks.deliver.capture.lines import format_line
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.optimize.capture import capture, dynamic_shapes, summarize_export_error
from handoff.tasks.timing.benchmark import time_in_turns
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.inputs.plan import CaseSpec, draw_inputs, plan_cases

Tensors = tuple[torch.Tensor, ...]


class MethodUnavailable(Exception):
    """The method can't be used on this machine; the message says what is missing."""


@dataclass(frozen=True)
class Capture:
    """A captured model to call with tensors one by one, and Dynamo's graph breaks.

    It takes the signature's shapes and dtypes, and gives its outputs flattened.
    """

    call: Callable[[Tensors], Tensors]
    breaks: tuple[str, ...] = ()


def capture_by(
    method: CaptureMethod,
    module: nn.Module,
    signature: ModelSignature,
    example: Tensors,
    rows: Tensors | None,
) -> Capture:
    """Capture `module` by a method; raise what the technology raises, or `MethodUnavailable`.

    `example` and `rows` are of the signature's shapes and dtypes.
    """
    # TorchScript says with every call that it is deprecated.
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        match method:
            case "torch.fx":
                return _wrap(torch.fx.symbolic_trace(module))
            case "torch.export" | "torch.export strict":
                strict = method == "torch.export strict"
                return _wrap(capture(module, signature, rows=rows, strict=strict).module())
            case "torch.compile":
                return _capture_by_dynamo(module, example)
            case "torch.jit.trace":
                return _wrap(torch.jit.trace(module, example, check_trace=False, strict=False))
            case "torch.jit.script":
                return _wrap(torch.jit.script(module))
            case "torch.onnx":
                return _capture_by_onnx(module, signature, example)
            case "lazy tensors":
                return _capture_by_lazy_tensors(module)


def _wrap(captured: Callable[..., Any]) -> Capture:
    return Capture(lambda inputs: flatten_tensors(captured(*inputs)))


def _capture_by_dynamo(module: nn.Module, example: Tensors) -> Capture:
    """Explain the graph breaks, and let Dynamo call what it captured: no other compiler."""
    explanation = torch._dynamo.explain(module)(*example)
    breaks = []
    for reason in explanation.break_reasons:
        summary = reason.reason.strip().splitlines()[0]
        frame = reason.user_stack[-1] if reason.user_stack else None
        location = f" at {format_line((frame.filename, frame.lineno or 0))}" if frame else ""
        breaks.append(f"{summary}{location}")
    torch._dynamo.reset()
    captured = torch.compile(module, backend="eager", dynamic=True)
    return Capture(lambda inputs: flatten_tensors(captured(*inputs)), tuple(breaks))


def _capture_by_onnx(module: nn.Module, signature: ModelSignature, example: Tensors) -> Capture:
    packages = ("onnx", "onnxscript", "onnxruntime")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise MethodUnavailable(f"not installed: {', '.join(missing)}")
    program = torch.onnx.export(
        module, example, dynamo=True, dynamic_shapes=dynamic_shapes(signature), verbose=False
    )
    assert program is not None
    return Capture(lambda inputs: flatten_tensors(program(*inputs)))


def _capture_by_lazy_tensors(module: nn.Module) -> Capture:
    """Move the model to the lazy device, whose operators run when results are asked for."""
    try:
        importlib.import_module("torch._lazy.ts_backend").init()
    except (ImportError, RuntimeError) as error:
        raise MethodUnavailable(f"this torch has no lazy tensors: {error}") from error
    mark_step = importlib.import_module("torch._lazy").mark_step
    captured = copy.deepcopy(module).to("lazy")

    def call(inputs: Tensors) -> Tensors:
        result = captured(*[tensor.to("lazy") for tensor in inputs])
        mark_step()
        return tuple(tensor.cpu() for tensor in flatten_tensors(result))

    return Capture(call)


# How far two ways of computing float32 may deviate, of an output's largest value.
_RTOL = {torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_RTOL_FLOAT32 = 1e-3
_ODD_SIZES = (5, 17)
_MAX_REASON_LENGTH = 160


def try_method(
    method: CaptureMethod,
    module: nn.Module,
    signature: ModelSignature,
    example: Tensors,
    rows: Tensors | None = None,
) -> CaptureRow:
    """Capture `module` by `method`, compare it with eager elsewhere, and time it on the example.

    `example` and `rows` are of the signature's shapes and dtypes; further inputs are drawn from
    `rows` where there are any.
    """

    def eager(inputs: Tensors) -> Tensors:
        return flatten_tensors(module(*[tensor.clone() for tensor in inputs]))

    failure = _find_failure(eager, example)
    if failure:
        return CaptureRow(method, captured=False, reason=f"eager fails on the example: {failure}")
    began = time.monotonic()
    try:
        captured = capture_by(method, module, signature, example, rows)
    except MethodUnavailable as unavailable:
        return CaptureRow(method, captured=False, reason=str(unavailable))
    except Exception as error:  # noqa: BLE001 - whatever the technology raises is its answer
        return CaptureRow(method, captured=False, reason=_format_reason(error))
    capture_s = time.monotonic() - began
    wrong, tried, max_abs = _compare(eager, captured, signature, example, rows)
    speed = None if wrong else time_in_turns("example", example, eager, captured.call)
    return CaptureRow(
        road=method,
        captured=True,
        tried=tried,
        wrong=tuple(wrong),
        max_abs=max_abs,
        capture_s=capture_s,
        speedup=speed.speedup if speed else 0.0,
        speedup_low=speed.speedup_low if speed else 0.0,
        speedup_high=speed.speedup_high if speed else 0.0,
        breaks=captured.breaks,
    )


def _find_failure(eager: Callable[[Tensors], Tensors], inputs: Tensors) -> str:
    try:
        with torch.no_grad():
            eager(inputs)
    except Exception as error:  # noqa: BLE001 - a model may fail in any way; it is reported
        return _format_reason(error)
    return ""


def _compare(
    eager: Callable[[Tensors], Tensors],
    captured: Capture,
    signature: ModelSignature,
    example: Tensors,
    rows: Tensors | None,
) -> tuple[list[str], int, float]:
    """Return where it is wrong and how, the number of inputs tried, and the largest difference.

    Where eager itself fails there is nothing to be right or wrong about.
    """
    wrong, tried, largest = [], 0, 0.0
    with torch.no_grad():
        for case in other_cases(signature, example):
            inputs = draw_inputs(signature, case, rows)
            if _find_failure(eager, inputs):
                continue
            want = eager(inputs)
            tried += 1
            try:
                got = captured.call(inputs)
            except Exception as error:  # noqa: BLE001 - as above
                wrong.append(f"at {case.name}: {_format_reason(error)}")
                continue
            mismatch, deviation = _describe_difference(got, want)
            largest = max(largest, deviation)
            if mismatch:
                wrong.append(f"at {case.name}: {mismatch}")
    return wrong, tried, largest


def other_cases(signature: ModelSignature, example: Tensors) -> list[CaseSpec]:
    """Return the example's sizes with other values, and each dynamic dimension at others.

    `example` is of the signature's shapes; its dtypes don't matter. Of each dimension: the
    smallest, the one after it, and two odd ones, all of them within its range.
    """
    example_sizes = signature.measure_inputs(example)
    cases = [CaseSpec(f"other values ({seed})", example_sizes, seed) for seed in (1, 2)]
    for name, limits in signature.dimensions.items():
        for size in sorted({limits.min, limits.second, *limits.among(*_ODD_SIZES)}):
            if size != example_sizes[name]:
                cases.append(CaseSpec(f"{name} = {size}", {**example_sizes, name: size}, 0))
    return cases


def _describe_difference(got: Tensors, want: Tensors) -> tuple[str, float]:
    if [t.shape for t in got] != [t.shape for t in want]:
        return f"outputs of the shapes {[list(t.shape) for t in got]}", 0.0
    largest = 0.0
    for actual, expected in zip(got, want, strict=True):
        left, right = actual.double(), expected.double()
        finite = right.isfinite() & left.isfinite()
        scale = float(right[finite].abs().max()) if bool(finite.any()) else 0.0
        deviation = float((left - right)[finite].abs().max()) if bool(finite.any()) else 0.0
        largest = max(largest, deviation)
        allowed = _RTOL.get(expected.dtype, _RTOL_FLOAT32) * scale
        if not torch.allclose(left, right, rtol=0.0, atol=allowed, equal_nan=True):
            return f"a difference of {deviation:.3g}", largest
    return "", largest


def _format_reason(error: Exception) -> str:
    text = error.got if isinstance(error, HandoffError) else summarize_export_error(error)
    if "TorchScript interpreter" in text:
        # The traceback comes first there, and the reason last.
        text = str(error).strip().splitlines()[-1]
    return text if len(text) <= _MAX_REASON_LENGTH else text[: _MAX_REASON_LENGTH - 3] + "..."


def run(job: CaptureJob) -> CaptureRow:
    """Capture the delivered graph, as eager runs it, by the job's method."""
    delivery = read_delivery(job.staging)
    signature = delivery.contract.signature
    if delivery.cases:
        example = delivery.cases[0].inputs
    else:
        cases = plan_cases(signature, seeds=1)
        example = delivery.draw(cases[min(1, len(cases) - 1)])
    return try_method(job.method, delivery.module, signature, example, delivery.rows)
