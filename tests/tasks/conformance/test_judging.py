"""The rule for one operator: what rounding explains is right, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from handoff.tasks.conformance.judging import find_fault
from handoff.tasks.conformance.sampling import Pair, Sample
from handoff.tasks.conformance.values import value_sets

Operator = Callable[..., torch.Tensor]


def sample(
    name: str, operator: Operator, *tensors: torch.Tensor, constants: tuple[float, ...] = ()
) -> Sample:
    def call(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [operator(*given, *constants)]

    dtype = str(tensors[0].dtype).removeprefix("torch.")
    return Sample(Pair(name, dtype), 0, call, tensors, constants, name, call)


def fault(one: Sample, got: torch.Tensor) -> bool:
    want = one.function(list(one.tensors))
    return find_fault(one, one.tensors, [got], want) is not None


def test_another_last_place_is_right_and_another_value_is_wrong() -> None:
    x = torch.linspace(0.1, 3, 50)
    one = sample("sin", torch.sin, x)
    exact = torch.sin(x)
    assert not fault(one, torch.nextafter(exact, exact + 1))
    assert fault(one, torch.where(x > 2.9, exact + 0.01, exact))


def test_what_is_nearer_to_float64_than_eager_is_right() -> None:
    # bfloat16 adds a thousand numbers with an error of its own; float32 in between is better.
    x = torch.rand(1000).bfloat16()
    one = sample("cumsum", lambda t: torch.cumsum(t, 0), x)
    assert not fault(one, torch.cumsum(x.double(), 0).bfloat16())
    assert fault(one, torch.cumsum(x.double(), 0).bfloat16() * 1.5)


def test_a_sum_that_cancels_may_move_as_far_as_its_terms_last_places() -> None:
    x = torch.tensor([1e8, -1e8, 1.0])
    one = sample("sum", torch.sum, x)
    assert not fault(one, torch.tensor(8.0))
    assert fault(one, torch.tensor(1000.0))


def test_a_step_is_exact_or_wrong() -> None:
    x = torch.tensor([0.9, 1.5, 2.7])
    # As a kernel for float32 rounds it.
    third = float(torch.tensor(0.3))
    one = sample("floor_divide", torch.floor_divide, x, constants=(third,))
    eager = torch.floor_divide(x, third)
    assert not fault(one, eager)
    assert fault(one, eager + torch.tensor([0.0, 1.0, 0.0]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_has_to_be_where_eager_or_float64_has_it(value: float) -> None:
    x = torch.tensor([1.0, value, 3.0])
    one = sample("neg", torch.neg, x)
    assert not fault(one, -x)
    assert fault(one, torch.tensor([-1.0, -2.0, -3.0]))
    assert fault(one, torch.tensor([value, -value, -3.0]))


def test_whole_numbers_are_compared_exactly_beyond_what_float64_holds() -> None:
    x = torch.tensor([2**53 + 1])
    one = sample("neg", torch.neg, x)
    assert not fault(one, -x)
    assert fault(one, -x + 1)


def test_another_dtype_or_shape_is_wrong() -> None:
    one = sample("neg", torch.neg, torch.ones(3))
    assert fault(one, -torch.ones(3).double())
    assert fault(one, -torch.ones(1, 3))


def test_an_index_may_be_another_only_where_its_values_move_past_each_other() -> None:
    def nearest(t: torch.Tensor) -> torch.Tensor:
        return t.argmax(-1)

    apart = sample("nearest", nearest, torch.tensor([[1.0, 2.0, 3.0]]))
    assert fault(apart, torch.tensor([1]))
    close = torch.tensor([[1.0, 1.0, 0.0]])
    assert not fault(sample("nearest", nearest, close), torch.tensor([1]))


def test_the_questions_keep_shapes_and_dtypes_and_are_the_same_every_time() -> None:
    one = sample("mul", torch.mul, torch.rand(4, 5), torch.rand(4, 5))
    sets = value_sets(one)
    names = [name for name, _ in sets]
    assert len(set(names)) == len(names) > 15
    assert {"multiples", "one-sided, negative", "infinity in input 1"} <= set(names)
    for (_, tensors), (_, again) in zip(sets, value_sets(one), strict=True):
        assert [t.shape for t in tensors] == [(4, 5), (4, 5)]
        assert all(
            torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(tensors, again, strict=True)
        )


def test_integers_that_may_be_indices_are_left_as_they_are() -> None:
    index = torch.tensor([0, 1])
    one = sample("take", torch.take, torch.arange(4), index)
    assert [name for name, _ in value_sets(one)] == ["as sampled"]


def test_infinity_is_asked_in_one_input_at_a_time() -> None:
    one = sample("mul", torch.mul, torch.rand(6), torch.rand(6))
    asked = dict(value_sets(one))
    left, right = asked["infinity in input 0"]
    assert left.isinf().any()
    assert not right.isinf().any()
