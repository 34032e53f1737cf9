"""A script with torch alone that repeats what a table says of an operator."""

from __future__ import annotations

import json
import textwrap

from handoff.artifacts.conformance.table import Conformance, ConformanceRow, PlainTensor
from handoff.artifacts.recipe.target import CpuTarget, isa_level_variables, parse_target

_SCRIPT = '''\
"""{title}"""

import os
import sys
from pathlib import Path

lacking = set({flags!r}) - set(Path("/proc/cpuinfo").read_text().split())
if lacking:
    sys.exit(f"expected a processor for {target}, got one without {{', '.join(sorted(lacking))}}")
os.environ.update({held!r})

import torch
from torch import device, inf, nan

# Linux wants to be asked for AMX's tiles, where there are any.
torch.cpu._init_amx()
{inputs}


class Call(torch.nn.Module):
{forward}


with torch.no_grad():
    model = Call()
    eager = model(*[one.clone() for one in inputs])
    program = torch.export.export(model, tuple(inputs))
    options = {options}
    package = torch._inductor.aoti_compile_and_package(program, inductor_configs=options)
    compiled = torch._inductor.aoti_load_package(package)(*[one.clone() for one in inputs])
for number, (want, got) in enumerate(zip(eager, compiled)):
    same = want.dtype is got.dtype and torch.allclose(want, got, equal_nan=True)
    print(f"result {{number}}:", "the same" if same else "DIFFERENT", want, got, sep="\\n")
'''


def repeating_script(table: Conformance, row: ConformanceRow) -> str:
    """Return a script that compiles the row's wrong call and prints both results.

    On a processor that lacks the table's level it ends with a sentence. Empty for a row of which no
    input was kept.
    """
    showing = row.showing
    if showing is None or not showing.inputs:
        return ""
    target = parse_target(table.target)
    assert isinstance(target, CpuTarget)
    options = {
        "cpp.march": target.march, "cpp.dynamic_threads": True,
        **json.loads(table.toolchain["options"]),
        # Of use to the second compilation, and takes longer than the first.
        "aot_inductor.precompile_headers": False,
    }  # fmt: skip
    tensors = ",\n    ".join(map(_literal, showing.inputs))
    title = f"{row.pair}, {showing.question}: got {showing.got}, expected {showing.want}."
    return _SCRIPT.format(
        title=title.replace("\\", "/").replace('"', "'"), held=isa_level_variables(target),
        flags=sorted(target.cpu_flags), target=target.slug,
        inputs=f"inputs = [\n    {tensors},\n]", forward=textwrap.indent(showing.code, "    "),
        options=options,
    )  # fmt: skip


def _literal(tensor: PlainTensor) -> str:
    values = ", ".join(map(str, tensor.values))
    kind = f"torch.{tensor.dtype}"
    if tensor.dtype.startswith("complex"):
        shape = [*tensor.shape, 2]
        return f"torch.view_as_complex(torch.tensor([{values}]).reshape({shape})).to({kind})"
    is_integer = not tensor.dtype.startswith(("float", "bfloat"))
    through = "int64" if is_integer else "float64"
    return (
        f"torch.tensor([{values}], dtype=torch.{through}).reshape({list(tensor.shape)}).to({kind})"
    )
