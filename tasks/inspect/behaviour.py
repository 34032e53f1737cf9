"""What the graph does when it runs: twice, on parts of a batch, on other sizes and values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from handoff.artifacts.delivery.signature import REAL_OUTPUTS, Dimension
from handoff.artifacts.release.evidence import Finding
from handoff.tasks.deliver.capture.lines import node_location
from handoff.tasks.deliver.capture.random_draws import RandomDraws
from handoff.tasks.deliver.multiples import format_dimension, suggest_multiple
from handoff.tasks.intake.loading import LoadedDelivery
from handoff.tasks.optimize.capture import summarize_export_error
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.inputs.plan import CaseSpec, middle_sizes

Tensors = tuple[torch.Tensor, ...]

_ROWS, _PART = 5, 2
# Another batch size may take another kernel, which sums in another order.
_ROW_RTOL = {torch.float64: 1e-9, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_ROW_RTOL_FLOAT32 = 1e-3


def call(module: torch.fx.GraphModule, inputs: Tensors) -> Tensors:
    """Return the outputs for copies of `inputs`, flattened; shapes and dtypes are the model's."""
    with torch.no_grad():
        return flatten_tensors(module(*[tensor.clone() for tensor in inputs]))


def is_runnable(module: torch.fx.GraphModule, inputs: Tensors) -> bool:
    """Return whether the model runs on these inputs, of any shapes and dtypes."""
    try:
        call(module, inputs)
    except Exception:  # noqa: BLE001 - a model may fail in any way
        return False
    return True


def equal_results(left: Tensors, right: Tensors) -> bool:
    """Return whether two results are equal, NaN being equal to NaN.

    Shapes, which may be any, have to be the same; dtypes don't.
    """
    return len(left) == len(right) and all(
        a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
        for a, b in zip(left, right, strict=True)
    )


def example_failure(error: Exception) -> Finding:
    """Return the finding of a model that can't be run on its example."""
    return Finding(
        "example-fails",
        "unsound",
        f"the model fails on its example: {summarize_export_error(error)}",
        "Deliver it again with example inputs that it can be called with",
    )


class _Watcher(torch.fx.Interpreter):
    """Runs a graph and notes, node by node, what draws random numbers and what is float64."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.random_nodes: dict[torch.fx.Node, str] = {}
        self.first_float64: torch.fx.Node | None = None

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        with RandomDraws(lambda name: self.random_nodes.setdefault(n, name)):
            value = super().run_node(n)
        if self.first_float64 is None and isinstance(value, torch.Tensor):
            self.first_float64 = n if value.dtype is torch.float64 else None
        return value


def run_twice(delivery: LoadedDelivery, inputs: Tensors) -> Iterator[Finding]:
    """Run the same inputs twice; compare outputs, inputs and state before and after.

    Inputs are of the contract's shapes and dtypes.
    """
    module = delivery.module
    copies = tuple(tensor.clone() for tensor in inputs)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    watcher = _Watcher(module)
    try:
        # Two calls made in the same way. A third is watched: under a dispatch mode torch takes
        # other kernels (singular values with their vectors, say), which may round otherwise.
        first, second = call(module, inputs), call(module, inputs)
        with torch.no_grad():
            watcher.run(*copies)
    except Exception as error:  # noqa: BLE001 - a model may fail in any way; each is the finding
        yield example_failure(error)
        return
    is_repeatable = equal_results(first, second)
    if not is_repeatable and not watcher.random_nodes and _is_repeatable_in_order(module, inputs):
        yield _unordered_sums_finding()
        is_repeatable = True
    yield from _random_findings(watcher, is_repeatable=is_repeatable)
    changed = [n for n, t in module.state_dict().items() if not equal_results((t,), (state[n],))]
    if changed:
        yield Finding(
            "changes-state",
            "unsound",
            f"running the model changes {', '.join(changed[:3])}",
            "Deliver it in evaluation mode and take updates of buffers out of the forward",
        )
        module.load_state_dict(state)
    if not equal_results(copies, inputs):
        yield Finding(
            "changes-input",
            "limit",
            "running the model changes its input in place",
            "Clone the input in the forward, or make sure that no caller uses it again",
        )
    yield from _complex_output_findings(first)
    yield from _precision_findings(watcher, module, inputs, first)


def _is_repeatable_in_order(module: torch.fx.GraphModule, inputs: Tensors) -> bool:
    """Return whether two runs are equal once torch adds in an order that threads don't decide.

    What reads memory that nobody has written stays as it is: torch isn't to fill it meanwhile.
    """
    saved = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(False)
    try:
        return equal_results(call(module, inputs), call(module, inputs))
    finally:
        torch.use_deterministic_algorithms(saved[0], warn_only=saved[1])
        torch._C._set_deterministic_fill_uninitialized_memory(saved[2])


def _unordered_sums_finding() -> Finding:
    return Finding(
        "sums-in-any-order",
        "note",
        "two runs differ, and don't where torch's deterministic algorithms are on: threads add to "
        "the same places (index_put with accumulate=True, put) in any order",
        "Nothing, unless the same bits are needed each time: scatter_add gives them",
    )


def _random_findings(watcher: _Watcher, *, is_repeatable: bool) -> Iterator[Finding]:
    """Find what draws random numbers, and whether two calls gave different outputs."""
    for node, name in watcher.random_nodes.items():
        yield Finding(
            "random-operator",
            "unsound",
            f"{node.name} draws random numbers ({name}) each time it runs",
            "Take it out of the forward; a functional dropout needs training=self.training",
            node_location(node),
        )
    if not is_repeatable:
        yield Finding(
            "not-repeatable",
            "unsound",
            "the same input gives different outputs when it is run twice",
            "Take random operators, active dropout and state out of the forward",
            node_location(next(iter(watcher.random_nodes))) if watcher.random_nodes else "",
        )


def _complex_output_findings(outputs: Tensors) -> Iterator[Finding]:
    for index, tensor in enumerate(outputs):
        if tensor.is_complex():
            yield Finding(
                "complex-output",
                "unsound",
                f"output {index} is {str(tensor.dtype).removeprefix('torch.')}, and a release "
                "gives real numbers",
                REAL_OUTPUTS,
            )


def _precision_findings(
    watcher: _Watcher, module: torch.fx.GraphModule, inputs: Tensors, outputs: Tensors
) -> Iterator[Finding]:
    if any(bool(tensor.isnan().any()) for tensor in outputs):
        yield Finding(
            "non-finite-output",
            "unsound",
            "the model gives NaN on its own example",
            "Find the layer that makes it; a checkpoint from before the training diverged helps",
        )
    weights = [t for name, t in module.state_dict().items() if "_tensor_constant" not in name]
    if watcher.first_float64 is not None and all(
        tensor.dtype is not torch.float64 for tensor in (*inputs, *weights)
    ):
        of_outputs = any(tensor.dtype is torch.float64 for tensor in outputs)
        yield Finding(
            "unexpected-float64",
            "limit" if of_outputs else "note",
            f"{watcher.first_float64.name} makes float64 of inputs and weights that hold none"
            + (", and so does an output" if of_outputs else ""),
            "Name the dtype where a tensor is made from Python or NumPy numbers",
            node_location(watcher.first_float64),
        )


def _small_sizes(delivery: LoadedDelivery) -> dict[str, int]:
    return middle_sizes(delivery.contract.signature)


def check_sizes(delivery: LoadedDelivery) -> Iterator[Finding]:
    """Run every dynamic dimension at its smallest sizes, at an odd one, and at its largest."""
    dimensions = delivery.contract.signature.dimensions
    for name, limits in dimensions.items():
        small = {limits.min, limits.second, *limits.among(5)}
        for size in sorted(small):
            if failure := _find_failure(delivery, name, size):
                yield Finding(
                    "size-baked-in",
                    "unsound",
                    f"the model fails for {name} = {size}: {failure.reason}",
                    _multiple_remedy(delivery, name, limits)
                    or f"Write {name} as x.shape[...] in the forward, or declare it as fixed",
                    failure.where,
                )
                break
        else:
            yield from _check_largest_size(delivery, name, limits, max(small))


@dataclass(frozen=True)
class _Failure:
    """Why a graph can't be run, and the line of the node that couldn't."""

    reason: str
    where: str


def _find_failure(delivery: LoadedDelivery, name: str, size: int) -> _Failure | None:
    """Return why the model fails with `name` at `size`, the others small; None where it runs."""
    spec = CaseSpec("other size", {**_small_sizes(delivery), name: size}, 0)
    inputs = delivery.draw(spec)
    try:
        call(delivery.module, inputs)
    except Exception as error:  # noqa: BLE001 - as above: any failure is the finding
        return _Failure(summarize_export_error(error), _locate_failure(delivery.module, inputs))
    return None


def _multiple_remedy(delivery: LoadedDelivery, name: str, limits: Dimension) -> str:
    """Return what to do where the model runs at multiples of a number of `name` alone, else ''."""
    if not delivery.cases:
        return ""
    example_sizes = delivery.contract.signature.measure_inputs(delivery.cases[0].inputs)

    def runs(size: int) -> bool:
        drawn = delivery.draw(CaseSpec("multiple", {**example_sizes, name: size}, 0))
        return is_runnable(delivery.module, drawn)

    return suggest_multiple(name, runs, example_sizes[name], limits)


def _locate_failure(module: torch.fx.GraphModule, inputs: Tensors) -> str:
    """Return the place of the node that fails on these inputs, of any shapes and dtypes."""
    walker = _Walker(module)
    with torch.no_grad(), contextlib.suppress(Exception):
        walker.run(*inputs)
    return node_location(walker.current) if walker.current else ""


class _Walker(torch.fx.Interpreter):
    """Runs a graph; `current` is the node under way, `size_bytes` what all have made of inputs."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.current: torch.fx.Node | None = None
        self.size_bytes = 0

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        self.current = n
        value = super().run_node(n)
        if n.op != "get_attr":
            self.size_bytes += sum(tensor.nbytes for tensor in flatten_tensors(value))
        return value


# What takes more intermediate results is left to the comparison, which has the memory for it.
_LARGEST_BYTES = 2**30


def _check_largest_size(
    delivery: LoadedDelivery, name: str, limits: Dimension, fits: int
) -> Iterator[Finding]:
    """Find the size beyond `fits`, at which it runs, from which on the model fails, if any.

    What the largest size takes is extrapolated: results grow with the size for most models.
    """
    largest = limits.max
    if largest <= fits:
        return
    walker = _Walker(delivery.module)
    with torch.no_grad():
        walker.run(
            *delivery.draw(CaseSpec("other size", {**_small_sizes(delivery), name: fits}, 0))
        )
    if walker.size_bytes / max(fits, 1) * largest > _LARGEST_BYTES:
        return
    failure = _find_failure(delivery, name, largest)
    if failure is None:
        return
    fails = largest
    step = limits.multiple_of
    while fails - fits > step:
        middle = (fits + fails) // 2 // step * step
        found = _find_failure(delivery, name, middle)
        fits, fails, failure = (middle, fails, failure) if not found else (fits, middle, found)
    yield Finding(
        "size-beyond-model",
        "unsound",
        f"{name} is declared up to {largest}, and the model runs up to {fits}: at {fails} it fails "
        f"with {failure.reason}",
        f"Declare dimensions={{'{name}': {format_dimension(replace(limits, max=fits))}}}, or "
        "enlarge what limits the model there",
        failure.where,
    )


def check_output_variation(delivery: LoadedDelivery) -> Iterator[Finding]:
    """Run other values of one size: an output that stays the same can't be compared with."""
    unmoved = _find_unmoved(delivery, _small_sizes(delivery))
    if unmoved and delivery.cases:
        # A graph of one edge may have one output whatever its nodes are.
        example_sizes = delivery.contract.signature.measure_inputs(delivery.cases[0].inputs)
        also_unmoved = _find_unmoved(delivery, example_sizes)
        unmoved = {index: output for index, output in unmoved.items() if index in also_unmoved}
    for index, output in unmoved.items():
        yield Finding(
            "unmoved-output",
            "limit",
            f"output {index} is the same for different inputs"
            + (" (0 everywhere)" if not bool(output.any()) else "")
            + ": a comparison of it says nothing about the layers before",
            "Check that the weights are trained ones, and that the inputs reach the output",
        )


def _find_unmoved(delivery: LoadedDelivery, sizes: dict[str, int]) -> dict[int, torch.Tensor]:
    """Return the outputs that two draws of these sizes have in common, of any shape, by index.

    None where the draws are the same, or the model fails on one.
    """
    drawn = [delivery.draw(CaseSpec(f"value {seed}", sizes, seed)) for seed in (1, 2)]
    if equal_results(*drawn):
        return {}
    try:
        left, right = (call(delivery.module, inputs) for inputs in drawn)
    except Exception:  # noqa: BLE001 - found at this size by `check_sizes`, or on the example
        return {}
    return {
        index: a
        for index, (a, b) in enumerate(zip(left, right, strict=True))
        if a.is_floating_point() and a.numel() and equal_results((a,), (b,))
    }


def check_row_independence(delivery: LoadedDelivery) -> Iterator[Finding]:
    """Run two rows alone and within a batch of five: a row's output is to be its own.

    Not where the contract says that rows depend on each other.
    """
    signature = delivery.contract.signature
    leading = {spec.shape[:1] for spec in signature.inputs}
    names = [axis for shape in leading for axis in shape]
    if not delivery.contract.batch_invariant or len(leading) != 1 or len(names) != 1:
        return
    (batch,) = names
    if not isinstance(batch, str) or any(n not in signature.dimensions[batch]
                                         for n in (_ROWS, _PART)):  # fmt: skip
        return
    inputs = delivery.draw(CaseSpec("rows apart", {**_small_sizes(delivery), batch: _ROWS}, 0))
    try:
        together = call(delivery.module, inputs)
        alone = call(delivery.module, tuple(tensor[:_PART] for tensor in inputs))
    except Exception:  # noqa: BLE001 - `check_sizes` finds which size fails
        return
    for index, (all_rows, part) in enumerate(zip(together, alone, strict=True)):
        dependence = _describe_dependence(all_rows, part)
        if dependence:
            yield Finding(
                "rows-depend-on-each-other",
                "limit",
                f"output {index} {dependence}",
                "If that is meant, declare batch_invariant = false; if not, look for statistics "
                "over the batch, or a batch norm in training mode",
            )
            return


def _describe_dependence(together: torch.Tensor, alone: torch.Tensor) -> str:
    if together.shape == alone.shape:
        return "has no row for each row of the batch: it mixes them"
    if together.shape[:1] != (_ROWS,) or alone.shape[1:] != together.shape[1:]:
        return ""
    rows = together[:_PART]
    if not rows.is_floating_point():
        return ""
    finite = rows.isfinite() & alone.isfinite()
    scale = float(rows[finite].abs().max()) if bool(finite.any()) else 0.0
    allowed = _ROW_RTOL.get(rows.dtype, _ROW_RTOL_FLOAT32) * scale
    if torch.allclose(alone, rows, rtol=0.0, atol=allowed, equal_nan=True):
        return ""
    deviation = float((alone - rows)[finite].abs().max()) if bool(finite.any()) else 0.0
    return f"of a row depends on the other rows of its batch: it moves by {deviation:.3g}"
