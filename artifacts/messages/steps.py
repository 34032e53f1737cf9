"""The messages between the flow and its steps: one job and one result for each step.

They live here, apart from the steps, because a flow may name them without importing torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from handoff.artifacts.conformance.known_faults import KnownFault
from handoff.artifacts.delivery.contract import NOTHING_SAID, DeliveryContract, Lineage
from handoff.artifacts.delivery.signature import Dimension, TensorSpec
from handoff.artifacts.digest import Digest
from handoff.artifacts.messages.job import Job
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import Fit, Target
from handoff.artifacts.recipe.tolerance import Deviation, ErrorSpread
from handoff.artifacts.release.evidence import Finding, PassEffect, Timing, Verdict
from handoff.artifacts.release.folded_graph import FoldedGraphs
from handoff.artifacts.release.manifest import PackageFile


@dataclass(frozen=True)
class IntakeJob(Job["IntakeResult"]):
    """Copy the delivery in `delivery` into the private folder `staging` and read it there."""

    delivery: Path
    staging: Path


@dataclass(frozen=True)
class IntakeResult:
    """What was taken in: the contract, the digests of the staged files, the size of the model."""

    contract: DeliveryContract
    staging: Path
    digest: Digest
    files: dict[str, Digest]
    nodes: int
    weights_bytes: int
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class TraceabilityJob(Job["TraceabilityResult"]):
    """Judge the delivery in `staging`, whose lineage has to say what `required_lineage` names.

    `said` is what was told about its source by who asks for the release.
    """

    staging: Path
    required_lineage: tuple[str, ...] = ()
    said: Lineage = NOTHING_SAID


@dataclass(frozen=True)
class TraceabilityResult:
    """The verdict on a delivery and what it rests on."""

    verdict: Verdict
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class OptimizeJob(Job["OptimizeResult"]):
    """Run the recipe's passes on the delivery in `staging`; write the programs into `folder`."""

    staging: Path
    folder: Path
    recipe: Recipe


@dataclass(frozen=True)
class OptimizeResult:
    """The exported program to compile, and what each pass did.

    `reference` is the program that the numbers are compared with when the recipe changes them on
    purpose; None means the delivered module itself. `outputs` are the specs that capture found, and
    `computed_dimensions` the ranges of output sizes that are computed from the inputs'. `graphs`
    are the delivered graph and the program's, folded to be drawn. `calls` are the program's
    operators, each with the dtypes of its tensors.
    """

    program: Path
    reference: Path | None
    outputs: tuple[TensorSpec, ...]
    computed_dimensions: dict[str, Dimension]
    effects: tuple[PassEffect, ...]
    graphs: FoldedGraphs | None = None
    calls: tuple[str, ...] = ()


@dataclass(frozen=True)
class CompileJob(Job["CompileResult"]):
    """Compile the exported program in `program` for `target`; write the packages to `folder`.

    Packages that were compiled before are looked for in the folder `cache` (None: nowhere), unless
    the compilation has to be `fresh`, and kept there. What compilations share is taken from the
    folder `shared` (None: it is made once more).
    """

    program: Path
    target: Target
    folder: Path
    options: dict[str, object]
    cache: Path | None = None
    fresh: bool = False
    shared: Path | None = None


@dataclass(frozen=True)
class ToolsJob(Job["ToolsResult"]):
    """Make ready what compilations for `target` with these `options` share, in `shared`.

    Beside it the C++ runner, whose source is the folder `runner`, is built into `programs`.
    """

    target: Target
    options: dict[str, object]
    shared: Path
    runner: Path
    programs: Path


@dataclass(frozen=True)
class ToolsResult:
    """The C++ runner's program, and whether anything had to be made."""

    program: Path
    made: bool


@dataclass(frozen=True)
class AssumedRange:
    """A narrower range than the declared one, which the compiler assumed for an input's axis.

    It may have chosen an implementation by it: whether the package is right beyond it has to be
    seen.
    """

    place: int
    axis: int
    low: int
    high: int


Reused = Literal["", "code", "package"]


@dataclass(frozen=True)
class CompileResult:
    """The packages of one target, what they ask of a machine, and how long the compiler took.

    `instruction_sets` are those that were found in the code, by /proc/cpuinfo's names. `reused` is
    what came from the cache: the package whole, its code with other weights, or nothing. `kernels`
    tells each GPU kernel with the configuration that was kept. `code` is the digest of all of the
    library that its speed depends on; empty where that isn't known. `atomic_sums` are the functions
    in it that add floating-point numbers in an order that threads decide.
    """

    files: tuple[PackageFile, ...]
    fit: Fit
    compile_s: float
    toolchain: dict[str, str]
    instruction_sets: tuple[str, ...] = ()
    reused: Reused = ""
    assumed: tuple[AssumedRange, ...] = ()
    kernels: tuple[str, ...] = ()
    code: str = ""
    atomic_sums: tuple[str, ...] = ()

    @property
    def library(self) -> PackageFile:
        """The shared library among the files."""
        (found,) = [file for file in self.files if file.path.endswith(".so")]
        return found


@dataclass(frozen=True)
class FindPackageJob(Job["FoundPackage"]):
    """Find out what the compilation `compiling` would take from its cache; change nothing."""

    compiling: CompileJob


@dataclass(frozen=True)
class FoundPackage:
    """What is there: the package whole, its code with other weights, or nothing."""

    reused: Reused


@dataclass(frozen=True)
class ReferenceJob(Job["ReferenceResult"]):
    """Run the reference, in its own precision and in float64, on the input plan; keep it all.

    The graph is asked for the faults that are `known` of its operators, too.
    """

    staging: Path
    reference: Path | None
    plan: VerifyPlan
    file: Path
    known: tuple[KnownFault, ...] = ()


@dataclass(frozen=True)
class ReferenceResult:
    """The cases that were run, by name, and what was left out, with the reason.

    `plan` is the digest of all names and inputs that follow from delivery and recipe; `asked` names
    the further cases by the known faults that they ask for. `conditions` is the digest of what the
    process that runs models and packages has of the machine.
    """

    file: Path
    cases: tuple[str, ...]
    skipped: tuple[str, ...]
    plan: Digest
    conditions: str = ""
    asked: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VerifyJob(Job["VerifyResult"]):
    """Compare the packages in `folder` with the reference outputs in `reference`.

    `library` is the digest that the `.so` has to have; '' leaves that out. Beyond the ranges that
    the compiler `assumed` there has to be a case. `outputs` are the outputs' names and `target` is
    the target's slug: tolerances may go by either. How well conditioned the outputs are is measured
    with the delivery in `staging`, or with the program in the file `program` where the reference is
    that program's; with neither, nothing but the agreed tolerance has room. Where there are
    `atomic_sums` in the package, further calls are judged by their numbers and not by their bits.
    """

    folder: Path
    reference: Path
    recipe: Recipe
    library: str = ""
    assumed: tuple[AssumedRange, ...] = ()
    outputs: tuple[str, ...] = ()
    target: str = ""
    staging: Path | None = None
    program: Path | None = None
    atomic_sums: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyResult:
    """The numeric blessing: how far each output lay from eager's, and why it is refused if so.

    `notes` tell what was seen and is no reason. `blind` are the outputs of which a comparison says
    nothing, because they are the same number at every input, `incomparable` those of which rounding
    alone moves more than a tenth of the elements by about their own size. `spreads` tell how the
    errors of the first outputs lie.
    """

    deviations: tuple[Deviation, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    blind: tuple[int, ...] = ()
    spreads: tuple[ErrorSpread, ...] = ()
    incomparable: tuple[int, ...] = ()

    @property
    def accepted(self) -> bool:
        """Tell whether the package may be released."""
        return not self.reasons


@dataclass(frozen=True)
class TapJob(Job["TapResult"]):
    """Find where the program in `program` says more than its outputs `blind` do.

    Cases are those of `reference`; what is written goes to `folder`.
    """

    program: Path
    reference: Path
    blind: tuple[int, ...]
    folder: Path


@dataclass(frozen=True)
class TapResult:
    """The program that returns inner values, the reference for those, and the values' names."""

    program: Path
    reference: Path
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class BenchmarkJob(Job["BenchmarkResult"]):
    """Time the packages in `folder` against the delivered module in `staging`, interleaved.

    Both run where packages of the target of the slug `target` do; '' is the CPU.
    """

    staging: Path
    folder: Path
    reference: Path
    target: str = ""


@dataclass(frozen=True)
class BenchmarkResult:
    """One timing per case, smallest first.

    `apart` is the largest difference of the package to eager on the device that both were timed on.
    """

    timings: tuple[Timing, ...]
    apart: float = 0.0


@dataclass(frozen=True)
class RaceJob(Job["RaceResult"]):
    """Time the packages in `folders`, the plain one first, call by call in turns."""

    folders: tuple[Path, ...]
    reference: Path


@dataclass(frozen=True)
class RaceLap:
    """One package's median seconds on each timed input, and the plain one's time by its own."""

    times_s: tuple[float, ...]
    ratios: tuple[float, ...]
    ratios_low: tuple[float, ...]
    ratios_high: tuple[float, ...]


@dataclass(frozen=True)
class RaceResult:
    """One lap for each of the job's folders."""

    laps: tuple[RaceLap, ...]


@dataclass(frozen=True)
class PrepareJob(Job["Prepared"]):
    """Make the model that `factory` (`module:function`) returns, for the `DeliverJob` that follows.

    `search_path` is where the module is looked for first. `folder` is where it is to go. With
    `reads_ranges`, the model is run to see which ranges nothing tells.
    """

    factory: str
    search_path: Path
    folder: Path
    reads_ranges: bool = False


@dataclass(frozen=True)
class Prepared:
    """The model's name, and whose name it is; the inputs whose ranges are guessed.

    `is_chosen` says that the factory names the model, and not that it was named after something.
    """

    name: str
    named_by: str
    guessed: tuple[TensorSpec, ...] = ()
    is_chosen: bool = False


@dataclass(frozen=True)
class DeliverJob(Job["DeliverResult"]):
    """Make the model that `factory` (`module:function`) returns, and deliver it to `folder`.

    `search_path` is where the module is looked for first. An empty `name` leaves the factory's.
    `ranges` are the lowest and the highest value of inputs that a person was asked for.
    """

    factory: str
    search_path: Path
    folder: Path
    name: str = ""
    ranges: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class DeliverResult:
    """The delivery that was written, and what its reader should know about it."""

    folder: Path
    contract: DeliveryContract
    notes: tuple[str, ...] = ()
