"""What a toolchain is known to get wrong is asked of the graph at hand, with what shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from handoff.artifacts.conformance.storage import shipped_tables
from handoff.artifacts.conformance.table import KnownFault, PlainTensor
from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.conformance.known_faults import find_known_faults
from handoff.tasks.verify.inputs.boundaries.cases import BoundaryCase, make_fault_case
from handoff.tasks.verify.inputs.boundaries.tracing import trace

Range = tuple[float, float]

NEGATIVE = KnownFault(
    ("aten.amax.default(int8)",), "amax", "amax is wrong",
    (PlainTensor("int8", (1, 4), (-1, -2, -3, -4)),),
)  # fmt: skip
INFINITE = KnownFault(
    ("aten.remainder.Tensor(float32, float32)",), "remainder", "remainder is wrong",
    (PlainTensor("float32", (2,), (2.0, 3.0)), PlainTensor("float32", (2,), (float("inf"), 0.3))),
)  # fmt: skip


def find_case(
    fault: KnownFault,
    model: Callable[..., object],
    *inputs: torch.Tensor,
    declared: Range | None = None,
) -> BoundaryCase | None:
    specs = [
        TensorSpec(
            f"x{index}", str(tensor.dtype).removeprefix("torch."), ("batch", *tensor.shape[1:]),
            *(declared or (None, None)),
        )
        for index, tensor in enumerate(inputs)
    ]  # fmt: skip
    return make_fault_case(fault, specs, inputs, trace(model, inputs))


def test_the_values_that_show_it_reach_the_operator_through_the_graph() -> None:
    x = torch.randint(1, 50, (3, 8), dtype=torch.int8)
    seen = []

    def model(x: torch.Tensor) -> torch.Tensor:
        moved = (x.reshape(8, 3) - 5).t()
        seen.append(moved.clone())
        return moved.amax(-1)

    case = find_case(NEGATIVE, model, x, declared=(-100, 100))
    assert case is not None
    assert case.label == "what amax of int8 gets wrong"
    assert case.undeclared == ()
    model(*case.inputs)
    assert seen[-1].max() < 0, "as one-sided as what shows it"
    assert set(seen[-1].flatten().tolist()) == {-1, -2, -3, -4}


def test_what_is_not_declared_to_be_served_isnt_asked() -> None:
    x = torch.randint(1, 50, (3, 8), dtype=torch.int8)
    assert find_case(NEGATIVE, lambda x: x.amax(-1), x, declared=(0, 50)) is None
    near = torch.rand(5, 2) + 0.5
    case = find_case(INFINITE, torch.remainder, near, near + 1.0, declared=(0.1, 3.5))
    assert case is not None
    assert all(bool(one.isfinite().all()) for one in case.inputs)


def test_each_tensor_of_the_operator_gets_its_own_values() -> None:
    case = find_case(INFINITE, torch.remainder, torch.rand(5, 2), torch.rand(5, 2))
    assert case is not None
    first, second = case.inputs
    assert first.flatten()[:2].tolist() == [2.0, 3.0]
    assert second.flatten()[:1].tolist() == [float("inf")]
    assert case.undeclared == ("x1",), "infinite divisors are not what is drawn"


def test_another_dtype_than_the_faulty_one_isnt_asked() -> None:
    assert find_case(NEGATIVE, lambda x: x.amax(-1), torch.rand(3, 8)) is None
    doubles = torch.rand(3, 8, dtype=torch.float64)
    assert find_case(INFINITE, torch.remainder, doubles, doubles) is None


def test_an_operator_that_is_called_otherwise_when_it_runs_gets_them_by_the_inputs() -> None:
    x = torch.randint(1, 50, (3, 8), dtype=torch.int8)
    case = find_case(NEGATIVE, lambda x: x.max(-1).values, x, declared=(-100, 100))
    assert case is not None
    assert case.inputs[0].max() == -1


@pytest.mark.parametrize("table", list(shipped_tables()), ids=lambda one: one.target)
def test_every_fault_of_the_locked_toolchain_can_be_asked_of_its_own_operator(
    table: object,
) -> None:
    faults = find_known_faults(table, {call for row in table.rows for call in row.calls})  # type: ignore
    assert len(faults) >= 20
    for fault in faults:
        assert "," not in fault.name, "a manner would follow"
        if not fault.inputs:
            continue
        kinds = {plain.dtype for plain in fault.inputs if plain.values}
        inputs = tuple(torch.ones(4, 9).to(getattr(torch, kind)) for kind in sorted(kinds))
        declared = None if "float" in str(kinds) else (-(2**63), 2**63 - 1)
        case = find_case(fault, lambda *x: x, *inputs, declared=declared)
        assert (case is not None) == bool(kinds), fault
