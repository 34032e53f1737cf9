"""What happens to each model and of each careless delivery: one row each."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from handoff.artifacts.errors import HandoffError
from handoff.tasks.deliver.capture.calls import describe_call
from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.verify.float64 import flatten_tensors
from tests.studies.corpus.careless import (
    CarelessDelivery,
    example_of,
    make_model,
    trace,
    write_folder,
)
from tests.studies.corpus.models import CorpusModel

_GRAVITY = ("unsound", "limit", "note")


@dataclass(frozen=True)
class ModelRow:
    """What happened to a model.

    `loads` and `identical` are about another batch than the example's, `found` are the codes behind
    a verdict that isn't *sound*; seconds to deliver, to read and to judge. A refusal stands in
    `found`, and then `captured_by` is empty.
    """

    name: str
    kind: str
    captured_by: str = ""
    dynamic: bool = False
    loads: bool = False
    identical: bool = False
    verdict: str = ""
    found: str = ""
    deliver_s: float = 0.0
    read_s: float = 0.0
    judge_s: float = 0.0


def judge_model(model: CorpusModel, folder: Path) -> ModelRow:
    """Deliver the model into `folder`, read it back, compare and judge it."""
    module, example = model.make()
    began = time.monotonic()
    try:
        delivered = model.deliver(module, example, folder / "delivery")
    except HandoffError as error:
        return ModelRow(model.name, model.kind, found=str(error))
    written = time.monotonic()
    loaded = read_delivery(folder / "delivery").module
    read = time.monotonic()
    other_args, other_kwargs = model.inputs(model.batch // 2 + 1)
    _, tensors = describe_call(module, other_args, other_kwargs)
    with torch.no_grad():
        want = flatten_tensors(module(*other_args, **other_kwargs))
        got = flatten_tensors(loaded(*tensors))
    judging = time.monotonic()
    judged = run(TraceabilityJob(folder / "delivery"))
    return ModelRow(
        name=model.name,
        kind=model.kind,
        captured_by=delivered.contract.model.captured_by,
        dynamic=bool(delivered.contract.dimensions),
        loads=len(got) == len(want),
        identical=len(got) == len(want) and all(map(torch.equal, got, want)),
        verdict=judged.verdict,
        found=", ".join(f.code for f in judged.findings if f.severity != "note"),
        deliver_s=written - began,
        read_s=read - written,
        judge_s=time.monotonic() - judging,
    )


@dataclass(frozen=True)
class CarelessRow:
    """What happened to a careless delivery: the outcome, and why."""

    name: str
    outcome: str
    reasons: str


def judge_careless(careless: CarelessDelivery, folder: Path) -> CarelessRow:
    """Take the delivery in as its team would hand it over, or deliver it where they can't."""
    try:
        trace(careless)
    except Exception:  # noqa: BLE001 - torch.fx can't trace it; then there is only the exporter
        return _deliver_careless(careless, folder)
    write_folder(careless, folder / "delivery")
    try:
        take_in(IntakeJob(folder / "delivery", folder / "staging"))
    except HandoffError as error:
        return CarelessRow(careless.name, "unreadable", str(error))
    judged = run(TraceabilityJob(folder / "staging"))
    findings = sorted(judged.findings, key=lambda finding: _GRAVITY.index(finding.severity))
    return CarelessRow(
        careless.name, judged.verdict,
        "; ".join(f"{f.code}: {f.message}" for f in findings if f.code != "lineage-incomplete"),
    )  # fmt: skip


def _deliver_careless(careless: CarelessDelivery, folder: Path) -> CarelessRow:
    model, example = make_model(careless), example_of(careless)
    try:
        result: DeliverResult = deliver(
            model, example, folder / "exported", name=careless.name.replace("_", "-")
        )
    except HandoffError as error:
        return CarelessRow(careless.name, "refused by the exporter", str(error))
    return CarelessRow(careless.name, "fixed by the exporter", "; ".join(result.notes))
