"""Where and why a compiled package's numbers are wrong: the job, its trials, and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CpuTarget
from handoff.artifacts.record import Job

# `not reproduced`: compiled again, it is right. `program`: what went to the compiler was wrong
# already. `option`: right without the options named. `compiler`: wrong with plain options, too.
# `crash`: the compiler or the package ended without numbers. `rounding`: outside the tolerance, and
# no further off than eager itself.
Cause = Literal["not reproduced", "program", "option", "compiler", "crash", "rounding"]

# What torch's CompilerBisector calls the parts of the compiler that can be left out one by one.
Subsystem = Literal[
    "decomposition", "joint_graph_passes", "post_grad_passes", "pre_grad_passes", "lowerings"
]


@dataclass(frozen=True)
class LocalizeJob(Job["LocalizeResult"]):
    """Find out where the package of `program` for `target` goes wrong, compiled with `options`.

    `program` is what the optimize step wrote, `staging` the delivery that it was made from and
    `reference` the file of the reference step. `cases` names the cases that failed; none stands for
    all. Trials work in `folder`, and read what compilations share in `shared`, where it is named;
    the script that repeats the fault is written to the folder `reproduction`. At most `compiles`
    packages are built in at most `seconds`. `known` has the calls of each fault that the toolchain
    is known for in this program: they are tried first.
    """

    program: Path
    staging: Path
    reference: Path
    target: CpuTarget
    options: dict[str, object]
    recipe: Recipe
    folder: Path
    reproduction: Path
    cases: tuple[str, ...] = ()
    compiles: int = 10
    seconds: float = 240.0
    shared: Path | None = None
    known: tuple[tuple[str, ...], ...] = ()

    @property
    def budget(self) -> str:
        """What it may take, for a person who waits."""
        return f"at most {self.compiles} compiles and {self.seconds:.0f} s"


@dataclass(frozen=True)
class FaultyNode:
    """A node of the exported program, and where it comes from.

    `module_line` is such as `module.py:31`, `module_text` what stands there, and `source_line` the
    line of the training side's code, as far as the delivery says; '' where that isn't known.
    """

    name: str
    target: str
    module_line: str = ""
    module_text: str = ""
    source_line: str = ""


@dataclass(frozen=True)
class LocalizeResult:
    """The answer, in words and in parts.

    `verdict` says it all to a person. `case` is the case that was looked at and `options` those
    without which the package is right. `nodes` are the smallest part of the program that was seen
    to be wrong when it is compiled alone on right inputs; `rmse` and `rmse_eager` are that part's
    root mean square distances to float64, relative to the output's own size. `others` are further
    nodes that gave something wrong for the inputs that the package itself had computed, and were
    not compiled alone. `subsystem` is the
    part of the compiler without which the nodes are right, and `at` the one use of it, by
    Inductor's name of the operator or pass; of a `program` that is wrong, `at` is the pass of the
    recipe. `is_complete` is False where the budget ended the search. `script` repeats the fault
    with torch alone ('' where there is nothing to repeat), and `script_repeats` says whether it
    was run and seen to. `notes` say what was learned on the way.
    """

    verdict: str
    cause: Cause
    case: str = ""
    options: tuple[str, ...] = ()
    subsystem: Subsystem | Literal[""] = ""
    at: str = ""
    nodes: tuple[FaultyNode, ...] = ()
    others: tuple[FaultyNode, ...] = ()
    rmse: float = 0.0
    rmse_eager: float = 0.0
    is_complete: bool = True
    compiles: int = 0
    seconds: float = 0.0
    script: str = ""
    script_repeats: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubsystemUse:
    """One use of a subsystem by the compiler: the how-manieth of its kind, and what it did."""

    subsystem: Subsystem
    index: int
    what: str


@dataclass(frozen=True)
class LeaveOut:
    """Leave a subsystem out, from its use number `first` on, and before its use number `last`."""

    subsystem: Subsystem
    first: int = 0
    last: int = 1 << 30


@dataclass(frozen=True)
class TrialJob(Job["TrialResult"]):
    """Compile the exported program in `program`, run it on all `inputs`, keep what it gives.

    `inputs` and `outputs` are files of a list of tuples of tensors. `left_out` is what the compiler
    has to do without; operators whose lowering is left out run as ATen's own kernels. Precompiled
    headers are taken from `shared`, or made once more.
    """

    program: Path
    inputs: Path
    outputs: Path
    target: CpuTarget
    folder: Path
    options: dict[str, object]
    left_out: tuple[LeaveOut, ...] = ()
    shared: Path | None = None


@dataclass(frozen=True)
class TrialResult:
    """Which subsystems the compiler used where, in the order in which it did."""

    compile_s: float
    uses: tuple[SubsystemUse, ...]
