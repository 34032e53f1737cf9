"""Deliver: the training side. A module and its example inputs become a delivery.

It needs torch, safetensors, and NumPy, by which that writes. What is written is read back by the
intake in the same run, and compared with the original: a delivery that Handoff would refuse is not
written.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from handoff.artifacts.delivery.contract import DIRTY, DeliveryContract, Lineage, ModelSection
from handoff.artifacts.delivery.metric import Metric
from handoff.artifacts.delivery.signature import DECLARED, FROM_EXAMPLE, ModelSignature, TensorSpec
from handoff.artifacts.errors import DeliveryUnsound
from handoff.artifacts.version import ask_git
from handoff.infra.engine.import_paths import importing_from
from handoff.tasks.deliver.arguments import (
    Dynamic,
    Limits,
    Ranges,
    describe_fixed_sizes,
    describe_inputs,
    require_on_cpu,
    unwrap,
)
from handoff.tasks.deliver.builder import DeliveryBuilder
from handoff.tasks.deliver.capture.calls import Call, Tensors, describe_call
from handoff.tasks.deliver.capture.failures import choose_refusal
from handoff.tasks.deliver.capture.lines import one_line
from handoff.tasks.deliver.capture.run_failures import ModelRunFailed
from handoff.tasks.deliver.capture.tracer import without_training_modules
from handoff.tasks.deliver.datasets import (
    Datasets,
    measure_eager,
    require_fitting,
    take_calibration,
    take_evaluation,
)
from handoff.tasks.deliver.factory import FactoryResult, default_name, take_model
from handoff.tasks.deliver.golden import (
    Goldens,
    describe_mode,
    evaluate_and_restore,
    make_goldens,
    other_size,
)
from handoff.tasks.deliver.messages import Arguments, DeliverJob, DeliverResult
from handoff.tasks.deliver.naming import require_free, require_name
from handoff.tasks.deliver.options import require_call
from handoff.tasks.deliver.ranges.reading import (
    RangeReading,
    guess_range,
    read_ranges,
    state_of,
    watch_values,
)
from handoff.tasks.deliver.ranges.uses import Uses
from handoff.tasks.verify.inputs.plan import CaseSpec, draw_inputs
from handoff.tasks.verify.mha_fastpath import by_definition


def lineage_from_git(folder: Path, factory: Path | None = None) -> Lineage:
    """Return what git says of `folder`; empty fields for what it doesn't say.

    A commit with changes on top is marked `-dirty`, as is one that lacks the file of the factory,
    and credentials in the remote's address are left out. The remote is `origin`, or else the first.
    """
    commit = ask_git(folder, "rev-parse", "HEAD")
    unknown = ("ls-files", "--others", "--exclude-standard", "--", str(factory))
    changed = ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    if commit and (changed or (factory and ask_git(folder, *unknown))):
        commit += DIRTY
    named = ask_git(folder, "remote").split()
    remote = "origin" if "origin" in named else next(iter(named), "")
    address = ask_git(folder, "remote", "get-url", remote) if remote else ""
    name, mail = (ask_git(folder, "config", key) for key in ("user.name", "user.email"))
    return Lineage(
        repository=re.sub(r"//[^/]*@", "//", address),
        commit=commit,
        author=f"{name} <{mail}>" if name and mail and commit else "",
    )


_ORIGIN_LENGTH = 200


def infer_ranges(
    module: nn.Module, call: Call, inputs: Tensors, signature: ModelSignature
) -> tuple[ModelSignature, tuple[str, ...]]:
    """Return the signature with ranges of what nobody declared, and a note on each that is guessed.

    The model is run on the example, of the signature's shapes and dtypes, and at other sizes on
    rows of it; then on the ends of what was read off. What it doesn't run on was read off wrongly,
    and is guessed from the example. A model that doesn't even run on that is left to what comes
    next.
    """
    try:
        uses = _watch_example(module, call, inputs)
    except Exception:  # noqa: BLE001 - reported with its shapes when the golden outputs are made
        return signature, ()
    ranges = read_ranges(uses, inputs, _watch_other_sizes(module, call, inputs, signature))
    readings = [
        None if spec.origin == DECLARED else reading
        for spec, reading in zip(signature.inputs, ranges, strict=True)
    ]
    checked = _check_readings(module, call, inputs, readings)
    specs = tuple(
        spec if reading is None else _apply_reading(spec, reading)
        for spec, reading in zip(signature.inputs, checked, strict=True)
    )
    notes = tuple(
        note for spec, reading in zip(specs, checked, strict=True) if reading is not None
        for note in _range_notes(spec, reading)
    )  # fmt: skip
    return replace(signature, inputs=specs), notes


def _watch_example(module: nn.Module, call: Call, inputs: Tensors) -> Uses:
    with evaluate_and_restore(module), without_training_modules():
        return watch_values(lambda *tensors: call.run(module, tensors), inputs, state_of(module))


def _watch_other_sizes(
    module: nn.Module, call: Call, inputs: Tensors, signature: ModelSignature
) -> Uses | None:
    """Return the uses at other sizes, of rows of the example; None where it runs at no others."""
    example_sizes = signature.measure_inputs(inputs)
    sizes = {name: other_size(d, example_sizes[name]) for name, d in signature.dimensions.items()}
    if sizes == example_sizes:
        return None
    try:
        rows = draw_inputs(signature, CaseSpec(f"ranges {sizes}", sizes, 0), inputs)
        return _watch_example(module, call, rows)
    except Exception:  # noqa: BLE001 - reported when the golden outputs are made at that size
        return None


def _check_readings(
    module: nn.Module, call: Call, inputs: Tensors, readings: Sequence[RangeReading | None]
) -> list[RangeReading | None]:
    """Return the readings; those on whose ends the model fails become guesses."""
    if _failure_at_ends(module, call, inputs, readings) == "":
        return list(readings)
    checked: list[RangeReading | None] = []
    for index, (tensor, reading) in enumerate(zip(inputs, readings, strict=True)):
        alone = [reading if position == index else None for position in range(len(inputs))]
        why = _failure_at_ends(module, call, inputs, alone)
        if why and reading is not None and not reading.widened:
            why = f"{reading.text}, and the model fails at an end of it: {why}"
            checked.append(guess_range(tensor, why))
        else:
            checked.append(reading)
    return checked


def _failure_at_ends(
    module: nn.Module, call: Call, inputs: Tensors, readings: Sequence[RangeReading | None]
) -> str:
    """Return why the model doesn't run with the inputs that were read at their ends, or ''."""
    if all(reading is None or reading.source == "example" for reading in readings):
        return ""
    for is_high in (False, True):
        ends = tuple(
            tensor if reading is None or reading.source == "example" else reading.end(
                tensor, is_high=is_high)
            for tensor, reading in zip(inputs, readings, strict=True)
        )  # fmt: skip
        try:
            with evaluate_and_restore(module), without_training_modules(), torch.no_grad():
                call.run(module, ends)
        except Exception as error:  # noqa: BLE001 - a model may fail in any way; it is reported
            return one_line(error)
    return ""


def _apply_reading(spec: TensorSpec, reading: RangeReading) -> TensorSpec:
    text = reading.text if reading.source != "example" else f"{FROM_EXAMPLE}: {reading.text}"
    plain = "".join(character if character.isprintable() else "?" for character in text)
    origin = plain if len(plain) <= _ORIGIN_LENGTH else plain[: _ORIGIN_LENGTH - 3] + "..."
    return replace(spec, low=reading.low, high=reading.high, origin=origin)


def _range_notes(spec: TensorSpec, reading: RangeReading) -> tuple[str, ...]:
    option = f"ranges={{'{spec.name}': (LOW, HIGH)}}"
    if spec.is_guessed:
        return (
            f"{spec.name} takes {spec.values} only, as in its example ({reading.text}): other "
            f"values will be refused. Declare what is served: {option}",
        )
    if reading.narrowed or reading.widened:
        return (
            f"{spec.name} takes {spec.values}, {spec.origin}: declare another range, {option}, "
            "or give each column an input of its own",
        )
    return ()


_CLEAN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@by_definition()
def deliver(
    module: nn.Module,
    example_inputs: Sequence[Any],
    folder: Path,
    *,
    name: str,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    dimensions: Limits | None = None,
    ranges: Ranges | None = None,
    batch_invariant: bool = True,
    lineage: Lineage | None = None,
    calibration: Iterable[Arguments] = (),
    evaluation: Iterable[tuple[Arguments, torch.Tensor | None]] = (),
    metric: str | Metric | None = None,
) -> DeliverResult:
    """Write a delivery of `module` to `folder`, all or nothing; return its contract and notes.

    `example_inputs` and `example_kwargs` are what forward is called with: tensors, or tuples,
    lists, dictionaries and dataclasses of them, which the delivery takes one by one (`batch_user`
    for `batch["user"]`); what is no tensor is fixed to its value.

    `dynamic` maps an input's name to its dynamic axes (`{"x": {0: "batch"}}`), `dimensions` each
    of their names to its smallest and largest size, both included (1 to 1024 without it), and,
    where the model runs at multiples alone, their number (`{"height": (16, 512, 16)}`). Without
    `dynamic`, axis 0 of every input is `batch` where all inputs agree on its size, and fixed, with
    a note, where no capture holds for more than the example's; `dynamic={}` means fixed shapes.
    `ranges` bounds what inputs may hold, both ends included; whole numbers beyond are refused when
    the model is served. Without it they are read off what the model does with them: the rows of the
    tables that they are looked up in, 0 to 1 for a mask, the whole dtype where any number will do.
    Where nothing shows what an input may hold, its range is the example's smallest to largest
    value, with a note.
    `batch_invariant=False` declares that the output for one row depends on the other rows on
    purpose. `calibration` are batches of what is served, each what forward is called with,
    in its order or, as a dictionary, by name: int8 chooses its ranges by them, and by the example
    without any. `evaluation` are samples, each what forward is called with and the labels of its
    rows, of which `metric` is computed: what a package in lower precision loses of it may be agreed
    on in place of a tolerance.

    The module is delivered in evaluation mode, without its dropouts and losses, and is afterwards
    what it was before. `torch.fx` captures it; what that can't capture rightly or `to_folder`
    can't write so that it loads, `torch.export` captures.

    Raises `UsageProblem` for wrong arguments, `DeliveryUnreadable` for a model that can't be
    captured or written, and `DeliveryUnsound` for one that doesn't repeat itself, or whose capture
    computes something else.
    """
    require_free(folder)
    options = {"dynamic": dynamic, "dimensions": dimensions, "ranges": ranges}
    require_call(name, example_kwargs, batch_invariant, options)
    module = unwrap(module)
    call, inputs = describe_call(module, example_inputs, example_kwargs or {})
    require_on_cpu(module, inputs)
    signature = describe_inputs(call.names, inputs, dynamic, dimensions, ranges)
    keywords = example_kwargs or {}
    datasets = Datasets(
        take_calibration(module, call, calibration, keywords),
        take_evaluation(module, call, evaluation, keywords, metric),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        evaluate_and_restore(module),
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch,
    ):
        signature, guesses = infer_ranges(module, call, inputs, signature)
        signature, goldens = _make_goldens(
            module, call, inputs, signature, has_limits=dimensions is not None
        )
        require_fitting(datasets, signature)
        require_name(name)
        contract = DeliveryContract(
            model=ModelSection(name, type(module).__name__, torch.__version__),
            inputs=signature.inputs,
            dimensions=dict(signature.dimensions),
            source=lineage or Lineage(),
            structure=goldens.structure,
            draw=goldens.draw,
            batch_invariant=batch_invariant,
            metric=datasets.evaluation.metric if datasets.evaluation else None,
        )
        metric_notes = []
        if datasets.evaluation is not None:
            metric_notes.append(
                measure_eager(module, goldens.call, datasets.evaluation, goldens.structure)
            )
        # The name ends up in module.py, beside each .pt file.
        built = Path(scratch) / (folder.name if _CLEAN_NAME.fullmatch(folder.name) else "delivery")
        builder = DeliveryBuilder(module, goldens.call, goldens, built, datasets=datasets)
        result = builder.build(contract)
        if result is None and dynamic is None and contract.dimensions:
            result = builder.build_static(contract)
        if result is None:
            raise choose_refusal(module, builder.failures, lambda: goldens.call.run(module, inputs))
        built.rename(folder)
    fixed = describe_fixed_sizes(call.names, inputs) if dynamic is None else ()
    # What limits a version comes first, then what has to be known of it.
    remarks = (*metric_notes, *call.fixed_notes, *describe_mode(module))
    return replace(result, folder=folder, notes=(*fixed, *guesses, *result.notes, *remarks))


def _make_goldens(
    module: nn.Module, call: Call, inputs: Tensors, signature: ModelSignature, *, has_limits: bool
) -> tuple[ModelSignature, Goldens]:
    """Return the goldens, and the signature they hold for.

    Where nobody has chosen the ranges, and the model doesn't run from 1 on, they begin at 2.
    """
    try:
        return signature, make_goldens(module, call, inputs, signature)
    except ModelRunFailed as refusal:
        if has_limits or not signature.dimensions:
            raise
        raised = {name: replace(d, min=2) for name, d in signature.dimensions.items() if d.max > 1}
        signature = replace(signature, dimensions={**signature.dimensions, **raised})
        try:
            goldens = make_goldens(module, call, inputs, signature)
        except DeliveryUnsound:
            raise refusal from None
        note = f"{', '.join(raised)} from 2 on: at 1 the model fails with {refusal.why}"
        return signature, replace(goldens, notes=(note, *goldens.notes))


def guessed_inputs(result: FactoryResult) -> tuple[TensorSpec, ...]:
    """Return the inputs whose ranges nothing but the example shows.

    Raises `UsageProblem` for options that don't fit the example.
    """
    options = result.options
    module = unwrap(result.module)
    call, inputs = describe_call(module, result.inputs, options.get("keywords") or {})
    require_on_cpu(module, inputs)
    arguments = (options.get(name) for name in ("dynamic", "dimensions", "ranges"))
    signature = describe_inputs(call.names, inputs, *arguments)
    with (
        by_definition(),
        evaluate_and_restore(module),
        torch.random.fork_rng(devices=[]),
        torch.no_grad(),
    ):
        signature, _ = infer_ranges(module, call, inputs, signature)
    return tuple(spec for spec in signature.inputs if spec.is_guessed)


def run(job: DeliverJob) -> DeliverResult:
    """Deliver the model that `job.factory` makes.

    The factory is the training team's own code and is run here on purpose: this is the training
    side. It returns the model and its example inputs (a tuple), and maybe a dictionary of further
    arguments of `deliver`. The name is the job's, else the factory's option, else that of the
    model's class or of the factory. Without the option `lineage`, git is asked.
    """
    # What forward imports is looked for when it runs.
    with importing_from(job.search_path):
        return _deliver_model(job, take_model(job.factory, job.search_path))


def _deliver_model(job: DeliverJob, made: FactoryResult) -> DeliverResult:
    options = dict(made.options)
    chosen = str(options.pop("name", "") or default_name(job.factory, unwrap(made.module))[0])
    module = sys.modules.get(job.factory.partition(":")[0])
    file = getattr(module, "__file__", None)
    lineage = options.pop("lineage", None) or lineage_from_git(
        job.search_path, Path(file) if file else None
    )
    created = lineage.created or datetime.now(UTC).isoformat(timespec="seconds")
    ranges = {**(options.pop("ranges", None) or {}), **job.ranges}
    result = deliver(
        made.module, made.inputs, job.folder, name=job.name or chosen,
        example_kwargs=options.pop("keywords", None), ranges=cast(Ranges, ranges),
        lineage=replace(lineage, created=created), **options,
    )  # fmt: skip
    notes = (_NO_REMOTE,) if lineage.commit and not lineage.repository else ()
    return replace(result, notes=(*result.notes, *notes))


_NO_REMOTE = (
    "the git checkout has no remote, so the delivery says its commit, but not its repository: "
    "'git remote add origin URL', or the option \"lineage\": Lineage(repository=..., commit=...)"
)
