"""Tries the capture methods until one leads to a delivery that is right when it is read back."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch.fx
from safetensors.torch import save_file
from torch import nn

from handoff.artifacts.delivery.contract import (
    CALIBRATION_FILE,
    CONTRACT_FILE,
    EXAMPLES_FILE,
    SOURCES_FILE,
    DeliveryContract,
    format_contract,
)
from handoff.artifacts.delivery.metric import EVALUATION_FILE
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.errors import (
    DeliveryUnreadable,
    DeliveryUnsound,
    HandoffError,
    NotCapturable,
    error_from_record,
)
from handoff.tasks.deliver.capture.calls import Call, Tensors, format_tensor
from handoff.tasks.deliver.capture.failures import (
    Failure,
    describe_fallback,
    describe_static_shapes,
)
from handoff.tasks.deliver.capture.lines import Line, format_line, last_trace_line, one_line
from handoff.tasks.deliver.capture.methods import (
    CAPTURE_METHODS,
    CapturedGraph,
    CaptureMethod,
    CaptureRequest,
)
from handoff.tasks.deliver.datasets import NO_DATASETS, Datasets, Evaluation
from handoff.tasks.deliver.golden import (
    GoldenCase,
    Goldens,
    changed_indices,
    evaluate_and_restore,
    format_shapes,
    outputs_agree,
)
from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.optimize.operators import BUILT_IN, own_namespaces
from handoff.tasks.verify.float64 import flatten_tensors


@dataclass(frozen=True)
class DeliveryBuilder:
    """What is being delivered where, and why it hasn't gone well so far."""

    module: nn.Module
    call: Call
    goldens: Goldens
    folder: Path
    failures: list[Failure] = field(default_factory=list)
    datasets: Datasets = NO_DATASETS

    def build(self, contract: DeliveryContract) -> DeliverResult | None:
        """Write the delivery by the first method whose result is right when it is read back."""
        for method in CAPTURE_METHODS:
            with evaluate_and_restore(self.module):
                result = self._try_method(method, contract)
            if result is not None:
                fallback = describe_fallback(method.name, self.failures)
                return replace(result, notes=(*result.notes, *self.goldens.notes, *fallback))
        return None

    def build_static(self, contract: DeliveryContract) -> DeliverResult | None:
        """Write the delivery for the example's sizes alone, where no capture holds for others."""
        example, *_ = self.goldens.cases
        specs = tuple(
            replace(spec, shape=tuple(tensor.shape))
            for spec, tensor in zip(contract.inputs, example.inputs, strict=True)
        )
        shapes = {name: t.shape for name, t in zip(self.call.names, example.inputs, strict=True)}
        datasets = self.datasets.filter_by_shapes(shapes)
        goldens = replace(self.goldens, cases=(example,))
        builder = replace(self, goldens=goldens, failures=[], datasets=datasets)
        metric = contract.metric if datasets.evaluation else None
        result = builder.build(replace(contract, inputs=specs, dimensions={}, metric=metric))
        if result is None:
            return None
        note = describe_static_shapes(contract, example.inputs, self.failures)
        return replace(result, notes=(note, *result.notes))

    def _try_method(
        self, method: CaptureMethod, contract: DeliveryContract
    ) -> DeliverResult | None:
        """Try one method; note why it leads nowhere, where it does."""
        try:
            example = self.goldens.cases[0]
            rows = example.inputs if contract.draw == "examples" else None
            captured = method.capture(
                CaptureRequest(self.module, self.call, contract.signature, example.left_out, rows)
            )
        except Exception as error:  # noqa: BLE001 - reported if no method goes well, or beside it
            self.failures.append(Failure(method.name, error, captured=False))
            return None
        try:
            return self._write_checked(captured, contract, method.name)
        except HandoffError as error:
            refusal = _rephrase_for_author(error, captured, self.folder)
            self.failures.append(Failure(method.name, refusal, captured=True))
            shutil.rmtree(self.folder, ignore_errors=True)
            return None

    def _write_checked(
        self, captured: CapturedGraph, contract: DeliveryContract, method: str
    ) -> DeliverResult:
        narrowed = _narrow(contract, captured, method)
        cases = [_select_inputs(c, contract.signature, captured.inputs) for c in self.goldens.cases]
        for case in cases:
            _require_same(captured.module, case, "the captured graph")
        left_out = (*captured.notes, *self._describe_omissions(captured, cases[0]))
        narrowed = replace(narrowed, left_out=left_out)
        _write(captured, narrowed, cases, self.folder)
        write_calibration(self.datasets.calibration, narrowed, self.folder)
        if self.datasets.evaluation:
            write_evaluation(self.datasets.evaluation, narrowed, self.folder)
        namespaces = own_namespaces(captured.module.graph.nodes)
        loaded = read_delivery(self.folder, BUILT_IN | namespaces)
        for case in cases:
            _require_same(loaded.module, case, "what was written")
        names = ", ".join(sorted(namespaces))
        note = f"calls operators of {names}: the recipe has to name their extension"
        return DeliverResult(self.folder, narrowed, (*left_out, *([note] if namespaces else [])))

    def _describe_omissions(self, captured: CapturedGraph, example: GoldenCase) -> Iterator[str]:
        """Yield which outputs were losses, and which inputs the graph doesn't change any more."""
        for path in self.goldens.structure.losses:
            yield f"left out: the output {path or 'of forward'}, which was a loss"
        inputs = tuple(tensor.clone() for tensor in example.inputs)
        captured.module(*inputs)
        changes = {captured.inputs[index] for index in changed_indices(example.inputs, inputs)}
        for index in self.goldens.cases[0].changed:
            name = self.call.names[index]
            if name in captured.inputs and name not in changes:
                yield f"left out: the change of the input {name} in place, which forward makes"


_CUSTOM_OPERATOR = (
    "Write that line with torch's operators; an operator of your own has to be registered, and "
    "its extension named in the recipe"
)


def _rephrase_for_author(
    error: HandoffError, captured: CapturedGraph, folder: Path
) -> HandoffError:
    """Return what the intake says of the folder as it is said to whoever wrote the model.

    That is with the forward's line in place of the one of module.py, which nobody has seen, and
    without the advice to deliver it by this command: what can't be read back is the model's doing.
    """
    record = error.as_record()
    if type(error) is DeliveryUnreadable:
        record["class"] = NotCapturable.__name__
    if "'handoff deliver'" in record["remedy"]:
        record["remedy"] = _CUSTOM_OPERATOR
    file, _, number = record["where"].partition(":")
    if file == "module.py" and number.isdecimal() and (folder / file).is_file():
        line = (folder / file).read_text(encoding="utf-8").splitlines()[int(number) - 1]
        name = line.partition(" = ")[0].strip()
        lines = [_source_line(node) for node in captured.module.graph.nodes if node.name == name]
        record["where"] = next((format_line(found) for found in lines if found), record["where"])
    return error_from_record(record)


def _source_line(node: torch.fx.Node) -> Line | None:
    return node.meta.get("source") or last_trace_line(node.meta.get("stack_trace") or "")


def _narrow(contract: DeliveryContract, captured: CapturedGraph, method: str) -> DeliveryContract:
    """Return the contract of what was captured: its inputs alone, and their dimensions."""
    indices = [index for index, spec in enumerate(contract.inputs) if spec.name in captured.inputs]
    inputs = tuple(contract.inputs[index] for index in indices)
    used = {axis for spec in inputs for axis in spec.shape}
    paths = contract.structure.inputs
    return replace(
        contract,
        model=replace(contract.model, captured_by=method),
        inputs=inputs,
        structure=replace(
            contract.structure, inputs=tuple(paths[index] for index in indices) if paths else ()
        ),
        dimensions={name: d for name, d in contract.dimensions.items() if name in used},
    )


def _select_inputs(
    case: GoldenCase, signature: ModelSignature, names: tuple[str, ...]
) -> GoldenCase:
    pairs = zip(signature.inputs, case.inputs, strict=True)
    return replace(case, inputs=tuple(tensor for spec, tensor in pairs if spec.name in names))


def _require_same(module: nn.Module, case: GoldenCase, what: str) -> None:
    try:
        outputs = flatten_tensors(module(*[tensor.clone() for tensor in case.inputs]))
        got = _describe_difference(outputs, case.outputs)
    except Exception as error:  # noqa: BLE001 - it is reported as what was got
        outputs, got = (), one_line(error)
    if not outputs_agree(outputs, case.outputs):
        raise DeliveryUnsound(
            f"{what} computes something else than the model",
            expected=f"the model's own outputs for inputs of the shapes "
            f"{format_shapes(case.inputs)}",
            got=got,
            remedy="Forward decides something by a value or a size, which the capture has fixed: "
            "use torch.where, and x.shape in place of a number; or declare dynamic={}",
        )


def _describe_difference(outputs: Tensors, expected: Tensors) -> str:
    """Return how the outputs differ from those expected: in dtypes and shapes, or in values."""
    got, want = (", ".join(map(format_tensor, tensors)) for tensors in (outputs, expected))
    return f"outputs {got} in place of {want}" if got != want else "other values"


def _write(
    captured: CapturedGraph, contract: DeliveryContract, cases: list[GoldenCase], folder: Path
) -> None:
    # torch writes the paths of the .pt files as they were given to it, and warns of modules that
    # it pickles: a clean relative name keeps the training side's own paths out of the delivery.
    with chdir(folder.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            captured.module.to_folder(folder.name, contract.model.class_name)
        except OSError:
            raise
        except Exception as error:
            raise DeliveryUnreadable(
                "torch.fx can't write the captured graph", expected="a graph that to_folder writes",
                got=one_line(error), remedy="Remove from the model what can't be pickled",
            ) from error  # fmt: skip
    tensors = {}
    for index, case in enumerate(cases):
        for spec, tensor in zip(contract.inputs, case.inputs, strict=True):
            tensors[f"{index}/inputs/{spec.name}"] = tensor.detach().contiguous().clone()
        for position, tensor in enumerate(case.outputs):
            tensors[f"{index}/outputs/{position}"] = tensor.contiguous().clone()
    write_sources(captured.module, folder)
    _save(tensors, folder / EXAMPLES_FILE)
    (folder / CONTRACT_FILE).write_text(format_contract(contract), encoding="utf-8")


def write_calibration(
    batches: Sequence[Mapping[str, torch.Tensor]], contract: DeliveryContract, folder: Path
) -> None:
    """Write `calibration.safetensors`, of batches of which each has the contract's inputs by name.

    They are of its shapes and dtypes. Without any, nothing is written.
    """
    if batches:
        _save(_inputs_by_key(batches, contract), folder / CALIBRATION_FILE)


def write_evaluation(evaluation: Evaluation, contract: DeliveryContract, folder: Path) -> None:
    """Write `evaluation.safetensors`, of batches of which each has the contract's inputs by name.

    They are of its shapes and dtypes.
    """
    labels = {
        f"{number}/labels": labels.detach().contiguous().clone()
        for number, labels in enumerate(evaluation.labels)
        if labels is not None
    }
    _save(_inputs_by_key(evaluation.batches, contract) | labels, folder / EVALUATION_FILE)


def _inputs_by_key(
    batches: Sequence[Mapping[str, torch.Tensor]], contract: DeliveryContract
) -> dict[str, torch.Tensor]:
    return {
        f"{number}/inputs/{spec.name}": batch[spec.name].detach().contiguous().clone()
        for number, batch in enumerate(batches)
        for spec in contract.inputs
    }


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)
    path.chmod(0o644)  # safetensors makes its files private


def write_sources(module: torch.fx.GraphModule, folder: Path) -> None:
    """Write `sources.json`: for each node of the graph its `file.py:line`, where that is known."""
    lines = {}
    for node in module.graph.nodes:
        line = _source_line(node)
        if line is not None and node.op.startswith("call_"):
            lines[node.name] = format_line(line)
    text = json.dumps(lines, indent=0, sort_keys=True) + "\n"
    (folder / SOURCES_FILE).write_text(text, encoding="utf-8")
