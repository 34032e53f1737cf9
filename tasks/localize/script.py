"""Writes a folder with a script that repeats a fault with torch alone, and runs it."""

from __future__ import annotations

import os
import pprint
import subprocess
import sys
import textwrap
from pathlib import Path

import torch

from handoff.artifacts.recipe.target import isa_level_variables
from handoff.infra.engine import import_paths
from handoff.tasks.compile.machine.host import has_march_option
from handoff.tasks.compile.patching import patch_environment
from handoff.tasks.compile.weights import KEEPING_OPTIONS
from handoff.tasks.localize.messages import LocalizeJob, LocalizeResult
from handoff.tasks.localize.subgraph import Subgraph
from handoff.tasks.localize.trials import BudgetSpent, Trials
from handoff.tasks.localize.verdict import describe

SCRIPT_FILE = "repeat.py"
TENSORS_FILE = "tensors.pt"
_SHOWS = 1
# Here it is run as its reader would run it, but that what the compiler writes is read first.
_READ_FIRST = """
import runpy, sys
from handoff.tasks.compile.reading.literals import check_sources
from handoff.tasks.compile.reading.source_words import prefix_weight_names
with prefix_weight_names(), check_sources():
    runpy.run_path(sys.argv[1], run_name="__main__")
"""

_TEMPLATE = '''"""Repeats a fault of torch's compiler with torch alone; exits with 1 when it shows.

The part was cut from a model. `tensors.pt`, beside this file, holds its inputs, its weights and
its outputs in float64. The lines are those of the model's module.py.
"""

{what}

import os

# ATen, Inductor and oneDNN go by this level; it is read when torch is imported.
for name, value in {held!r}.items():
    os.environ.setdefault(name, value)

import importlib
import sys
import tempfile
from math import inf, nan
from pathlib import Path

import torch
from torch import device

# Linux wants to be asked for AMX's tiles, where there are any.
torch.cpu._init_amx()

# Operator libraries that were loaded when the fault was seen.
for library in {extensions!r}:
    importlib.import_module(library)

OPTIONS = {options}
# For each input, the axes that the model leaves open, and how large they get.
DYNAMIC = {dynamic!r}
# For each output: atol, rtol, factor of eager's RMSE, floor of the RMSE relative to the output.
BOUNDS = {bounds}


class Part(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        for name, tensor in weights.items():
            self.register_buffer(name, tensor)

{forward}

def compiled(module, inputs):
    """Return the outputs of the package that AOTInductor makes."""
    auto = torch.export.Dim.AUTO
    shapes = tuple({{axis: auto(max=high) for axis, high in axes.items()}} for axes in DYNAMIC)
    program = torch.export.export(module, inputs, dynamic_shapes=shapes)
    with tempfile.TemporaryDirectory() as folder:
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(Path(folder) / "part.pt2"), inductor_configs=dict(OPTIONS)
        )
        return torch._inductor.aoti_load_package(path)(*[t.clone() for t in inputs])


def rmse(left, right):
    return float((left.double() - right.double()).square().mean().sqrt())


def is_wrong(got, want, exact, atol, rtol, factor, floor):
    """Print how far eager and the package lie from float64; return whether that is too far."""
    if got.shape != want.shape or got.dtype != want.dtype:
        print(f"  eager:   {{want.dtype}} of shape {{list(want.shape)}}")
        print(f"  package: {{got.dtype}} of shape {{list(got.shape)}}")
        return True
    size = float(exact.double().square().mean().sqrt())
    apart = (got.double() - want.double()).abs().nan_to_num(nan=float("inf")).flatten()
    worst = apart.topk(min(4, apart.numel())).indices
    print(f"  the elements that lie furthest apart: {{worst.tolist()}} of {{apart.numel()}}")
    error = f"RMSE to float64 {{rmse(want, exact):.3g}}, of {{size:.3g}}"
    print(f"  eager:   {{error}}; {{flat(want, worst)}}")
    error = f"RMSE to float64 {{rmse(got, exact):.3g}}, of {{size:.3g}}"
    print(f"  package: {{error}}; {{flat(got, worst)}}")
    print(f"  float64: {{flat(exact, worst)}}")
    finite = torch.isfinite(want)
    if not torch.equal(got[~finite].nan_to_num(), want[~finite].nan_to_num()):
        return True
    got, want, exact = (tensor.double()[finite] for tensor in (got, want, exact))
    usable = torch.isfinite(exact)
    size = float(exact[usable].square().mean().sqrt())
    allowed = factor * rmse(want[usable], exact[usable]) + floor * size
    outside = (got - want).abs() > atol + rtol * want.abs().clamp_min(size)
    return bool(outside.any()) or not rmse(got[usable], exact[usable]) <= allowed


def flat(tensor, places):
    return [round(float(value), 7) for value in tensor.flatten()[places]]


def main():
    held = torch.load(Path(__file__).with_name("tensors.pt"), weights_only=True)
    inputs, module = tuple(held["inputs"]), Part(held["weights"]).eval()
    with torch.no_grad():
        eager = module(*[tensor.clone() for tensor in inputs])
        package = compiled(module, inputs)
    shows = False
    for index, (got, want, exact) in enumerate(zip(package, eager, held["float64"])):
        print(f"output {{index}}")
        shows |= is_wrong(got, want, exact, *BOUNDS[index])
    print("the fault shows" if shows else "the fault doesn't show")
    return {shows} if shows else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def write_script(job: LocalizeJob, part: Subgraph, result: LocalizeResult) -> Path | None:
    """Write the script and its tensors; return its path, or None for a part with nested graphs."""
    module = part.module
    if dict(module.named_children()):
        return None
    job.reproduction.mkdir(parents=True, exist_ok=True)
    eager, float64 = part.run()
    tensors = {
        "inputs": list(part.inputs), "weights": dict(module.named_buffers()),
        "float64": list(float64),
    }  # fmt: skip
    torch.save(tensors, job.reproduction / TENSORS_FILE)
    text = _TEMPLATE.format(
        what="\n".join(line for node in result.nodes for line in _comment_lines(describe(node))),
        held=isa_level_variables(job.target),
        extensions=tuple(name.partition("@")[0] for name in job.recipe.extensions),
        options=pprint.pformat(_options(job), width=96),
        dynamic=part.dynamic,
        bounds=[_bounds(job, tensor) for tensor in eager],
        forward=textwrap.indent(module.code.strip(), "    ") + "\n",
        shows=_SHOWS,
    )
    path = job.reproduction / SCRIPT_FILE
    path.write_text(text, encoding="utf-8")
    return path


def _comment_lines(text: str) -> list[str]:
    """Return a text, which may quote what was delivered, as lines that Python reads over."""
    plain = text if text.isprintable() else ascii(text)
    return textwrap.wrap(plain, 98, initial_indent="# ", subsequent_indent="#   ")


def shows_fault(trials: Trials, script: Path) -> bool:
    """Run the script in an interpreter of its own; return whether the fault shows there."""
    try:
        trials.spend()
    except BudgetSpent:
        trials.notes.append("the budget was spent before the script was run")
        return False
    # An extension is found where this process finds it.
    search_paths = [*sys.path, *import_paths.extension_search_path(trials.job.recipe.extensions)]
    variables = {
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in search_paths),
        # The script would set them before it imports torch, which is imported when it begins.
        **isa_level_variables(trials.job.target),
    }
    log = trials.job.folder / "script.log"
    with patch_environment(variables), log.open("wb") as output:
        try:
            completed = subprocess.run(
                [sys.executable, "-c", _READ_FIRST, str(script.absolute())], stdout=output,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=script.parent,
                timeout=max(1.0, trials.left_s), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            trials.notes.append("the script did not end in the time that was left")
            return False
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return completed.returncode == _SHOWS and lines[-1:] == ["the fault shows"]


def _options(job: LocalizeJob) -> dict[str, object]:
    # It compiles once, for which a header would be made in more time than it saves.
    options = {"aot_inductor.precompile_headers": False, **KEEPING_OPTIONS, **job.options}
    if has_march_option():
        options["cpp.march"] = job.target.march
    return options


def _bounds(job: LocalizeJob, output: torch.Tensor) -> tuple[float, ...]:
    tolerance = job.recipe.tolerance_for(str(output.dtype).removeprefix("torch."))
    factor = tolerance.rmse_factor
    if output.numel() < 1000 and factor > 1.0:
        factor = max(factor, 3.0)  # as `Tolerance` says of small outputs
    return tolerance.atol, tolerance.rtol, factor, tolerance.rmse_floor
