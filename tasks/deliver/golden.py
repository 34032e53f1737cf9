"""Golden cases: what the original module makes of the example and of a second size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from handoff.artifacts.delivery.contract import Draw, Structure
from handoff.artifacts.delivery.result import parse_result
from handoff.artifacts.delivery.signature import REAL_OUTPUTS, Dimension, ModelSignature
from handoff.artifacts.errors import DeliveryUnsound, HandoffError, NotCapturable
from handoff.infra.engine.budget import is_out_of_memory, out_of_memory_error
from handoff.tasks.deliver.capture.calls import Call, Tensors, describe_structure
from handoff.tasks.deliver.capture.causes import PACKED, is_about_packing
from handoff.tasks.deliver.capture.lines import format_line, one_line, quote_line, raising_line
from handoff.tasks.deliver.capture.losses import LossWatch
from handoff.tasks.deliver.capture.random_draws import unrepeatable_error
from handoff.tasks.deliver.capture.run_failures import ModelRunFailed, SampleInputs, run_failure
from handoff.tasks.deliver.capture.tracer import without_training_modules
from handoff.tasks.deliver.multiples import suggest_multiple
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.inputs.plan import CaseSpec, draw_inputs

# How far two captures of the same operators may lie apart, of an output's largest value: they
# differ where torch takes another kernel for the same layer (attention's fast path, for one).
_ALLOWED = {torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
_ALLOWED_FLOAT32 = 1e-5
_SECOND_SIZES = (5, 3, 7, 11, 6, 2, 1)


@dataclass(frozen=True)
class GoldenCase:
    """Inputs, all those of the original's forward, and its outputs, flattened.

    They have the shapes and dtypes that the original takes and gives; outputs are real numbers.
    `left_out` counts the modules, by class, that were left out of the computation, `changed` are
    the indices of the inputs that the original changes in place.
    """

    inputs: Tensors
    outputs: Tensors
    left_out: Mapping[str, int]
    changed: tuple[int, ...] = ()


@contextmanager
def evaluate_and_restore(module: nn.Module) -> Iterator[None]:
    """Put `module` into evaluation mode for the body, and leave it as it was.

    Modes, attributes, lists and dictionaries of every submodule, and the values of its buffers are
    put back: a forward may keep its last output, or count its calls.
    """
    parts = [(part, dict(part.__dict__)) for part in module.modules()]
    containers = [
        (value, value.copy())
        for _, attributes in parts
        for value in attributes.values()
        if isinstance(value, (dict, list, set))
    ]
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    module.eval()
    try:
        yield
    finally:
        for part, attributes in parts:
            part.__dict__.clear()
            part.__dict__.update(attributes)
        for container, contents in containers:
            container.clear()
            if isinstance(container, list):
                container.extend(contents)
            else:
                container.update(contents)
        for buffer, value in buffers:
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)


def describe_mode(module: nn.Module) -> tuple[str, ...]:
    """Return a note on a model that isn't in evaluation mode, in which it is delivered."""
    training = [type(part).__name__ for part in module.modules() if part.training]
    if not training:
        return ()
    kinds = ", ".join(dict.fromkeys(training))
    which = "the model was" if module.training else f"parts of the model ({kinds[:80]}) were"
    return (f"delivered in evaluation mode, as model.eval() sets it: {which} in training mode",)


@dataclass(frozen=True)
class Goldens:
    """The call without its losses, the golden cases, the result's structure, and the draw."""

    call: Call
    cases: tuple[GoldenCase, ...]
    structure: Structure
    draw: Draw
    notes: tuple[str, ...] = ()


def make_goldens(
    module: nn.Module, call: Call, inputs: Tensors, signature: ModelSignature
) -> Goldens:
    """Return the example, a second and the smallest size, as `module` computes them.

    `inputs` are the example's, of the signature's shapes and dtypes. Without dynamic dimensions the
    second case has other values. Modules that only training needs are left out of the computation,
    as they are of the delivery. Where the model doesn't run on random inputs, rows of the example
    are drawn instead.

    Raises `DeliveryUnsound` where the module doesn't run, or not twice alike.
    """
    call = replace(call, losses=_find_losses(module, call, inputs))
    example, structure = _run_twice(module, call, SampleInputs(inputs))
    if is_finite(example.outputs):
        try:
            more, forms = _run_other_sizes(module, call, signature, inputs, None, finite=True)
            structure, notes = _merge_forms(structure, forms)
            return Goldens(call, (example, *more), structure, "random", notes)
        except ModelRunFailed as error:
            note = f"random inputs were tried first: they give {error.why}"
    else:
        note = "random inputs weren't tried, since the example gives NaN or infinity itself"
    more, forms = _run_other_sizes(module, call, signature, inputs, inputs, finite=False)
    structure, notes = _merge_forms(structure, forms)
    return Goldens(call, (example, *more), structure, "examples", (note, *notes))


def _merge_forms(structure: Structure, forms: Sequence[str]) -> tuple[Structure, tuple[str, ...]]:
    """Return the structure with the form of all results, and a note on what isn't the same in all.

    `forms` are those of the further cases.
    """
    varying: list[str] = []
    merged = structure.result
    for other in forms:
        if merged == other:
            continue
        common, differing = (
            parse_result(merged).agreed(parse_result(other)) if merged and other else (None, [])
        )
        if common is None:
            return replace(structure, result=""), (
                "the result has another form at another size: the loaded model gives its tensors "
                "one by one",
            )
        merged = str(common)
        varying += differing
    notes = tuple(
        f"{place} of the result is no tensor and differs from call to call: the loaded model gives "
        "None there; return it as a tensor if it is served"
        for place in dict.fromkeys(varying)
    )
    return replace(structure, result=merged), notes


def _find_losses(module: nn.Module, call: Call, inputs: Tensors) -> tuple[int, ...]:
    """Return the places of the tensors in the result that are losses, where others are not."""
    watch = LossWatch()
    with evaluate_and_restore(module):
        try:
            with watch, without_training_modules(Counter(), watch.mark):
                result = call.run(module, inputs)
            return watch.loss_indices(flatten_tensors(result))
        except Exception:  # noqa: BLE001 - reported as what it is by the run that follows
            return ()


def _run_other_sizes(
    module: nn.Module,
    call: Call,
    signature: ModelSignature,
    inputs: Tensors,
    rows: Tensors | None,
    *,
    finite: bool,
) -> tuple[list[GoldenCase], list[str]]:
    example_sizes = signature.measure_inputs(inputs)
    second = {name: other_size(d, example_sizes[name]) for name, d in signature.dimensions.items()}
    smallest = {name: limits.min for name, limits in signature.dimensions.items()}
    cases, forms = [], []
    for sizes in [second] if smallest in (second, example_sizes) else [second, smallest]:
        drawn = draw_inputs(signature, CaseSpec(f"golden {sizes}", sizes, 0), rows)
        sample = SampleInputs(drawn, drawn=True, sizes=sizes if sizes != example_sizes else {})
        try:
            case, structure = _run_twice(module, call, sample)
        except ModelRunFailed as error:
            if sample.sizes and (remedy := _advise_multiples(module, call, signature, inputs)):
                error.remedy = remedy
            raise
        if finite and not is_finite(case.outputs):
            raise run_failure(call, sample, "NaN or infinity, which its example doesn't give")
        cases.append(case)
        forms.append(structure.result)
    return cases, forms


def _advise_multiples(
    module: nn.Module, call: Call, signature: ModelSignature, inputs: Tensors
) -> str:
    """Return what to do about dimensions at whose multiples alone the model runs; '' for none."""
    example_sizes = signature.measure_inputs(inputs)

    def runs(name: str, size: int) -> bool:
        spec = CaseSpec("multiple", {**example_sizes, name: size}, 0)
        try:
            with evaluate_and_restore(module), without_training_modules():
                call.run(module, draw_inputs(signature, spec, inputs))
        except Exception:  # noqa: BLE001 - a model may fail in any way
            return False
        return True

    advice = (
        suggest_multiple(name, partial(runs, name), example_sizes[name], limits)
        for name, limits in signature.dimensions.items()
    )
    return next(filter(None, advice), "")


def is_finite(tensors: Tensors) -> bool:
    """Return whether no tensor, of any shape and dtype, holds a NaN or an infinity."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def other_size(limits: Dimension, size: int) -> int:
    """Return a size within the limits that is not `size`, where there is one."""
    others = (*limits.among(*_SECOND_SIZES), limits.min, limits.max)
    return next((other for other in others if other != size), size)


def _packing_error(error: Exception) -> NotCapturable:
    line = raising_line(error)
    return NotCapturable(
        "the model packs sequences, which no graph can follow",
        expected="a forward that keeps the padded batch",
        got=quote_line(line) + one_line(error),
        remedy=PACKED,
        where="" if line is None else format_line(line),
    )


def _run_twice(module: nn.Module, call: Call, sample: SampleInputs) -> tuple[GoldenCase, Structure]:
    inputs = sample.tensors
    left_out: Counter[str] = Counter()
    with evaluate_and_restore(module):
        try:
            tensors = tuple(tensor.clone() for tensor in inputs)
            with without_training_modules(left_out):
                result = call.run_in_place(module, tensors)
            changed = changed_indices(inputs, tensors)
            structure = describe_structure(call, result)
            outputs = call.select_outputs(flatten_tensors(result))
            first = tuple(tensor.detach().clone() for tensor in outputs)
            with without_training_modules():
                second = call.select_outputs(flatten_tensors(call.run(module, inputs)))
        except HandoffError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise out_of_memory_error("deliver", error) from error
            if sample.sizes and is_about_packing(error):
                # Lengths of the example don't fit other sizes; nor would the capture follow.
                raise _packing_error(error) from error
            raise run_failure(call, sample, one_line(error), raising_line(error)) from error
        if not first:
            raise DeliveryUnsound(
                "the model gives no tensor", got="none",
                expected="a tensor, or tensors in a tuple, list, dictionary or dataclass",
                remedy="Let forward return what is to be served",
            )  # fmt: skip
        _require_real(first)
        if not outputs_agree(second, first):
            raise unrepeatable_error(module, call, inputs)
    return GoldenCase(inputs, first, left_out, changed), structure


def changed_indices(before: Tensors, after: Tensors) -> tuple[int, ...]:
    """Return the places at which two lists of tensors differ; NaN is the same as NaN.

    They may be of any shapes: another shape differs, another dtype alone doesn't.
    """
    return tuple(
        index
        for index, (one, other) in enumerate(zip(before, after, strict=True))
        if one.shape != other.shape
        or not bool(((one == other) | (one.isnan() & other.isnan())).all())
    )


def _require_real(outputs: Tensors) -> None:
    for index, tensor in enumerate(outputs):
        if tensor.is_complex():
            raise DeliveryUnsound(
                f"output {index} can't be released", expected="a dtype of real numbers",
                got=str(tensor.dtype).removeprefix("torch."), remedy=REAL_OUTPUTS,
            )  # fmt: skip


def format_shapes(tensors: Tensors) -> str:
    """Return the tensors' shapes for a sentence: `[7, 20], [7]`."""
    return ", ".join(str(list(tensor.shape)) for tensor in tensors)


def outputs_agree(actual: Tensors, expected: Tensors) -> bool:
    """Return whether both are the same, but for rounding; NaN and infinity have to be the same.

    So have all shapes and dtypes, and what isn't floating-point.
    """
    return len(actual) == len(expected) and all(map(_tensors_agree, actual, expected))


def _tensors_agree(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if torch.equal(actual, expected):
        return True
    if not expected.is_floating_point():
        return False
    finite = expected.isfinite()
    largest = float(expected[finite].abs().max()) if bool(finite.any()) else 0.0
    allowed = _ALLOWED.get(expected.dtype, _ALLOWED_FLOAT32) * largest
    return torch.allclose(actual, expected, rtol=0.0, atol=allowed, equal_nan=True)
