"""Traceability: would the delivered graph compute what was trained? A verdict with findings.

What the graph does is judged by running it: twice, at a second size, on the golden outputs. What
it says (a module in training mode, a weight that is NaN) the intake has already noticed.
"""

from __future__ import annotations

import torch
import torch.fx

from artifacts.evidence import Finding, judge
from artifacts.signature import ModelSignature
from artifacts.steps import TraceabilityJob, TraceabilityResult
from tasks.capture import reason_of
from tasks.float64 import flat_tensors
from tasks.intake import LoadedDelivery, read_delivery
from tasks.plan import CaseSpec, draw_inputs, plan_cases
from tasks.threads import half_of_the_threads

Tensors = tuple[torch.Tensor, ...]

# The golden outputs were computed on the training side's machine, whose kernels sum in another
# order; a float32 network of a hundred layers moves by less than this from that alone.
_GOLDEN_RTOL = {torch.float32: 1e-3, torch.float64: 1e-6, torch.float16: 5e-2, torch.bfloat16: 1e-1}


def run(job: TraceabilityJob) -> TraceabilityResult:
    """Return the verdict on the delivery in `job.staging`."""
    delivery = read_delivery(job.staging)
    signature = delivery.contract.signature
    findings = list(delivery.findings)
    findings += _unused_inputs(delivery.module)
    with half_of_the_threads():
        findings += _behaviour(delivery, signature)
        findings += _other_sizes(delivery.module, signature)
        findings += _goldens(delivery)
    # An example that fails is found by each check that runs it.
    found = tuple(dict.fromkeys(findings))
    return TraceabilityResult(judge(found), found)


def _line(node: torch.fx.Node) -> str:
    return f"module.py:{node.meta['module_line']}" if "module_line" in node.meta else "module.py"


def _unused_inputs(module: torch.fx.GraphModule) -> list[Finding]:
    return [
        Finding(
            "unused-input",
            "limit",
            f"the input {node.target} is used by nothing",
            "Drop it from the model, or check that it was not lost in tracing",
            _line(node),
        )
        for node in module.graph.find_nodes(op="placeholder")
        if not node.users
    ]


def _behaviour(delivery: LoadedDelivery, signature: ModelSignature) -> list[Finding]:
    """Run the same input twice, and compare outputs, inputs and state before and after."""
    module = delivery.module
    inputs = _first_inputs(delivery, signature)
    given, again = ([tensor.clone() for tensor in inputs] for _ in range(2))
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    try:
        first, second = _call(module, tuple(given)), _call(module, tuple(again))
    except Exception as error:  # noqa: BLE001 - a model may fail in any way; each is the finding
        return [_example_fails(error)]
    findings = []
    if not _same(first, second):
        findings.append(
            Finding(
                "not-repeatable",
                "unsound",
                "the same input gives different outputs when it is run twice",
                "Take random operators, active dropout and state out of the forward",
                _random_line(module),
            )
        )
    changed = [n for n, t in module.state_dict().items() if not _same((t,), (state[n],))]
    if changed:
        findings.append(
            Finding(
                "changes-state",
                "unsound",
                f"running the model changes {', '.join(changed[:3])}",
                "Deliver it in evaluation mode and take updates of buffers out of the forward",
            )
        )
        module.load_state_dict(state)
    if not _same(tuple(given), inputs):
        findings.append(
            Finding(
                "changes-input",
                "limit",
                "running the model changes its input in place",
                "Clone the input in the forward, or make sure that no caller uses it again",
            )
        )
    return findings


def _example_fails(error: Exception) -> Finding:
    return Finding(
        "example-fails",
        "unsound",
        f"the model fails on its own example: {reason_of(error)}",
        "Deliver it again with example inputs that it can be called with",
    )


def _first_inputs(delivery: LoadedDelivery, signature: ModelSignature) -> Tensors:
    if delivery.cases:
        return tuple(tensor.clone() for tensor in delivery.cases[0].inputs)
    return draw_inputs(signature, plan_cases(signature, seeds=1)[0])


def _random_line(module: torch.fx.GraphModule) -> str:
    for node in module.graph.nodes:
        name = getattr(node.target, "__name__", str(node.target))
        if node.op.startswith("call_f") and ("rand" in name or "dropout" in name):
            return _line(node)
    return ""


def _other_sizes(module: torch.fx.GraphModule, signature: ModelSignature) -> list[Finding]:
    """Run every dynamic dimension at its smallest and at a second size."""
    findings = []
    for name, limits in signature.dimensions.items():
        for size in sorted({limits.min, min(limits.min + 1, limits.max), min(5, limits.max)}):
            if size not in limits:
                continue
            sizes = {other: max(d.min, min(3, d.max)) for other, d in signature.dimensions.items()}
            inputs = draw_inputs(signature, CaseSpec("other size", {**sizes, name: size}, 0))
            try:
                _call(module, inputs)
            except Exception as error:  # noqa: BLE001 - as above: any failure is the finding
                findings.append(
                    Finding(
                        "size-baked-in",
                        "unsound",
                        f"the model fails for {name} = {size}: {reason_of(error)}",
                        f"Write {name} as x.shape[...] in the forward, or declare it as fixed",
                    )
                )
                break
    return findings


def _goldens(delivery: LoadedDelivery) -> list[Finding]:
    golden = [case for case in delivery.cases if case.outputs is not None]
    if not golden:
        return [
            Finding(
                "no-golden-outputs",
                "limit",
                "the delivery holds no outputs of the original model to compare with",
                "Deliver with 'handoff deliver', which stores them",
            )
        ]
    for index, case in enumerate(golden):
        try:
            got = _call(delivery.module, tuple(tensor.clone() for tensor in case.inputs))
        except Exception as error:  # noqa: BLE001 - as above: any failure is the finding
            return [_example_fails(error)]
        if len(got) != len(case.outputs or ()):
            return [_golden_mismatch(index, f"{len(got)} outputs")]
        for want, have in zip(case.outputs or (), got, strict=True):
            if want.shape != have.shape or want.dtype != have.dtype:
                return [_golden_mismatch(index, f"{have.dtype} of shape {list(have.shape)}")]
            if difference := _difference(have, want):
                return [_golden_mismatch(index, difference)]
    return []


def _difference(have: torch.Tensor, want: torch.Tensor) -> str:
    """Return how `have` differs from `want` beyond what another machine explains, or nothing."""
    finite = torch.isfinite(want)
    if not _same((have[~finite],), (want[~finite],)):
        return "other elements that are NaN or infinite"
    # Infinities stay out of the bound's size: with one in it, any number would do.
    got, given = have[finite].double(), want[finite].double()
    rtol = _GOLDEN_RTOL.get(want.dtype, 0.0)
    atol = rtol * float(given.abs().max()) if given.numel() else 0.0
    if torch.allclose(got, given, rtol=rtol, atol=atol):
        return ""
    return f"a difference of {float((got - given).abs().max()):.3g}"


def _golden_mismatch(index: int, got: str) -> Finding:
    return Finding(
        "golden-mismatch",
        "unsound",
        f"the delivered graph doesn't give the original model's outputs on example {index}: {got}",
        "The graph, or its weights, are not those of the model: trace it again and deliver it anew",
    )


def _call(module: torch.fx.GraphModule, inputs: Tensors) -> Tensors:
    with torch.no_grad():
        return flat_tensors(module(*inputs))


def _same(left: Tensors, right: Tensors) -> bool:
    return len(left) == len(right) and all(
        a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
        for a, b in zip(left, right, strict=True)
    )
