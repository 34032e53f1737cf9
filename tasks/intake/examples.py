"""Reads the example inputs and outputs of a delivery, and holds them against its contract."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from handoff.artifacts.delivery.contract import EXAMPLES_FILE, DeliveryContract
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.intake.refusal import DAMAGED, refuse

_KEY = re.compile(r"(0|[1-9][0-9]{0,3})/(?:inputs/([A-Za-z_][A-Za-z0-9_]*)|outputs/([0-9]{1,4}))")


@dataclass(frozen=True)
class ExampleCase:
    """One example: inputs in the contract's order, and what the original module made of them.

    Inputs are of the contract's shapes and dtypes, outputs flattened, as they were written.
    """

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...] | None


def read_examples(folder: Path, contract: DeliveryContract) -> tuple[ExampleCase, ...]:
    """Return the example cases in `folder`, in order; none when there is no such file.

    Raises `DeliveryUnreadable` when they don't fit the contract's dtypes, shapes and ranges.
    """
    path = folder / EXAMPLES_FILE
    if not path.exists():
        return ()
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise _refuse("a safetensors file", str(error), DAMAGED) from error
    inputs: dict[int, dict[str, torch.Tensor]] = {}
    outputs: dict[int, dict[int, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise _refuse("names such as 0/inputs/x and 0/outputs/0", key)
        case, name, index = int(match[1]), match[2], match[3]
        if name is not None:
            inputs.setdefault(case, {})[name] = tensor
        else:
            outputs.setdefault(case, {})[int(index)] = tensor
    if set(outputs) - set(inputs) or sorted(inputs) != list(range(len(inputs))):
        raise _refuse(
            "cases numbered from 0, each with its inputs", ", ".join(map(str, sorted(inputs)))
        )
    return tuple(
        ExampleCase(
            _order_inputs(case, inputs[case], contract), _order_outputs(case, outputs.get(case))
        )
        for case in range(len(inputs))
    )


def _order_inputs(
    case: int, named: dict[str, torch.Tensor], contract: DeliveryContract
) -> tuple[torch.Tensor, ...]:
    names = [spec.name for spec in contract.inputs]
    if set(named) != set(names):
        raise _refuse(f"the inputs {', '.join(names)} in case {case}", ", ".join(sorted(named)))
    for spec in contract.inputs:
        dtype = str(named[spec.name].dtype).removeprefix("torch.")
        if dtype != spec.dtype:
            raise _refuse(f"{spec.name} of {spec.dtype} in case {case}", dtype)
        _require_values(case, spec, named[spec.name])
    try:
        contract.signature.measure({name: tuple(t.shape) for name, t in named.items()})
    except ValueError as error:
        raise _refuse(f"case {case} to fit the contract", str(error)) from error
    return tuple(named[name] for name in names)


def _require_values(case: int, spec: TensorSpec, tensor: torch.Tensor) -> None:
    """Raise `DeliveryUnreadable` for whole numbers that the contract would refuse when served."""
    if "int" not in spec.dtype or spec.low is None or spec.high is None or not tensor.numel():
        return
    low, high = int(tensor.min()), int(tensor.max())
    if low < spec.low or high > spec.high:
        raise _refuse(f"{spec.name} from {spec.values} in case {case}", f"{low} to {high}")


def _order_outputs(
    case: int, numbered: dict[int, torch.Tensor] | None
) -> tuple[torch.Tensor, ...] | None:
    if numbered is None:
        return None
    if sorted(numbered) != list(range(len(numbered))):
        raise _refuse(
            f"outputs numbered from 0 in case {case}", ", ".join(map(str, sorted(numbered)))
        )
    return tuple(numbered[index] for index in range(len(numbered)))


def _refuse(expected: str, got: object, remedy: str = "") -> Exception:
    return refuse(
        f"{EXAMPLES_FILE} does not fit the contract",
        expected=expected,
        got=got,
        where=EXAMPLES_FILE,
        remedy=remedy or "Mend delivery.toml, or write the examples again with 'handoff deliver'",
    )
