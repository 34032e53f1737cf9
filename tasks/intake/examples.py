"""Reads a delivery's examples, calibration and evaluation, and holds them against its contract."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from handoff.artifacts.delivery.contract import (
    CALIBRATION_BATCHES,
    CALIBRATION_BYTES,
    CALIBRATION_FILE,
    EXAMPLES_FILE,
    DeliveryContract,
)
from handoff.artifacts.delivery.metric import (
    EVALUATION_BATCHES,
    EVALUATION_BYTES,
    EVALUATION_FILE,
)
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.intake.errors import DAMAGED, refuse

_KEY = re.compile(
    r"(0|[1-9][0-9]{0,3})/(?:inputs/([A-Za-z_][A-Za-z0-9_]*)|outputs/([0-9]{1,4})|(labels))"
)


@dataclass(frozen=True)
class ExampleCase:
    """One example: inputs in the contract's order, and what the original module made of them.

    Inputs are of the contract's shapes and dtypes, outputs flattened, as they were written.
    """

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...] | None


@dataclass(frozen=True)
class LabelledBatch:
    """Samples of an evaluation: inputs in the contract's order, and what is right for their rows.

    Inputs are of the contract's shapes and dtypes, labels `[rows, ...]`; None for a metric that
    compares with eager.
    """

    inputs: tuple[torch.Tensor, ...]
    labels: torch.Tensor | None


def read_examples(folder: Path, contract: DeliveryContract) -> tuple[ExampleCase, ...]:
    """Return the example cases in `folder`, in order; none when there is no such file.

    Raises `DeliveryUnreadable` when they don't fit the contract's dtypes, shapes and ranges.
    """
    cases = _Reader(EXAMPLES_FILE, contract).read(folder)
    return tuple(ExampleCase(case.inputs, case.outputs) for case in cases)


def read_calibration(
    folder: Path, contract: DeliveryContract
) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Return the calibration batches in `folder`, in order; none when there is no such file.

    Each is of the contract's shapes and dtypes, in its order. Raises `DeliveryUnreadable` when they
    don't fit that, or are too many or too large.
    """
    reader = _Reader(CALIBRATION_FILE, contract, has_outputs=False)
    batches = reader.read_bounded(folder, CALIBRATION_BATCHES, CALIBRATION_BYTES)
    return tuple(batch.inputs for batch in batches)


def read_evaluation(folder: Path, contract: DeliveryContract) -> tuple[LabelledBatch, ...]:
    """Return the evaluation's samples in `folder`, in order; none when there is no such file.

    Raises `DeliveryUnreadable` when they don't fit the contract, are too many or too large, lack
    their labels, or where the contract names no metric for them.
    """
    reader = _Reader(EVALUATION_FILE, contract, has_outputs=False, has_labels=True)
    batches = reader.read_bounded(folder, EVALUATION_BATCHES, EVALUATION_BYTES)
    metric = contract.metric
    if (metric is None) != (not batches):
        expected = "samples for the contract's metric" if metric else "a [metric] in the contract"
        raise reader.refuse(expected, "neither file nor samples" if metric else "samples alone")
    if metric and metric.kind.labels and any(batch.labels is None for batch in batches):
        raise reader.refuse(f"labels for each case, which {metric.name} needs", "none")
    return tuple(LabelledBatch(batch.inputs, batch.labels) for batch in batches)


@dataclass(frozen=True)
class _Case:
    """A case as it lies in its file: inputs in the contract's order, and what is beside them."""

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...] | None
    labels: torch.Tensor | None


@dataclass(frozen=True)
class _Reader:
    """Reads one of the files of cases, and refuses it by its name."""

    file: str
    contract: DeliveryContract
    has_outputs: bool = True
    has_labels: bool = False

    def read_bounded(self, folder: Path, max_batches: int, max_bytes: int) -> tuple[_Case, ...]:
        """Return the cases in order; there may be as many, and the file as large."""
        path = folder / self.file
        if path.exists() and path.stat().st_size > max_bytes:
            raise self.refuse(f"at most {max_bytes} bytes", path.stat().st_size)
        cases = self.read(folder)
        if len(cases) > max_batches:
            raise self.refuse(f"at most {max_batches} batches", len(cases))
        return cases

    def read(self, folder: Path) -> tuple[_Case, ...]:
        """Return the cases in order."""
        if not (folder / self.file).exists():
            return ()
        inputs: dict[int, dict[str, torch.Tensor]] = {}
        outputs: dict[int, dict[int, torch.Tensor]] = {}
        labels: dict[int, torch.Tensor] = {}
        for key, tensor in self._load(folder / self.file).items():
            match = _KEY.fullmatch(key)
            if match is None:
                raise self.refuse("names such as 0/inputs/x and 0/outputs/0", key)
            case, name, index = int(match[1]), match[2], match[3]
            if name is not None:
                inputs.setdefault(case, {})[name] = tensor
            elif index is not None and self.has_outputs:
                outputs.setdefault(case, {})[int(index)] = tensor
            elif index is None and self.has_labels:
                labels[case] = tensor
            else:
                raise self.refuse(self._allowed_kinds, key)
        extra = set(outputs) | set(labels)
        if extra - set(inputs) or sorted(inputs) != list(range(len(inputs))):
            found = ", ".join(map(str, sorted(inputs)))
            raise self.refuse("cases numbered from 0, each with its inputs", found)
        return tuple(
            _Case(
                self._order_inputs(case, inputs[case]),
                self._order_outputs(case, outputs.get(case)),
                labels.get(case),
            )
            for case in range(len(inputs))
        )

    @property
    def _allowed_kinds(self) -> str:
        if self.has_outputs:
            return "inputs and outputs"
        return "inputs and labels" if self.has_labels else "inputs alone"

    def _load(self, path: Path) -> dict[str, torch.Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors: dict[str, torch.Tensor] = load_file(path)
        except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
            raise self.refuse("a safetensors file", str(error), DAMAGED) from error
        return tensors

    def _order_inputs(self, case: int, named: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        names = [spec.name for spec in self.contract.inputs]
        if set(named) != set(names):
            found = ", ".join(sorted(named))
            raise self.refuse(f"the inputs {', '.join(names)} in case {case}", found)
        for spec in self.contract.inputs:
            dtype = str(named[spec.name].dtype).removeprefix("torch.")
            if dtype != spec.dtype:
                raise self.refuse(f"{spec.name} of {spec.dtype} in case {case}", dtype)
            self._require_values(case, spec, named[spec.name])
        try:
            self.contract.signature.measure({name: tuple(t.shape) for name, t in named.items()})
        except ValueError as error:
            raise self.refuse(f"case {case} to fit the contract", str(error)) from error
        return tuple(named[name] for name in names)

    def _require_values(self, case: int, spec: TensorSpec, tensor: torch.Tensor) -> None:
        """Refuse whole numbers that the contract would refuse when served."""
        if "int" not in spec.dtype or spec.low is None or spec.high is None or not tensor.numel():
            return
        low, high = int(tensor.min()), int(tensor.max())
        if low < spec.low or high > spec.high:
            raise self.refuse(f"{spec.name} from {spec.values} in case {case}", f"{low} to {high}")

    def _order_outputs(
        self, case: int, numbered: dict[int, torch.Tensor] | None
    ) -> tuple[torch.Tensor, ...] | None:
        if numbered is None:
            return None
        if sorted(numbered) != list(range(len(numbered))):
            found = ", ".join(map(str, sorted(numbered)))
            raise self.refuse(f"outputs numbered from 0 in case {case}", found)
        return tuple(numbered[index] for index in range(len(numbered)))

    def refuse(self, expected: str, got: object, remedy: str = "") -> Exception:
        """Return the refusal of the file."""
        return refuse(
            f"{self.file} does not fit the contract",
            expected=expected,
            got=got,
            where=self.file,
            remedy=remedy
            or "Fix delivery.toml, or write the examples again with 'handoff deliver'",
        )
