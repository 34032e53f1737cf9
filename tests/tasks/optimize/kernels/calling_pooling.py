"""The C++ function of the pooling operator alone, for calls that no package would make."""

from __future__ import annotations

import ctypes
import resource
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from handoff.tasks.optimize.kernels.attention_pooling import SOURCE
from tests.tasks.optimize.kernels.interpret_attention_pooling import draw

_INCLUDED = """#include <cmath>
#include <limits>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
extern "C" {
"""
# Each would keep 2 MiB if it lost its results.
_REFUSALS = 200


def build_pooling(folder: Path, march: str) -> Path:
    """Compile the function as packages hold it, with no more around it; return the library."""
    source, library = folder / "pooling.cpp", folder / "pooling.so"
    source.write_text(_INCLUDED + SOURCE.read_text(encoding="utf-8") + "}\n", encoding="utf-8")
    root = Path(torch.__file__).parent
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-fopenmp", "-fPIC", "-shared", f"-march={march}",
         f"-I{root / 'include'}", str(source), "-o", str(library),
         f"-L{root / 'lib'}", "-ltorch_cpu", f"-Wl,-rpath,{root / 'lib'}"],
        check=True,
    )  # fmt: skip
    return library


def call_pooling(
    library: Path, given: dict[str, Tensor], fill: float = -1e9
) -> tuple[Tensor, Tensor] | None:
    """Call the function with the operator's tensors; return None where it refuses them."""
    function = ctypes.CDLL(str(library)).aoti_torch_cpu_attention_pooling_cpu
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(given.values()))
    made = ctypes.c_void_p(), ctypes.c_void_p()
    failed = function(
        *(ctypes.c_void_p(_address(capsule)) for capsule in capsules),
        *(ctypes.c_double(number) for number in (0.5, 0.2, 0.25, fill)),
        *map(ctypes.byref, made),
    )
    torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)
    if failed:
        return None
    total, attended = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(
        [_capsule(handle) for handle in made]
    )
    return total, attended


def _address(capsule: object) -> int:
    read = ctypes.pythonapi.PyCapsule_GetPointer
    read.argtypes, read.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    address: int = read(capsule, None)
    return address


def _capsule(handle: ctypes.c_void_p) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    make.restype = ctypes.py_object
    return make(handle, None, None)


def _grown_by_refusals(library: Path) -> int:
    given = draw(2048, 2, 128)
    given["ids"][-1] = -1
    for _ in range(10):
        assert call_pooling(library, given) is None
    before = _held_bytes()
    for _ in range(_REFUSALS):
        assert call_pooling(library, given) is None
    return _held_bytes() - before


def _held_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _outcome_of_endless(library: Path) -> str:
    given = draw(1, 1, 16)
    # Views of one element, of which no more is read: more floats than addresses.
    for name in ("ids", "kinds", "weight", "present"):
        given[name] = given[name].expand(1, 2**46)
    return "refused" if call_pooling(library, given) is None else "computed"


def print_outcomes(library: Path) -> None:
    """Print by how many bytes this process grows over many calls that are refused.

    In a second line, what comes of a call for sequences that no memory is large enough for.
    """
    print(_grown_by_refusals(library), _outcome_of_endless(library), sep="\n")
