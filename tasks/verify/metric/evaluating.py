"""The evaluation that a delivery brings: eager's outputs of it, and what a package loses beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from handoff.artifacts.delivery.contract import read_contract
from handoff.artifacts.delivery.metric import EVALUATION_FILE, MeasuredMetric
from handoff.artifacts.digest import digest_file
from handoff.artifacts.errors import DeliveryUnreadable, split_expected_got
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.intake.examples import read_evaluation
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.loading import Tensors, clone_inputs
from handoff.tasks.verify.metric.measuring import Pair, compute_metric, measure_metric
from handoff.tasks.verify.metric.samples import NotComputable


def run_eager(delivery: LoadedDelivery, file: Path) -> Path | None:
    """Write the delivered module's outputs that the metric is of to `file`; return it.

    None where the delivery brings no evaluation. Raises `DeliveryUnreadable` where the metric isn't
    made of such outputs and labels.
    """
    metric = delivery.contract.metric
    if metric is None:
        return None
    outputs = []
    with torch.no_grad():
        for batch in delivery.evaluation:
            results = flatten_tensors(delivery.module(*clone_inputs(batch.inputs)))
            place = delivery.contract.metric_output_index(len(results))
            assert place is not None
            outputs.append(results[place].clone())
    labelled = zip(outputs, delivery.evaluation, strict=True)
    try:
        # Only to find out whether it can be computed, before anything is compiled.
        compute_metric(
            metric, ((o, o if batch.labels is None else batch.labels) for o, batch in labelled)
        )
    except NotComputable as error:
        raise _metric_failure(metric.name, error) from error
    torch.save(outputs, file)
    return file


def evaluate(
    staging: Path, eager: Path, package: Callable[[Tensors], Tensors], recipe: Recipe
) -> MeasuredMetric:
    """Return the delivery's metric by eager, whose outputs lie in the file `eager`, and a package.

    That takes and gives tensors flattened, of the contract's shapes and dtypes. Raises
    `RuntimeError` where it fails, and `DeliveryUnreadable` where the metric can't be computed of
    what it gives.
    """
    contract = read_contract(staging)
    assert contract.metric is not None
    samples = read_evaluation(staging, contract)
    by_eager = torch.load(eager, weights_only=True, mmap=True)
    covered: list[tuple[int, str]] = []

    def pairs() -> Iterator[Pair]:
        for batch, want in zip(samples, by_eager, strict=True):
            outputs = package(clone_inputs(batch.inputs))
            place = contract.metric_output_index(len(outputs))
            assert place is not None
            covered.append((place, contract.structure.names_of(len(outputs))[place]))
            yield want, outputs[place], batch.labels

    data = digest_file(staging / EVALUATION_FILE)
    try:
        # Which output it is of is known when the first pair is.
        measured = measure_metric(contract.metric, "", recipe.metric, data, pairs())
    except NotComputable as error:
        raise _metric_failure(contract.metric.name, error) from error
    place, name = covered[0]
    return replace(measured, place=place, output=name)


def _metric_failure(name: str, error: NotComputable) -> DeliveryUnreadable:
    expected, got = split_expected_got(str(error))
    return DeliveryUnreadable(
        f"{name} can't be computed of the evaluation",
        expected=expected, got=got, where=EVALUATION_FILE,
        remedy="Deliver the evaluation again, with labels that the metric is made of",
    )  # fmt: skip
