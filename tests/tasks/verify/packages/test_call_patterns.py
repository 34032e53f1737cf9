"""The manners of calling: again, from several threads, with inputs that lie otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from handoff.tasks.verify.loading import Tensors
from tests.tasks.verify.packages.functions import (
    affine,
    affine_reference,
    verify_functions,
)


def test_what_is_right_in_every_manner_of_calling_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verify_functions(monkeypatch, affine_reference(tmp_path), affine)
    assert result.accepted, result.reasons
    names = {deviation.case for deviation in result.deviations}
    assert {"batch=64 nan", "batch=64 zeros", "batch=64 repeated, expanded"} <= names
    assert "batch=2 seed=0, input 0 transposed" in names
    (spread,) = result.spreads
    ordinary = [deviation for deviation in result.deviations if not deviation.special]
    assert spread.elements == sum(deviation.elements for deviation in ordinary)
    assert not result.notes


# The first call of a size is compared with the reference, and with the second.
from_some_call_on = pytest.mark.parametrize(
    ("wrong_from", "manner"),
    [(2, "called again after others"), (3, "called by several threads")],
)


def _wrong_from(call: int) -> Callable[[Tensors], bool]:
    """Return what counts calls of small sizes, and says whether one is that or a later one."""
    calls: dict[int, int] = {}

    def is_wrong(inputs: Tensors) -> bool:
        size = len(inputs[0])
        calls[size] = calls.get(size, 0) + 1
        return size < 3 and calls[size] >= call

    return is_wrong


@from_some_call_on
def test_a_package_that_keeps_something_of_an_earlier_call_is_refused(
    wrong_from: int, manner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_wrong = _wrong_from(wrong_from)

    def remembers(inputs: Tensors) -> Tensors:
        return (inputs[0] * 2.0 + 1.0 + (1e-5 if is_wrong(inputs) else 0.0),)

    result = verify_functions(monkeypatch, affine_reference(tmp_path), remembers)

    assert any(f"{manner}, the package gives other bits" in reason for reason in result.reasons)


def _last_bits_by_chance(inputs: Tensors) -> Tensors:
    (y,) = affine(inputs)
    return (y * (1.0 + 1e-7 * torch.randint(-1, 2, y.shape)),)


def test_a_package_that_adds_atomically_is_judged_by_its_numbers_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = affine_reference(tmp_path)
    result = verify_functions(
        monkeypatch, file, _last_bits_by_chance, atomic_sums=("cpp_fused_index_add_0",)
    )
    assert result.accepted, result.reasons
    (note,) = [note for note in result.notes if "isn't repeatable bit for bit" in note]
    assert "cpp_fused_index_add_0" in note
    names = {deviation.case for deviation in result.deviations}
    assert "batch=2 seed=0, called by several threads" in names
    assert "batch=1 seed=0, in model.pt2" in names


def test_the_same_bits_by_chance_are_refused_where_nothing_adds_atomically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verify_functions(monkeypatch, affine_reference(tmp_path), _last_bits_by_chance)
    assert any("called again after others, the package gives" in r for r in result.reasons)


@from_some_call_on
def test_atomic_sums_are_no_excuse_for_other_numbers(
    wrong_from: int, manner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_wrong = _wrong_from(wrong_from)

    def loses_a_term(inputs: Tensors) -> Tensors:
        (y,) = _last_bits_by_chance(inputs)
        if is_wrong(inputs):
            y[0, 0] -= 0.1
        return (y,)

    result = verify_functions(
        monkeypatch, affine_reference(tmp_path), loses_a_term, atomic_sums=("kernel",)
    )
    assert any(f"seed=0, {manner}, output 0: " in reason for reason in result.reasons)


def test_a_package_that_gives_other_bits_to_several_threads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = torch.empty(0)

    def shares_scratch(inputs: Tensors) -> Tensors:
        nonlocal scratch
        if threading.current_thread() is threading.main_thread():
            return affine(inputs)
        scratch = inputs[0] * 2.0
        time.sleep(0.001)
        return (scratch + 1.0,)

    result = verify_functions(monkeypatch, affine_reference(tmp_path), shares_scratch)
    assert any("called by several threads" in reason for reason in result.reasons)


def test_a_package_that_reads_its_inputs_as_if_they_lay_in_order_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ignores_strides(inputs: Tensors) -> Tensors:
        (x,) = inputs
        storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
        if storage.numel() < x.storage_offset() + x.numel():
            raise RuntimeError("not enough memory behind it")
        return affine((storage[x.storage_offset() :][: x.numel()].view(x.shape),))

    result = verify_functions(monkeypatch, affine_reference(tmp_path), ignores_strides)
    assert any("input 0 transposed, output 0" in reason for reason in result.reasons)
    assert any("input 0 sliced, output 0" in reason for reason in result.reasons)
    assert not any("misaligned" in reason for reason in result.reasons)
    (note,) = result.notes
    assert note.startswith("inputs in other memory layouts (expanded) are refused")
    assert 'layouts="copy"' in note
