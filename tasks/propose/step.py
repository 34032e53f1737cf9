"""Propose: what a bare `to_folder` folder takes, read off its layers, and tried."""

from __future__ import annotations

from dataclasses import replace

import torch

from handoff.artifacts.delivery.contract import CONTRACT_FILE, format_contract
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.intake.files.stage import stage
from handoff.tasks.intake.loading import read_bare, read_delivery
from handoff.tasks.optimize.capture import summarize_export_error
from handoff.tasks.propose.hints import SPATIAL, Hint, candidate_shapes, find_hint
from handoff.tasks.propose.messages import (
    InputProposal,
    ProposeJob,
    ProposeResult,
    TryJob,
    TryResult,
)
from handoff.tasks.propose.search import find_ranges, find_signature, runs_at_larger_sizes
from handoff.tasks.verify.inputs.plan import CaseSpec, draw_inputs
from handoff.tasks.verify.mha_fastpath import by_definition

_OTHER_SIDES = "; it runs with other sides, too, so that these are a guess: --input says which"


@by_definition()
def run(job: ProposeJob) -> ProposeResult:
    """Return the proposal for the folder; raise `DeliveryUnreadable` for one that can't be read."""
    stage(job.folder, job.staging)
    source, module = read_bare(job.staging)
    placeholders = [n for n in module.graph.find_nodes(op="placeholder") if not n.args]
    hints = {str(node.target): find_hint(module, node) for node in placeholders}
    known_specs = {spec.name: _add_value_range(spec, hints.get(spec.name)) for spec in job.given}
    specs = find_signature(module, hints, known_specs, job.dimensions)
    dimensions = find_ranges(module, specs, job.dimensions) if specs else dict(job.dimensions)
    guessed = {
        name for name, hint in hints.items()
        if specs and name not in known_specs and hint is not None
        and any(SPATIAL in shape for shape in hint.shapes)
        and runs_at_larger_sizes(module, specs, name, job.dimensions)
    }  # fmt: skip
    inputs = tuple(
        InputProposal(
            name, (specs or known_specs).get(name) or _guess_spec(name, hint),
            (hint.why if hint else "no layer tells what it is")
            + (_OTHER_SIDES if name in guessed else ""),
        )
        for name, hint in hints.items()
    )  # fmt: skip
    return ProposeResult(source.class_name, inputs, dimensions, ran=specs is not None)


def _add_value_range(spec: TensorSpec, hint: Hint | None) -> TensorSpec:
    """Return a given spec with the ids that its table holds, unless it says which."""
    if hint is None or spec.low is not None or "int" not in spec.dtype:
        return spec
    return replace(spec, low=hint.low, high=hint.high)


def _guess_spec(name: str, hint: Hint | None) -> TensorSpec | None:
    """Return what the hint alone says of an input of a model that wasn't seen to run."""
    if hint is None:
        return None
    shape = next(candidate_shapes(hint), ("batch",))
    return TensorSpec(name, hint.dtype, shape, hint.low, hint.high)


# Beyond the smallest size of each dimension.
_SIZE_STEPS = (0, 1, 4)


def try_contract(job: TryJob) -> TryResult:
    """Put the contract beside the staged files, read both, and return where the model fails.

    Raises `DeliveryUnreadable` where the contract and module.py disagree.
    """
    contract = format_contract(job.contract)
    (job.staging / CONTRACT_FILE).write_text(contract, encoding="utf-8")
    module = read_delivery(job.staging).module
    signature = job.contract.signature
    failures = []
    for step in _SIZE_STEPS:
        dimensions = signature.dimensions.items()
        sizes = {n: d.nearest(d.min // d.multiple_of + step) for n, d in dimensions}
        inputs = draw_inputs(signature, CaseSpec(f"try {sizes}", sizes, 0))
        try:
            with torch.no_grad():
                module(*inputs)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it is reported
            label = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            failures.append(f"{label or 'the declared shapes'}: {summarize_export_error(error)}")
    return TryResult(tuple(dict.fromkeys(failures)))
