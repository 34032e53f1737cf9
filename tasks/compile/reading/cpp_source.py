"""What a package does that no number shows, by the C++ that it is made of.

Where several threads add to places that only the data decides (`index_add`, `index_put` that
accumulates, a fold), Inductor's code for the CPU adds atomically: no term is lost, and each sum is
right, but floating-point sums round otherwise from call to call. ATen's `index_put` does so, too.
Everything else that a CPU's package calls gives the same bits each time.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.target import CpuTarget, Target
from handoff.tasks.compile.reading.instructions import find_instruction_sets
from handoff.tasks.optimize.kernels import INT8_LAYERS

# Whole numbers are the same in any order. The last argument of `transpose_mxn` is whether it adds.
_INTEGER_TYPE = r"(?:u?int\d*_t|bool|signed char|unsigned char|short|int|long)\b"
_ATOMIC = re.compile(
    rf"\batomic_add_vec<(?!{_INTEGER_TYPE})"
    rf"|\batomic_add\(.*static_cast<(?!{_INTEGER_TYPE})"
    rf"|\btranspose_mxn<(?!{_INTEGER_TYPE})[^>]*\btrue>"
)
_KERNEL = re.compile(r"\bvoid\s+(\w+)\(")
_INDEX_PUT = re.compile(r"\baoti_torch_(?:cpu_)?index_put_out\(.*, (?:1|true)\)")


def find_atomic_sums(package: Path) -> tuple[str, ...]:
    """Return the functions that add so, by their names in the C++ that lies in the package."""
    found: list[str] = []
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".cpp"):
                found += atomic_sums_in(archive.read(name).decode())
    return tuple(dict.fromkeys(found))


def atomic_sums_in(code: str) -> list[str]:
    """Return the same of the C++ of one file."""
    found, kernel = [], ""
    for line in code.splitlines():
        if line.startswith("//"):
            continue
        definition = _KERNEL.search(line)
        kernel = definition[1] if definition else kernel
        if _ATOMIC.search(line):
            found.append(kernel)
        elif _INDEX_PUT.search(line):
            found.append("aten::index_put")
    return found


_CALL = re.compile(rb"\baoti_torch_cpu__q(?:conv|conv2d|linear)_pointwise_\w+\(")
_INSTRUCTIONS = {"avx_vnni", "avx512_vnni", "amx_int8"}


def require_int8_level(program: ExportedProgram, target: Target) -> None:
    """Raise `BlessingRefused` for int8 on a target whose processors may not compute it rightly."""
    is_int8 = any(node.target in INT8_LAYERS for node in program.graph.nodes)
    if is_int8 and not (isinstance(target, CpuTarget) and target.computes_int8):
        raise BlessingRefused(
            f"int8 isn't for {target.slug}",
            expected="a level with int8 dot products: without them sums saturate on their way",
            got=target.slug,
            remedy="Name cpu-avx512-vnni, cpu-avx2-vnni or cpu-amx among the recipe's targets",
        )


def require_int8(program: ExportedProgram, package: Path, library: Path) -> None:
    """Raise `BlessingRefused` where layers of `program` that are int8 were compiled to less.

    `package` is AOTInductor's own, with its C++ in it. It calls oneDNN's operator for each such
    layer, or has code of its own with int8's instructions in the `library`.
    """
    layer_count = sum(node.target in INT8_LAYERS for node in program.graph.nodes)
    if not layer_count:
        return
    with zipfile.ZipFile(package) as archive:
        sources = [archive.read(name) for name in archive.namelist() if name.endswith(".cpp")]
    found = sum(len(_CALL.findall(source)) for source in sources)
    if found >= layer_count or _INSTRUCTIONS & set(find_instruction_sets(library)):
        return
    raise BlessingRefused(
        "the package is to compute in int8 and doesn't",
        expected=f"{layer_count} layers in oneDNN's int8 operators, "
        "or int8's instructions in its code",
        got=f"{found} such calls and no such instruction",
        remedy="Leave int8 out of the search's candidates, or compile with another torch",
    )
