"""Faults in the sources of a GPU's kernels, and a process that says which of them are seen.

Run as a module, with Triton's interpreter on: it writes the program of a small net, plants each
fault in it, runs it beside eager, and prints what came out, as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor, nn

from handoff.artifacts.machine.gpu import PROFILES
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.compile.cross.python_program import PythonProgram, write_python_program
from handoff.tasks.verify.compare import compare
from handoff.tasks.verify.interpret.kernel import KernelFailedError
from handoff.tasks.verify.interpret.program import split_program
from handoff.tasks.verify.interpret.run import prepare
from handoff.tasks.verify.interpret.step import find_wrong_kernel, operators_of
from tests.limits import LIMIT_S
from tests.tasks.compile.cross import models

_SLUG = "cuda-sm80"
_BATCHES = (1, 2, 7)
# Sizes of blocks that Inductor proposes for kernels of this size, or smaller.
_BLOCKS = {"XBLOCK": 2, "YBLOCK": 16, "R0_BLOCK": 512}


class Net(nn.Module):
    """What Inductor writes each kind of kernel for: `[N, 37]` to `[N, 50]`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(37, 50), nn.LayerNorm(50)
        self.wide = nn.Parameter(torch.randn(3000))
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        # Small, so that the norm's eps tells.
        hidden = nn.functional.gelu(self.norm(0.01 * self.first(x)))
        # A reduction of more than one block.
        summed = torch.sigmoid(x[:, :1] * self.wide).sum(-1, keepdim=True)
        return torch.softmax(hidden, -1) + 0.001 * summed


@dataclass(frozen=True)
class Fault:
    """A change of the program's text: what it is, and where; `passes` where nothing is wrong."""

    name: str
    description: str
    change: Callable[[str], str]
    passes: bool = False


def _all(pattern: str, by: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, by, text)


def _once(pattern: str, by: str) -> Callable[[str], str]:
    return lambda text: re.sub(pattern, by, text, count=1)


FAULTS = (
    Fault("none", "The program as it was written.", lambda text: text, passes=True),
    Fault("mask of a store", "A store has no mask.",
          _once(r"(tl\.store\(.*), (?:r0_mask & )?xmask\)", r"\1, None)")),
    Fault("mask of a load", "A load has no mask.",
          _once(r"(tl\.load\(.*?\+ \(.*?\)), (?:r0_mask & )?xmask", r"\1, None")),
    Fault("mask within a reduction", "What lies beyond a row counts in its variance.",
          _all(r"tl\.where\(r0_mask & xmask, (tmp\d+), 0\)", r"\1")),
    Fault("wrong stride", "Rows are taken to be one element longer.", _once(r"50\*x", "51*x")),
    Fault("wrong stride, shorter", "Rows are taken to be one element shorter.",
          _once(r"50\*x", "49*x")),
    Fault("missing tail", "The last row is left out.",
          _once(r"xmask = xindex < xnumel", "xmask = xindex < xnumel - 1")),
    Fault("missing tail of a reduction", "The last block of a row isn't added.",
          _once(r"range\(0, r0_numel, R0_BLOCK\)", "range(0, r0_numel - R0_BLOCK, R0_BLOCK)")),
    Fault("wrong eps", "1e-5 is 1e-3.", _all(r"1e-05", "1e-03")),
    Fault("wrong reduction", "A sum is a maximum.", _once(r"tl\.sum\(", "triton_helpers.max2(")),
    Fault("wrong operator", "A product is a sum.", _once(r"(tmp\d+) \* (tmp\d+)", r"\1 + \2")),
    Fault("swapped weights", "Scale and shift of the norm stand for each other.",
          _all(r"ours_norm_weight, ours_norm_bias", "ours_norm_bias, ours_norm_weight")),
    Fault("launched short", "A grid is for fewer elements.",
          _once(r"(\.run\(.*?), (s\d+), ", r"\1, \2 - 1, ")),
    Fault("race", "A program also writes to where the next one writes.",
          _once(r"( +)(tl\.store\(out_ptr0 \+ \(x0)(\), tmp\d+, xmask)\)",
                r"\1\2 + 2\3 & (x0 + 2 < xnumel))\n\1\2\3)")),
    Fault("reordered", "Terms of sums and factors change places, which rounds otherwise.",
          _all(r"= (tmp\d+) ([*+]) (tmp\d+)\n", r"= \3 \2 \1\n"), passes=True),
    Fault("reordered reduction", "The blocks of a row are added from the last to the first.",
          _once(r"range\(0, r0_numel, R0_BLOCK\)",
                "range(2560, -R0_BLOCK, -R0_BLOCK)"), passes=True),
)  # fmt: skip


class Row(TypedDict):
    """What became of a fault: what has seen it, and which kernel was named."""

    fault: str
    planted: bool
    seen: str
    kernel: str


def judge(name: str = "") -> list[Row]:
    """Return the rows of all faults, made in a process of its own, or of the one named so."""
    result = subprocess.run(
        [sys.executable, "-m", __spec__.name if __spec__ else __name__, name],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    if result.returncode:
        raise RuntimeError(result.stderr[-2000:])
    rows: list[Row] = json.loads(result.stdout.splitlines()[-1])
    return rows


def _judge_all(folder: Path, only: str) -> list[Row]:
    exported = models.exported(Net(), torch.randn(8, 37))
    program = write_python_program(exported, PROFILES["sm_80"], {})
    inputs = [torch.randn(batch, 37) for batch in _BATCHES]
    with torch.no_grad():
        eager = [exported.module()(x) for x in inputs]
        exact = [exported.module().double()(x.double()) for x in inputs]
    rows = []
    for index, fault in enumerate(FAULTS):
        if only and fault.name != only:
            continue
        changed = replace(program, text=fault.change(program.text))
        seen, kernel = _see(
            changed, folder / str(index), inputs, list(zip(eager, exact, strict=True))
        )
        rows.append(Row(fault=fault.name, planted=changed.text != program.text, seen=seen,
                        kernel=kernel))  # fmt: skip
    return rows


def _see(
    program: PythonProgram,
    folder: Path,
    inputs: list[Tensor],
    references: list[tuple[Tensor, Tensor]],
) -> tuple[str, str]:
    parts = split_program(program.text, operators_of(program.graph))
    interpreted = prepare(program, parts, dict.fromkeys(parts.kernels, _BLOCKS), folder)
    for x, (eager, exact) in zip(inputs, references, strict=True):
        for interpreted.backwards in (False, True):
            try:
                (got,) = interpreted((x,))
            except KernelFailedError as error:
                return "out of bounds", str(error)
            if _reasons(got, eager, exact):
                seen = "numbers, backwards" if interpreted.backwards else "numbers"
                return seen, find_wrong_kernel(program, interpreted, (x,))
    return "", ""


def _reasons(got: Tensor, eager: Tensor, exact: Tensor) -> tuple[str, ...]:
    agreed = Recipe().tolerance_for("float32", "", _SLUG)
    return compare(got, eager, exact, agreed, output=0, case="one").reasons


def main() -> None:
    """Print the rows as JSON."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        rows = _judge_all(Path(folder), sys.argv[1] if len(sys.argv) > 1 else "")
    sys.stdout.write("\n" + json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
