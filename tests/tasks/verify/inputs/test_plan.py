"""The input plan: the same every time, and where compilers go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.tasks.verify.inputs.plan import draw_inputs, eight_bit_cases, plan_cases, special_cases
from handoff.tasks.verify.inputs.special import ValueKind, insert_special_values


def signature(**dimensions: Dimension) -> ModelSignature:
    """Return a signature with one float input of the dimensions, and ids, and a mask."""
    shape: tuple[int | str, ...] = (*dimensions, 3)
    return ModelSignature(
        (
            TensorSpec("x", "float32", shape),
            TensorSpec("ids", "int64", shape, 5, 9),
            TensorSpec("mask", "bool", shape),
        ),
        (),
        dimensions,
    )


def test_the_ends_of_a_range_their_neighbours_and_odd_sizes_are_planned() -> None:
    sizes = {c.sizes["batch"] for c in plan_cases(signature(batch=Dimension(1, 1024)), seeds=1)}
    assert {1, 2, 7, 17, 1024} <= sizes


def test_of_multiples_the_smallest_odd_ones_and_the_largest_are_planned() -> None:
    limits = Dimension(16, 512, multiple_of=16)
    sizes = {c.sizes["height"] for c in plan_cases(signature(height=limits), seeds=1)}
    assert sizes >= {16, 32, 7 * 16, 17 * 16, 512}


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 3), st.integers(1, 9))
def test_every_planned_size_is_one_of_its_dimension(
    low: int, more: int, seeds: int, step: int
) -> None:
    limits = Dimension(low * step, (low + more) * step, multiple_of=step)
    cases = plan_cases(signature(batch=limits), seeds)
    assert cases
    assert all(case.sizes["batch"] in limits for case in cases)
    assert len({case.name for case in cases}) == len(cases)


def test_every_dimension_of_several_is_varied() -> None:
    cases = plan_cases(signature(batch=Dimension(1, 8), length=Dimension(2, 30)), seeds=1)
    assert {case.sizes["batch"] for case in cases} >= {1, 2, 7, 8}
    assert {case.sizes["length"] for case in cases} >= {2, 3, 7, 17, 30}


def test_several_dimensions_are_at_their_smallest_and_at_their_largest_together() -> None:
    limits = {"batch": Dimension(1, 8), "length": Dimension(2, 30)}
    sizes = [case.sizes for case in plan_cases(signature(**limits), seeds=1)]
    assert sizes[0] == {"batch": 1, "length": 2}
    assert sizes[-1] == {"batch": 8, "length": 30}


def test_a_model_of_fixed_shapes_has_one_case_a_seed() -> None:
    assert len(plan_cases(signature(), seeds=3)) == 3


def test_a_case_draws_the_same_inputs_every_time_and_another_seed_others() -> None:
    chosen = signature(batch=Dimension(1, 8))
    second = next(case for case in plan_cases(chosen, seeds=2) if case.seed == 1)
    first = next(case for case in plan_cases(chosen, seeds=2) if case.sizes == second.sizes)
    assert first.sizes == second.sizes
    again = draw_inputs(chosen, first)
    assert all(torch.equal(a, b) for a, b in zip(draw_inputs(chosen, first), again, strict=True))
    assert not torch.equal(draw_inputs(chosen, second)[0], again[0])


def test_integers_stay_within_their_range_and_reach_its_ends() -> None:
    chosen = signature(batch=Dimension(1, 64))
    drawn = torch.cat([draw_inputs(chosen, c)[1].flatten() for c in plan_cases(chosen, seeds=2)])
    assert (int(drawn.min()), int(drawn.max())) == (5, 9)


def test_booleans_are_drawn_both_ways() -> None:
    chosen = signature(batch=Dimension(64, 64))
    mask = draw_inputs(chosen, plan_cases(chosen, seeds=1)[0])[2]
    assert mask.dtype is torch.bool
    assert mask.any()
    assert not mask.all()


@pytest.mark.parametrize(
    ("dtype", "low", "high", "within"),
    [
        ("int64", 0.5, 2.5, (1, 2)),
        ("int64", -2.5, -1.5, (-2, -2)),
        ("int8", -1000.0, 1000.0, (-128, 127)),
        ("uint8", 0.0, 255.0, (0, 255)),
        # What an example of hashed ids gives: its largest is rounded up in a float.
        ("int64", 0.0, float(2**63 - 1), (0, 2**63 - 1)),
        ("int64", -float(2**63), float(2**63), (-(2**63), 2**63 - 1)),
        ("int32", -float(2**31), float(2**31), (-(2**31), 2**31 - 1)),
    ],
)
def test_whole_numbers_are_drawn_that_the_range_and_the_dtype_have(
    dtype: str, low: float, high: float, within: tuple[int, int]
) -> None:
    spec = ModelSignature((TensorSpec("ids", dtype, (500,), low, high),))
    (drawn,) = draw_inputs(spec, plan_cases(spec, seeds=1)[0])
    assert drawn.dtype is getattr(torch, dtype)
    assert within[0] <= int(drawn.min()) <= int(drawn.max()) <= within[1]
    assert int(drawn.min()) < int(drawn.max()) or within[0] == within[1]


@pytest.mark.parametrize(
    ("dtype", "low", "high", "reason"),
    [
        ("float32", -float("inf"), float("inf"), "expected finite values for x"),
        ("float32", float("nan"), 1.0, "expected finite values for x"),
        ("float32", 2.0, 1.0, "expected low <= high for x"),
        ("int64", 0.2, 0.8, "a whole number between"),
    ],
)
def test_a_range_that_nothing_can_be_drawn_from_is_no_specification(
    dtype: str, low: float, high: float, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        TensorSpec("x", dtype, (2,), low, high)


def test_special_values_are_planned_for_what_an_input_may_take() -> None:
    sizes = {"batch": 7}
    free = special_cases(signature(batch=Dimension(1, 8)), sizes)
    parts = [
        "one-sided rows", "upper part", "lower part", "offset rows", "whole numbers and tenths",
        "ties",
    ]  # fmt: skip
    turns = ["large in turns", "nan in turns", "infinite in turns"]
    assert [case.values for case in free] == [
        *parts, *turns, "zeros", "ends", "repeated", "denormal", "large", "nan", "infinite",
    ]  # fmt: skip
    limited = ModelSignature(
        (TensorSpec("x", "float32", ("batch", 3), -1.0, 1.0), TensorSpec("n", "int64", ("batch",))),
        (),
        {"batch": Dimension(1, 8)},
    )
    assert [case.values for case in special_cases(limited, sizes)] == [
        *parts, "zeros", "ends", "repeated",
    ]  # fmt: skip
    fixed = ModelSignature((TensorSpec("x", "float32", (2, 3), -1.0, 1.0),))
    assert [case.name for case in special_cases(fixed, {})] == [
        *(f"fixed shape {part}" for part in parts), "fixed shape zeros", "fixed shape ends",
    ]  # fmt: skip
    half = ModelSignature((TensorSpec("x", "float16", (2, 3)),))
    assert "near the root of the largest" in [case.values for case in special_cases(half, {})]


def test_special_values_lie_in_the_declared_ranges_and_nowhere_else() -> None:
    for case in special_cases(signature(batch=Dimension(1, 8)), {"batch": 7}):
        x, ids, mask = draw_inputs(signature(batch=Dimension(1, 8)), case)
        assert ids.min() >= 5
        assert ids.max() <= 9
        assert mask.dtype is torch.bool
        assert _IS_SPECIAL[case.values](x, ids), case.name


@pytest.mark.parametrize("shape", [(16, 3, 9, 9), (2, 16, 9, 9), (16, 6)])
def test_some_rows_hold_several_special_values_and_some_one(shape: tuple[int, ...]) -> None:
    spec = TensorSpec("x", "float32", shape)
    axis = 1 if shape[0] == 2 else 0
    drawn = torch.zeros(shape)
    kinds: tuple[ValueKind, ...] = ("nan in turns", "infinite in turns")
    rows = {
        kind: insert_special_values(kind, spec, drawn).movedim(axis, 0).flatten(1) for kind in kinds
    }
    counts = rows["nan in turns"].isnan().sum(1).tolist()
    assert {0, 1, 2, 4} <= set(counts)
    of_two = rows["nan in turns"][counts.index(2)].isnan().nonzero()[:, 0].tolist()
    assert of_two[1] - of_two[0] == 1
    of_most = rows["nan in turns"][counts.index(4)].isnan()
    assert of_most[0]
    assert of_most[-1]
    assert {torch.inf, -torch.inf} <= set(rows["infinite in turns"][counts.index(2)].tolist())


def test_a_vector_and_a_number_may_be_special_in_turns() -> None:
    kinds: tuple[ValueKind, ...] = ("nan in turns", "infinite in turns", "large in turns")
    for shape in ((9,), (1,), ()):
        for values in kinds:
            put = insert_special_values(
                values, TensorSpec("x", "float32", shape), torch.ones(shape)
            )
            assert not torch.equal(put, torch.ones(shape))


_IS_SPECIAL: dict[str, Callable[[torch.Tensor, torch.Tensor], bool]] = {
    "one-sided rows": lambda x, ids: (
        float(x[0].min()) > 0 > float(x[1].max()) and int(ids[0].min()) > int(ids[1].max())
    ),
    "upper part": lambda x, ids: float(x.min()) > 0 and int(ids.min()) > 6,
    "lower part": lambda x, ids: float(x.max()) < 0 and int(ids.max()) < 8,
    "offset rows": lambda x, _: bool((x.mean(-1).abs() > 100 * x.std(-1)).all()),
    "whole numbers and tenths": lambda x, _: bool(
        (x[::2] == x[::2].round()).all() and torch.allclose(x * 10, (x * 10).round(), atol=1e-4)
    ),
    "ties": lambda x, _: bool((x[2] == x[2, 0]).all()) and 1 < len(x[:2].unique()) <= 3,
    "large in turns": lambda x, _: float(x.abs().max()) > 1e3 > float(x.abs().min()),
    "nan in turns": lambda x, _: 0 < int(x.isnan().any(-1).sum()) < len(x),
    "infinite in turns": lambda x, _: 0 < int(x.isinf().any(-1).sum()) < len(x),
    "zeros": lambda x, _: bool((x == 0).all()) and bool(torch.signbit(x).any()),
    "ends": lambda x, ids: (
        (set(x.unique().tolist()), set(ids.unique().tolist())) == ({-1.0, 1.0}, {5, 9})
    ),
    "repeated": lambda x, ids: bool((x == x[:1]).all() and (ids == ids[:1]).all()),
    "denormal": lambda x, _: 0 < float(x.abs().max()) < torch.finfo(torch.float32).tiny,
    "large": lambda x, _: float(x.abs().max()) > 1e3,
    "nan": lambda x, _: int(x.isnan().sum()) == 1,
    "infinite": lambda x, _: int(x.isinf().sum()) == 2 and bool(x.sum().isnan()),
}


def test_special_values_lie_within_declared_ranges_of_every_dtype() -> None:
    specs = (
        TensorSpec("image", "uint8", ("batch", 5), 0, 255),
        TensorSpec("signed", "int8", ("batch", 5), -128, 127),
        TensorSpec("unit", "float32", ("batch", 5), 0.0, 1.0),
        TensorSpec("temperature", "bfloat16", ("batch", 5), 200.0, 400.0),
        TensorSpec("one", "float32", (), -2.0, 2.0),
    )
    chosen = ModelSignature(specs, (), {"batch": Dimension(1, 64)})
    for case in (*special_cases(chosen, {"batch": 17}), *eight_bit_cases(chosen)):
        for spec, tensor in zip(specs, draw_inputs(chosen, case), strict=True):
            assert tensor.dtype is getattr(torch, spec.dtype), case.name
            assert spec.low is not None
            assert spec.high is not None
            assert spec.low <= float(tensor.double().min()), (case.name, spec.name)
            assert float(tensor.double().max()) <= spec.high, (case.name, spec.name)


def test_one_sided_rows_of_bytes_hold_no_zero_and_no_largest_number_in_most_rows() -> None:
    chosen = ModelSignature(
        (TensorSpec("image", "uint8", ("batch", 64), 0, 255),), (), {"batch": Dimension(1, 64)}
    )
    (case,) = special_cases(chosen, {"batch": 17}, ["one-sided rows"])
    (image,) = draw_inputs(chosen, case)
    assert int((image.amin(-1) > 0).sum()) >= 10
    assert int((image.amax(-1) < 255).sum()) >= 10


def test_sizes_around_vectors_of_8_bits_are_planned_where_a_dimension_has_them() -> None:
    chosen = ModelSignature((TensorSpec("x", "int8", ("n",), -5, 5),), (), {"n": Dimension(1, 40)})
    assert [case.sizes["n"] for case in eight_bit_cases(chosen)] == [15, 16, 31, 32, 33]


def test_whole_numbers_of_an_example_are_not_moved_out_of_their_order() -> None:
    chosen = ModelSignature(
        (TensorSpec("offsets", "int64", (4,), 0, 9), TensorSpec("x", "float32", (4,), 0.0, 1.0))
    )
    rows = (torch.tensor([0, 3, 5, 9]), torch.tensor([0.1, 0.2, 0.3, 0.4]))
    (case,) = special_cases(chosen, {}, ["upper part"])
    offsets, x = draw_inputs(chosen, case, rows)
    assert torch.equal(offsets, rows[0])
    assert not torch.equal(x, rows[1])
