"""New weights for code that this process has opened already: the code isn't opened once more.

What dlopen has loaded stays until the process ends: AOTInductor's interface keeps a string of each
thread that has called a library, with a destructor that holds it (measured: with torch 2.15 no
library was unloaded while a thread that had called it lived). A release of the same graph has the
same code byte for byte, and other weights, which end the section `.lrodata`. So a process that
serves one such release after the other gives the code that it has new containers, each with weights
of its own, which are freed with it; what its memory holds stays the same.

The file is verified whole, as any; its code is compared byte by byte with the verified code that is
open; and where each weight lies is found by comparing what a container has loaded with the file
that it was loaded from. Where anything isn't as expected the library is opened as any other.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from handoff.artifacts.digest import Digest
from handoff.artifacts.machine.elf import find_section

if TYPE_CHECKING:
    import torch

_WEIGHTS = b".lrodata"
_ALIGNMENT = 64
_registered_code: dict[Digest, _Code] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class _Code:
    """A library that is open: the descriptor of its sealed copy, its size, where its weights are.

    The weights are the bytes from `start` to `end`.
    """

    descriptor: int
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class _Slot:
    """A weight: its name in the code, the tensor that a container has, its offset in the file."""

    name: str
    tensor: torch.Tensor
    offset: int


def register_library(digest: Digest, descriptor: int) -> None:
    """Note that the sealed library at `descriptor`, which is never closed, was opened here."""
    size = os.fstat(descriptor).st_size
    with os.fdopen(os.dup(descriptor), "rb") as stream:
        section = find_section(stream, _WEIGHTS)
    if section is not None:
        end = sum(section)
        start = end - section[1] // _ALIGNMENT * _ALIGNMENT
        with _lock:
            _registered_code.setdefault(digest, _Code(descriptor, size, start, end))


def open_known_code(sealed: int, runners: int) -> Any | None:  # noqa: ANN401 - torch has no type
    """Return a runner of code that is open, with the weights of the sealed library at `sealed`.

    So many calls of it run at once. None where no such code is open, or its weights can't be
    distinguished. The descriptor isn't needed any more afterwards.
    """
    size = os.fstat(sealed).st_size
    with _lock:
        alike = [code for code in _registered_code.values() if code.size == size]
    if not alike:
        return None
    with mmap.mmap(sealed, size, prot=mmap.PROT_READ) as new:
        for code in alike:
            with mmap.mmap(code.descriptor, size, prot=mmap.PROT_READ) as old:
                if _is_same_code(old, new, code):
                    return _open_with_weights(code, old, new, runners)
    return None


def _is_same_code(old: mmap.mmap, new: mmap.mmap, code: _Code) -> bool:
    return old[: code.start] == new[: code.start] and old[code.end :] == new[code.end :]


def _open_with_weights(code: _Code, old: mmap.mmap, new: mmap.mmap, runners: int) -> Any | None:  # noqa: ANN401
    from torch._C import _aoti

    runner = _aoti.AOTIModelContainerRunnerCpu(f"/proc/self/fd/{code.descriptor}", runners)
    slots = _find_slots(runner, code, old)
    if slots is None:
        return None
    for slot in slots:
        # Into the container's own block, which nobody has called yet; one at a time, so that no
        # more memory is taken than the largest one has.
        weight = _empty_like(slot.tensor)
        _bytes_of(weight)[:] = _read_slot(new, slot)
        runner.update_constant_buffer({slot.name: weight}, False, False, False)
    return runner if _find_slots(runner, code, new) is not None else None


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor of the same sizes, strides and dtype, whose elements are anything."""
    import torch

    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)


def _find_slots(runner: Any, code: _Code, file: mmap.mmap) -> list[_Slot] | None:  # noqa: ANN401
    """Return where each weight lies, as the file that was loaded shows; None where it doesn't.

    A container has its weights in one block, each behind the one before it as in the file.
    """
    names: Mapping[str, str] = runner.get_constant_names_to_original_fqns()
    tensors: Mapping[str, torch.Tensor] = runner.extract_constants_map(False)
    if not tensors or len(names) != len(tensors) or set(names.values()) != set(tensors):
        return None
    first = min(tensor.data_ptr() for tensor in tensors.values())
    slots = [
        _Slot(name, tensors[origin], code.start + tensors[origin].data_ptr() - first)
        for name, origin in names.items()
    ]
    total = sum(-(-_span_bytes(slot.tensor) // _ALIGNMENT) * _ALIGNMENT for slot in slots)
    if total != code.end - code.start or any(
        slot.tensor.storage_offset()
        or slot.offset + _span_bytes(slot.tensor) > code.end
        or not np.array_equal(_bytes_of(slot.tensor), _read_slot(file, slot))
        for slot in slots
    ):
        return None
    return slots


def _span_bytes(tensor: torch.Tensor) -> int:
    """Return how many bytes the tensor's elements span, gaps between them counted."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    if not tensor.numel():
        return 0
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def _bytes_of(tensor: torch.Tensor) -> Any:  # noqa: ANN401 - an array of bytes, which may be written
    """Return the bytes that a tensor of any dtype lies in, as long as it is kept."""
    buffer = (ctypes.c_uint8 * _span_bytes(tensor)).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(buffer)


def _read_slot(file: mmap.mmap, slot: _Slot) -> Any:  # noqa: ANN401 - an array of bytes
    return np.frombuffer(
        file, dtype=np.uint8, count=_span_bytes(slot.tensor), offset=slot.offset
    ).copy()
