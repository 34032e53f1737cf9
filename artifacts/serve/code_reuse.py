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
_libraries: dict[Digest, _OpenLibrary] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class _OpenLibrary:
    """A library that is open: the descriptor of its sealed copy, its size, where its weights are.

    The weights are the bytes from `start` to `end`.
    """

    descriptor: int
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class _WeightSlot:
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
            _libraries.setdefault(digest, _OpenLibrary(descriptor, size, start, end))


def open_known_code(sealed: int, runners: int) -> Any | None:  # noqa: ANN401 - torch has no type
    """Return a runner of code that is open, with the weights of the sealed library at `sealed`.

    So many calls of it run at once. None where no such code is open, or its weights can't be
    distinguished. The descriptor isn't needed any more afterwards.
    """
    size = os.fstat(sealed).st_size
    with _lock:
        same_size = [library for library in _libraries.values() if library.size == size]
    if not same_size:
        return None
    with mmap.mmap(sealed, size, prot=mmap.PROT_READ) as new:
        for library in same_size:
            with mmap.mmap(library.descriptor, size, prot=mmap.PROT_READ) as old:
                start, end = library.start, library.end
                if old[:start] == new[:start] and old[end:] == new[end:]:
                    return _open_with_weights(library, old, new, runners)
    return None


def _open_with_weights(
    library: _OpenLibrary, old: mmap.mmap, new: mmap.mmap, runners: int
) -> Any | None:  # noqa: ANN401
    import torch
    from torch._C import _aoti

    runner = _aoti.AOTIModelContainerRunnerCpu(f"/proc/self/fd/{library.descriptor}", runners)
    slots = _find_slots(runner, library, old)
    if slots is None:
        return None
    for slot in slots:
        # Into the container's own block, which nobody has called yet; one at a time, so that no
        # more memory is taken than the largest one has.
        like = slot.tensor
        weight = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
        _bytes_of(weight)[:] = _read_slot(new, slot)
        runner.update_constant_buffer({slot.name: weight}, False, False, False)
    return runner if _find_slots(runner, library, new) is not None else None


def _find_slots(runner: Any, library: _OpenLibrary, file: mmap.mmap) -> list[_WeightSlot] | None:  # noqa: ANN401
    """Return where each weight lies, as the file that was loaded shows; None where it doesn't.

    A container has its weights in one block, each behind the one before it as in the file.
    """
    names: Mapping[str, str] = runner.get_constant_names_to_original_fqns()
    tensors: Mapping[str, torch.Tensor] = runner.extract_constants_map(False)
    if not tensors or len(names) != len(tensors) or set(names.values()) != set(tensors):
        return None
    first = min(tensor.data_ptr() for tensor in tensors.values())
    slots = [
        _WeightSlot(name, tensors[origin], library.start + tensors[origin].data_ptr() - first)
        for name, origin in names.items()
    ]
    total = sum(-(-_span_bytes(slot.tensor) // _ALIGNMENT) * _ALIGNMENT for slot in slots)
    if total != library.end - library.start or any(
        slot.tensor.storage_offset()
        or slot.offset + _span_bytes(slot.tensor) > library.end
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


def _read_slot(file: mmap.mmap, slot: _WeightSlot) -> Any:  # noqa: ANN401 - an array of bytes
    return np.frombuffer(
        file, dtype=np.uint8, count=_span_bytes(slot.tensor), offset=slot.offset
    ).copy()
