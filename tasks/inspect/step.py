"""Traceability: would the delivered graph compute what was trained? A verdict with findings.

What the graph says is read off it, what it does is judged by running it: twice, at other sizes, on
other values, on part of a batch, on the golden outputs. What the files say (a module in training
mode, a weight that is NaN) the intake has already noticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import torch
from torch import nn

from handoff.artifacts.delivery.contract import CONTRACT_FILE, DeliveryContract, Lineage
from handoff.artifacts.delivery.golden import golden_difference
from handoff.artifacts.errors import DeliveryUnsound
from handoff.artifacts.release.evidence import Finding, judge
from handoff.tasks.inspect import behaviour, graph
from handoff.tasks.inspect.behaviour import Tensors, call, example_failure
from handoff.tasks.inspect.messages import TraceabilityJob, TraceabilityResult
from handoff.tasks.inspect.ranges import input_ranges
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from handoff.tasks.optimize.capture import capture
from handoff.tasks.timing.conditions import sharing_threads
from handoff.tasks.verify.inputs.plan import plan_cases
from handoff.tasks.verify.mha_fastpath import by_definition


def missing_lineage(lineage: Lineage, required: tuple[str, ...]) -> Iterator[Finding]:
    """Find the fields of the lineage that the recipe requires, and those that are empty at all."""
    empty = [field.name for field in fields(lineage) if not getattr(lineage, field.name)]
    missing = [name for name in empty if name in required]
    if missing:
        yield Finding(
            "lineage-incomplete",
            "unsound",
            f"the recipe requires {' and '.join(missing)}, which the delivery doesn't say",
            _lineage_remedy(missing, has_commit=bool(lineage.commit)),
            CONTRACT_FILE,
        )
    elif unknown := [name for name in empty if name in ("repository", "commit")]:
        yield Finding(
            "lineage-incomplete",
            "note",
            f"the delivery doesn't say its {' and '.join(unknown)}",
            _lineage_remedy(unknown, has_commit=bool(lineage.commit)),
            CONTRACT_FILE,
        )


# What 'handoff deliver' reads off the git checkout that it runs in.
_FROM_GIT = {"repository", "commit", "author"}


def _lineage_remedy(missing: Sequence[str], *, has_commit: bool) -> str:
    """Return how each of the fields is given: in the file, by deliver's option, by git."""
    lines = ", ".join(f'{name} = "..."' for name in missing)
    keywords = ", ".join(f'{name}="..."' for name in missing)
    remedy = f"Write {lines} under [source] in {CONTRACT_FILE}, or pass lineage=Lineage({keywords})"
    if not _FROM_GIT.issuperset(missing):
        return remedy
    remote = " that has a remote (git remote add origin URL)" if has_commit else ""
    return f"{remedy}, or deliver from a clean git checkout{remote}"


def omitted_parts(contract: DeliveryContract) -> Iterator[Finding]:
    """Find what the capture left out, and which arguments it fixed to the example's values."""
    for part in contract.left_out:
        yield Finding(
            "left-out",
            "note",
            part.replace("left out: ", "not in the graph: ", 1),
            "Nothing, if only training needs it",
            "delivery.toml",
        )  # fmt: skip
    for argument in contract.structure.fixed:
        yield Finding(
            "fixed-argument",
            "note",
            f"{argument}, as in the example's call: the graph has no such argument",
            "Deliver once for each value that is served, or make it a tensor and decide by "
            "torch.where",
            "delivery.toml",
        )


def example_draws(contract: DeliveryContract) -> Iterator[Finding]:
    """Find that the inputs to verify with are rows of the example, and show no more than that."""
    if contract.draw == "examples":
        yield Finding(
            "drawn-from-example",
            "note",
            "the inputs that packages are compared on are rows of the example, because the model "
            "fails on random ones, or gives NaN: values that the example doesn't hold are compared "
            "only where the graph itself asks for them",
            "Give an example that holds what is served (zeros in a mask, short rows), or declare "
            "ranges that random inputs may be drawn from",
            CONTRACT_FILE,
        )


def compare_goldens(delivery: LoadedDelivery) -> Iterator[Finding]:
    """Compare what the graph gives with the golden outputs, if there are any."""
    cases = [case for case in delivery.cases if case.outputs is not None]
    if not cases:
        yield Finding(
            "no-golden-outputs",
            "limit",
            "the delivery holds no outputs of the original model to compare with",
            "Deliver with 'handoff deliver', which stores them",
        )
    for index, case in enumerate(cases):
        assert case.outputs is not None
        try:
            got = call(delivery.module, case.inputs)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; each is the finding
            yield example_failure(error)
            return
        if mismatch := _describe_mismatch(got, case.outputs):
            yield _golden_mismatch_finding(delivery, case.inputs, case.outputs, index, mismatch)
            return


def _describe_mismatch(got: Tensors, want: Tensors) -> str:
    if len(got) != len(want):
        return f"{len(got)} outputs"
    differences = (
        golden_difference(actual, expected) for actual, expected in zip(got, want, strict=True)
    )
    return next(filter(None, differences), "")


def _golden_mismatch_finding(
    delivery: LoadedDelivery, inputs: Tensors, want: Tensors, index: int, mismatch: str
) -> Finding:
    message = (
        f"the delivered graph doesn't give the original model's outputs on example {index}: "
        f"{mismatch}"
    )
    if _matches_in_training_mode(delivery, inputs, want):
        return Finding(
            "golden-in-training-mode",
            "unsound",
            f"{message}. In training mode it does: the golden outputs were made in that mode",
            "Call model.eval() before tracing and before the golden outputs are computed",
        )
    return Finding(
        "golden-mismatch",
        "unsound",
        message,
        "The graph, or its weights, are not those of the model: trace and deliver it again",
    )


def _matches_in_training_mode(delivery: LoadedDelivery, inputs: Tensors, want: Tensors) -> bool:
    """Return whether batch norms in training mode give the golden outputs; leave all as it was."""
    module = delivery.module
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    try:
        for norm in norms:
            norm.train()
        return bool(norms) and not _describe_mismatch(call(module, inputs), want)
    except Exception:  # noqa: BLE001 - a batch of one can't be normed in training mode
        return False
    finally:
        for norm in norms:
            norm.eval()
        module.load_state_dict(state)


@by_definition()
def run(job: TraceabilityJob) -> TraceabilityResult:
    """Return the verdict on the delivery in `job.staging`."""
    delivery = read_delivery(job.staging)
    with sharing_threads(1):
        findings = _examine(delivery)
        if job.exports and judge(tuple(findings)) != "unsound":
            findings += _check_exportable(delivery)
    source = delivery.contract.source.merge(job.said)
    findings += missing_lineage(source, job.required_lineage)
    # An example that fails is found by each check that runs it.
    distinct = tuple(dict.fromkeys(findings))
    return TraceabilityResult(judge(distinct), distinct)


def _check_exportable(delivery: LoadedDelivery) -> Iterator[Finding]:
    """Find that torch.export doesn't take the graph for all sizes that are declared."""
    try:
        capture(delivery.module, delivery.contract.signature, rows=delivery.rows)
    except DeliveryUnsound as error:
        yield Finding(
            "not-exportable",
            "unsound",
            f"{error.what}: {error.got}",
            error.remedy,
            error.where,
        )


def _examine(delivery: LoadedDelivery) -> list[Finding]:
    module, first = delivery.module, _choose_inputs(delivery)
    goldens = list(compare_goldens(delivery))
    # Several golden outputs that come out right show what a graph alone can't.
    proven = not goldens and len(delivery.cases) > 1
    return [
        *delivery.findings,
        *omitted_parts(delivery.contract),
        *example_draws(delivery.contract),
        *graph.unused_inputs(module),
        *graph.constant_outputs(module),
        *graph.burnt_in_constants(module, proven=proven),
        *graph.fixed_numbers(module, proven=proven),
        *graph.assumed_modes(module, proven=proven),
        *graph.value_reads(module),
        *graph.bag_offsets(module),
        *graph.float_ids(module, delivery.contract.inputs),
        *behaviour.run_twice(delivery, first),
        *input_ranges(delivery, first),
        *behaviour.check_sizes(delivery),
        *behaviour.check_output_variation(delivery),
        *behaviour.check_row_independence(delivery),
        *goldens,
    ]


def _choose_inputs(delivery: LoadedDelivery) -> tuple[torch.Tensor, ...]:
    """Return the example's inputs; without one, inputs of the first size that the model runs at."""
    if delivery.cases:
        return delivery.cases[0].inputs
    # The largest sizes come last, and may be too large to be drawn on the way.
    cases = plan_cases(delivery.contract.signature, seeds=1)[:4]
    runs = (case for case in cases if behaviour.is_runnable(delivery.module, delivery.draw(case)))
    return delivery.draw(next(runs, cases[0]))
