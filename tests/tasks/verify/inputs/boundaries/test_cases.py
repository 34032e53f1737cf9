"""Boundary cases: what a graph decides at, and inputs that lead there, within what is declared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from handoff.artifacts.delivery.signature import DTYPES, TensorSpec
from handoff.tasks.verify.inputs.boundaries.cases import BoundaryCase, find_boundary_cases

Model = Callable[..., object]


def find_cases(
    model: Model, *inputs: torch.Tensor, ranges: dict[int, tuple[float, float]] | None = None
) -> dict[str, BoundaryCase]:
    """Return the boundary cases of a model by label; `ranges` are declared by input number."""
    specs = [
        TensorSpec(
            f"x{index}", str(tensor.dtype).removeprefix("torch."), ("batch", *tensor.shape[1:]),
            *(ranges or {}).get(index, (None, None)),
        )
        for index, tensor in enumerate(inputs)
    ]  # fmt: skip
    return {case.label: case for case in find_boundary_cases(specs, model, inputs)[0]}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_constant_is_asked_at_and_one_unit_in_the_last_place_beside_it() -> None:
    x = drawn(17, 6)
    (case,) = find_cases(lambda x: x > 0.5, x).values()
    assert case.label == "around 0.5"
    near = torch.tensor(0.5)
    beside = {float(torch.nextafter(near, near + side)) for side in (-1.0, 1.0)}
    assert {0.5, *beside} <= set(case.inputs[0].flatten().tolist())
    assert int((case.inputs[0] == x).sum()) >= x.numel() // 2, "the others stay as drawn"


@pytest.mark.parametrize(
    ("model", "label"),
    [
        (lambda x: x // 0.3, "multiples of 0.3"),
        (lambda x: torch.remainder(x, 0.7), "multiples of 0.7"),
        (lambda x: torch.fmod(x, torch.tensor(0.7)), "multiples of 0.7"),
        (lambda x: torch.div(x, 0.25, rounding_mode="trunc"), "multiples of 0.25"),
        (lambda x: torch.clamp(x, -0.5, 0.75), "around -0.5 and 0.75"),
        (torch.nn.functional.relu6, "around 0 and 6"),
        (torch.nn.functional.hardswish, "around -3 and 3"),
        (lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.5])), "around -1 and 0.5"),
        (lambda x: torch.searchsorted(torch.tensor([-1.0, 0.5]), x), "around -1 and 0.5"),
        (lambda x: torch.where(x.abs() < 2.0, x, 0.0), "around 0 and 2"),
        (lambda x: torch.round(x * 3.0), "at the steps of round"),
        (lambda x: (x * 127.0).to(torch.int8), "at the steps of to int8"),
        (lambda x: x.to(torch.bfloat16), "at the steps of to bfloat16"),
        (lambda x: 1.0 / x, "around 0"),
        (torch.nn.functional.softplus, "at the edges of softplus"),
        (lambda x: torch.exp(x - 1.0), "at the edges of exp"),
    ],
)
def test_what_an_operator_decides_at_is_named(model: Model, label: str) -> None:
    assert label in find_cases(model, drawn(17, 6))


def test_inputs_are_found_that_lead_there_through_what_lies_between() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        scaled = (x.permute(0, 2, 1).reshape(9, -1) / 255.0 - 0.45) / 0.225
        return (scaled > 1.0).sum(-1)

    image = torch.rand((9, 4, 5), generator=torch.Generator().manual_seed(0)) * 255
    case = find_cases(model, image, ranges={0: (0.0, 255.0)})["around 1"]
    (pixels,) = case.inputs
    away = ((pixels / 255.0 - 0.45) / 0.225 - 1.0).abs()
    assert int((away < 1e-5).sum()) > 20
    assert float(pixels.min()) >= 0.0
    assert float(pixels.max()) <= 255.0


def test_nothing_is_asked_beyond_a_declared_range() -> None:
    x = drawn(17, 6).clamp(-1, 1)
    assert not find_cases(lambda x: x > 5.0, x, ranges={0: (-1.0, 1.0)})
    cases = find_cases(lambda x: (x * 100.0).to(torch.int8), x, ranges={0: (-1.0, 1.0)})
    assert "beyond int8" not in cases
    wide = find_cases(lambda x: (x * 100.0).to(torch.int8), x, ranges={0: (-2.0, 2.0)})
    assert "beyond int8" in wide
    assert not wide["beyond int8"].undeclared


def test_what_leaves_the_drawn_numbers_says_which_input_nobody_declared() -> None:
    cases = find_cases(torch.remainder, drawn(17, 6), drawn(17, 6).abs() + 0.5)
    assert cases["large quotients by another input"].undeclared == ("x0",)
    assert float(cases["large quotients by another input"].inputs[0].abs().max()) > 1e4
    assert not cases["multiples of another input"].undeclared


def test_two_inputs_that_are_compared_are_asked_where_they_are_equal() -> None:
    case = find_cases(lambda x, y: x >= y, drawn(17, 6), drawn(17, 6) + 1.0)["equal inputs (ge)"]
    assert int((case.inputs[0] == case.inputs[1]).sum()) >= 20


def test_of_many_decisions_a_few_are_asked() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x > bound / 10 for bound in range(30)])

    (case,) = find_cases(model, drawn(17, 6)).values()
    assert case.label == "around 0 and 0.1 and 0.2 and 5 more"


def test_whole_numbers_are_asked_at_and_beside() -> None:
    ids = torch.arange(34).reshape(17, 2)
    case = find_cases(lambda ids: ids == 7, ids, ranges={0: (0, 40)})["around 7"]
    assert {6, 7, 8} <= set(case.inputs[0].flatten().tolist())
    assert case.inputs[0].dtype is torch.int64


def test_a_model_that_works_in_place_is_followed() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x.mul_(4.0)
        return torch.floor(x)

    (case,) = find_cases(model, drawn(17, 6)).values()
    scaled = case.inputs[0] * 4.0
    assert int((scaled == scaled.round()).sum()) > 10


def test_no_name_holds_a_comma_behind_which_a_case_is_told_in_another_manner() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0])
        return torch.bucketize(x, table) + (x > 0.25) + (x % y > 3.0) + (x // 0.3 > y)

    assert not any("," in name for name in find_cases(model, drawn(17, 6), drawn(17, 6)))


def test_the_same_model_asks_the_same() -> None:
    first, again = (find_cases(lambda x: x // 0.3, drawn(17, 6)) for _ in range(2))
    assert list(first) == list(again)
    for name, one in first.items():
        assert torch.equal(one.inputs[0], again[name].inputs[0])


def test_a_network_without_decisions_at_its_inputs_is_asked_nothing() -> None:
    layer = torch.nn.Linear(6, 3)
    assert not find_cases(lambda x: torch.relu(layer(x)), drawn(17, 6))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
def test_reductions_of_8_bits_are_noticed(dtype: torch.dtype) -> None:
    x = (drawn(17, 6) * 50).to(dtype)
    spec = TensorSpec("x", str(dtype).removeprefix("torch."), ("batch", 6))
    assert find_boundary_cases([spec], lambda x: x.amax(-1), (x,))[1].eight_bit_reductions
    assert not find_boundary_cases([spec], lambda x: x[:, :2], (x,))[1].eight_bit_reductions


@pytest.mark.parametrize(
    ("model", "declared"),
    [
        (lambda x: torch.remainder(x, 0.1) > 0.05, (0.0, 10.0)),
        (lambda x: torch.sin(x * 7.0) > 0.5, (-5.0, 5.0)),
        (lambda x: (x * x - x) >= 1.5, (-4.0, 4.0)),
    ],
    ids=["saw tooth", "sine", "parabola"],
)
def test_what_rises_and_falls_is_asked_at_every_place_where_it_decides(
    model: Model, declared: tuple[float, float]
) -> None:
    low, high = declared
    x = drawn(64, 6).abs().fmod(1.0) * (high - low) + low
    decides = []

    def watched(x: torch.Tensor) -> object:
        decides.append(x.clone())
        return model(x)

    cases = find_cases(watched, x, ranges={0: declared})
    (case,) = [case for name, case in cases.items() if name.startswith("around")]
    changed = case.inputs[0][case.inputs[0] != x]
    assert changed.numel() > x.numel() // 4
    # Not one crossing again and again: as many as there are, and both outcomes beside each.
    assert len({round(value, 2) for value in changed.tolist()}) >= 2
    assert 0.2 < float(torch.as_tensor(model(changed)).float().mean()) < 0.8


KINDS = tuple(getattr(torch, name) for name in DTYPES)
# Of two inputs of one type; some types have not all of them.
OPERATIONS: dict[str, Model] = {
    "compare": lambda x, y: (x >= 1, x == y, x < 0.5),
    "divide": lambda x, y: (x / y, x // 2, x % 2),
    "divide down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "limit": lambda x, y: (x.clamp(0, 1), torch.maximum(x, y), torch.where(x > 0, x, y)),
    "step": lambda x, y: (x.round(), x.floor(), x.sign(), torch.exp(x), torch.sqrt(x * y)),
    "count": lambda x, y: ((x != 0).to(torch.uint8).sum(-1), (x * y).sum(-1), ~(x > y)),
    "rotate": lambda x, y: (x.to(torch.complex64) * y, torch.polar(x.float(), y.float())),
}


@pytest.mark.parametrize("to", [*KINDS, torch.complex64], ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_cast_from_any_type_to_any_is_asked_about_or_not_and_inputs_keep_their_type(
    kind: torch.dtype, to: torch.dtype
) -> None:
    x = (drawn(12, 6) * 3.0).abs().to(kind)
    for ranges in ({}, {0: (0.0, 1.0)}):
        cases = find_cases(lambda x: (x.to(to), (x != 0).to(to), (x + x).to(to)), x, ranges=ranges)
        assert {case.inputs[0].dtype for case in cases.values()} <= {kind}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_operators_on_any_type_are_asked_about_or_not_and_inputs_keep_their_type(
    kind: torch.dtype, operation: str
) -> None:
    x, y = ((drawn(12, 6) * scale).abs().add(1.0).to(kind) for scale in (3.0, 2.0))
    model = OPERATIONS[operation]
    try:
        model(x, y)
    except RuntimeError as error:
        pytest.skip(f"eager has no such operator: {str(error)[:60]}")
    for ranges in ({}, {0: (0.0, 3.0), 1: (0.0, 3.0)}):
        for case in find_cases(model, x, y, ranges=ranges).values():
            assert [tensor.dtype for tensor in case.inputs] == [kind, kind]
