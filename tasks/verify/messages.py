"""The jobs of running the reference and of comparing a package with it, and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from handoff.artifacts.conformance.table import KnownFault
from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.digest import Digest
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.tolerance import Deviation, ErrorSpread
from handoff.artifacts.record import Job
from handoff.tasks.compile.messages import AssumedRange
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.verify.torch_versions.messages import TorchEnvironment


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
    process that runs models and packages has of the machine. `evaluation` is the file of eager's
    outputs that the delivery's metric is of, where it brings an evaluation.
    """

    file: Path
    cases: tuple[str, ...]
    skipped: tuple[str, ...]
    plan: Digest
    conditions: str = ""
    asked: dict[str, str] = field(default_factory=dict)
    evaluation: Path | None = None


@dataclass(frozen=True)
class VerifyJob(Job["VerifyResult"]):
    """Compare the packages in `folder` with the reference outputs in `reference`.

    `library` is the digest that the `.so` has to have; '' leaves that out. Beyond the ranges that
    the compiler `assumed` there has to be a case. `outputs` are the outputs' names and `target` is
    the target's slug: tolerances may go by either. How well conditioned the outputs are is measured
    with the delivery in `staging`, or with the program in the file `program` where the reference is
    that program's; with neither, nothing but the agreed tolerance has room. Where there are
    `atomic_sums` in the package, further calls are judged by their numbers and not by their bits.

    Where the delivery brings an `evaluation`, its metric is computed of the package's outputs and
    of eager's, which are in that file. Where the recipe agrees on it, and passes round, `rounded`
    is the program that was compiled: the output that the metric is of is compared with its.

    `calls` says how a package for another processor is called, which this process can't open. With
    `torch`, the package is opened by that one, in a process of its own.
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
    evaluation: Path | None = None
    rounded: Path | None = None
    calls: ProbeJob | None = None
    torch: TorchEnvironment | None = None


@dataclass(frozen=True)
class VerifyResult:
    """The numeric gate: how far each output lay from eager's, and why it is refused if so.

    `notes` say what was seen and is no reason, and `left_out` which cases there was no time for
    under emulation. `blind` are the outputs of which a comparison says nothing, because they are
    the same number, or empty, at every input, `incomparable` those of which rounding alone moves
    more than a tenth of the elements by about their own size. `spreads` say how the errors of the
    first outputs lie, `metric` what is lost of the delivery's own.
    """

    deviations: tuple[Deviation, ...]
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    blind: tuple[int, ...] = ()
    spreads: tuple[ErrorSpread, ...] = ()
    incomparable: tuple[int, ...] = ()
    metric: MeasuredMetric | None = None
    left_out: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Return whether the package may be released."""
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
