"""A kernel's pointers reach their own argument, and nothing beyond it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from handoff.tasks.verify.interpret.memory import Memory, OutOfBoundsError


def _pointers(address: int, elements: list[int]) -> np.ndarray:
    return np.array([address + 4 * element for element in elements], dtype=np.uint64)


def test_an_address_within_an_argument_is_its_own() -> None:
    memory, tensor = Memory(), torch.arange(6.0)
    addresses = memory.map_arguments([("in_ptr0", tensor)])
    found = memory.real_addresses(
        _pointers(addresses["in_ptr0"], [0, 5]), np.array([True, True]), 4
    )
    assert found.tolist() == [tensor.data_ptr(), tensor.data_ptr() + 20]


@pytest.mark.parametrize("element", [-1, 6])
def test_one_element_beyond_is_found_and_told(element: int) -> None:
    memory = Memory()
    addresses = memory.map_arguments([("in_ptr0", torch.zeros(6)), ("out_ptr0", torch.zeros(6))])
    message = f"1 of 2 elements .* beyond in_ptr0, .* element 0 to 6: element {element}"
    with pytest.raises(OutOfBoundsError, match=message):
        memory.real_addresses(
            _pointers(addresses["in_ptr0"], [0, element]), np.array([True, True]), 4
        )


def test_what_a_mask_keeps_may_point_anywhere() -> None:
    memory = Memory()
    addresses = memory.map_arguments([("in_ptr0", torch.zeros(6))])
    found = memory.real_addresses(
        _pointers(addresses["in_ptr0"], [0, 6000]), np.array([True, False]), 4
    )
    assert found[1] == 0


def test_a_view_reaches_its_whole_storage_and_no_further() -> None:
    memory, whole = Memory(), torch.zeros(6)
    addresses = memory.map_arguments([("in_ptr0", whole[2:4])])
    everything = np.array([True, True])
    found = memory.real_addresses(_pointers(addresses["in_ptr0"], [-2, 3]), everything, 4)
    assert found.tolist() == [whole.data_ptr(), whole.data_ptr() + 20]
    with pytest.raises(OutOfBoundsError, match="from element -2 to 4: element 4"):
        memory.real_addresses(_pointers(addresses["in_ptr0"], [0, 4]), everything, 4)


def test_a_pointer_of_no_argument_is_refused() -> None:
    memory = Memory()
    memory.map_arguments([("in_ptr0", torch.zeros(6))])
    with pytest.raises(OutOfBoundsError, match="none of its arguments"):
        memory.real_addresses(np.array([4096], dtype=np.uint64), np.array([True]), 4)
