"""Whether what is to compute in int8 does, by the C++ that a package is made of and its code."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.target import CpuTarget, Target
from handoff.tasks.compile.reading.instructions import find_instruction_sets
from handoff.tasks.optimize.kernels import INT8_LAYERS

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
    wanted = sum(node.target in INT8_LAYERS for node in program.graph.nodes)
    if not wanted:
        return
    with zipfile.ZipFile(package) as archive:
        sources = [archive.read(name) for name in archive.namelist() if name.endswith(".cpp")]
    found = sum(len(_CALL.findall(source)) for source in sources)
    if found >= wanted or _INSTRUCTIONS & set(find_instruction_sets(library)):
        return
    raise BlessingRefused(
        "the package is to compute in int8 and doesn't",
        expected=f"{wanted} layers in oneDNN's int8 operators, or int8's instructions in its code",
        got=f"{found} such calls and no such instruction",
        remedy="Leave int8 out of the search's candidates, or compile with another torch",
    )
