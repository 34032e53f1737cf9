"""What a kernel's pointers may reach: each argument has a space of its own, with walls around it.

Triton's interpreter computes with addresses and reads wherever they point. Here a kernel gets
addresses that are made up: the upper bits say which argument a pointer was derived from, the lower
ones where in it. What is loaded and stored is looked up by that, so that an access beyond a buffer
is found even where another buffer lies there, and never reaches the memory of this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

# A space of so many bits for each argument; its buffer begins in the middle, for a pointer that
# runs before the buffer is in the same space.
_BITS = 42
_MIDDLE = 1 << (_BITS - 1)
_MASK = (1 << _BITS) - 1

Addresses = npt.NDArray[np.uint64]


class OutOfBoundsError(Exception):
    """A kernel accesses what lies beyond one of its arguments; the message says where and how."""


@dataclass(frozen=True)
class _Space:
    """An argument: its real address, and from where to where its storage reaches from there."""

    name: str
    address: int
    low: int
    high: int


class Memory:
    """The arguments of the launch that is under way."""

    def __init__(self) -> None:
        """Begin without any."""
        self._spaces: list[_Space] = []
        self._tensors: list[torch.Tensor] = []

    def map_arguments(self, arguments: Sequence[tuple[str, torch.Tensor]]) -> dict[str, int]:
        """Take these tensors, of any shapes, by the parameters' names; return made-up addresses.

        What an earlier launch had is forgotten.
        """
        self._tensors = [tensor for _, tensor in arguments]
        self._spaces = []
        addresses = {}
        for name, tensor in arguments:
            before = int(tensor.storage_offset()) * tensor.element_size()
            size = int(tensor.untyped_storage().nbytes())
            self._spaces.append(_Space(name, tensor.data_ptr(), -before, size - before))
            addresses[name] = (len(self._spaces) << _BITS) + _MIDDLE
        return addresses

    def real_addresses(
        self, pointers: Addresses, mask: npt.NDArray[np.bool_], width: int
    ) -> Addresses:
        """Return the real addresses of `width` bytes each, 0 where the mask is off.

        Both arrays are of any one shape. Raises `OutOfBoundsError` where one that the mask lets
        through lies beyond the argument that it was derived from.
        """
        addresses = np.zeros(pointers.shape, np.uint64)
        enabled = np.broadcast_to(mask, pointers.shape)
        numbers = (pointers >> np.uint64(_BITS)).astype(np.int64)
        offsets = (pointers & np.uint64(_MASK)).astype(np.int64) - _MIDDLE
        for number in np.unique(numbers[enabled]):
            selected = enabled & (numbers == number)
            if not 1 <= number <= len(self._spaces):
                raise OutOfBoundsError("a pointer that is derived from none of its arguments")
            space, inside = self._spaces[number - 1], offsets[selected]
            self._require_inside(space, inside, width)
            addresses[selected] = (inside + space.address).astype(np.uint64)
        return addresses

    @staticmethod
    def _require_inside(space: _Space, offsets: npt.NDArray[np.int64], width: int) -> None:
        beyond = (offsets < space.low) | (offsets + width > space.high)
        if beyond.any():
            worst = offsets[beyond]
            furthest = int(worst[np.argmax(np.abs(worst))])
            raise OutOfBoundsError(
                f"{int(beyond.sum())} of {offsets.size} elements at once lie beyond {space.name}, "
                f"which reaches from element {space.low // width} to {space.high // width}: "
                f"element {furthest // width}, for one"
            )
