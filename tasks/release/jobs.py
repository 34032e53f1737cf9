"""The jobs of one release: what each step is asked, in which order, and which folder it works in.

Whatever describes a release before or beside it reads the order here. The flow
(`flows.releasing`) runs the steps as each has what it needs; a test holds it to this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from handoff.artifacts.conformance.table import KnownFault
from handoff.artifacts.delivery.contract import NO_LINEAGE, Lineage
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.isolation import own_package
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CpuTarget, CudaTarget, Target, find_target
from handoff.artifacts.release.mechanics import RunnerLimits
from handoff.tasks import steps
from handoff.tasks.compile.arm.emulation import EMULATION_SLOWDOWN, emulated_target
from handoff.tasks.compile.messages import CompileJob, CompileResult, ToolsJob
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.localize.messages import LocalizeJob
from handoff.tasks.optimize.messages import OptimizeJob, OptimizeResult
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.steps import Step
from handoff.tasks.verify.interpret.messages import InterpretJob
from handoff.tasks.verify.messages import (
    ReferenceJob,
    ReferenceResult,
    TapJob,
    VerifyJob,
    VerifyResult,
)

# The C++ program, which serving teams start from, too.
RUNNER_SOURCE = Path(own_package(), "infra", "runner")

# On the delivery, which every target shares.
SHARED = (steps.TAKE_IN, steps.INSPECT, steps.OPTIMIZE, steps.REFERENCE)
# Of these the next waits for the one before, and the targets run beside each other.
OF_TARGET = (steps.COMPILE, steps.VERIFY, steps.PROBE, steps.MEASURE, steps.BENCHMARK)
# Of a package that can't be run here.
OF_ABSENT_GPU = (steps.COMPILE, steps.INTERPRET)
TIMED = (steps.MEASURE, steps.BENCHMARK)
REGISTERING = (steps.UPLOAD, steps.SIGN, steps.CATALOGUE)


@dataclass(frozen=True)
class Jobs:
    """The jobs that make a release by `recipe` in the folder `workspace`.

    With `fresh`, nothing that was compiled before is looked for; else in the folder `cache`, which
    also keeps what is compiled (None: nothing is kept).
    """

    workspace: Path
    recipe: Recipe
    fresh: bool = False
    cache: Path | None = None

    @property
    def staging(self) -> Path:
        """The private copy of the delivery."""
        return self.workspace / "staging"

    @property
    def release(self) -> Path:
        """The folder that is registered: the packages and the manifest."""
        return self.workspace / "release"

    def package(self, target: Target) -> Path:
        """Return the folder of the target's packages, inside the release."""
        return self.release / target.slug

    def traceability(self, announced: Lineage = NO_LINEAGE) -> TraceabilityJob:
        """Return the job that judges the delivery, and what was `announced` about its source."""
        return TraceabilityJob(self.staging, self.recipe.required_lineage, announced)

    def optimize(self) -> OptimizeJob:
        """Return the job that runs the recipe's passes."""
        return OptimizeJob(self.staging, self.workspace / "program", self.recipe)

    def compile(self, optimized: OptimizeResult, target: Target) -> CompileJob:
        """Return the job that compiles for `target`."""
        return CompileJob(
            optimized.program, target, self.package(target), self.recipe.options,
            self.cache, self.fresh, self.shared,
        )  # fmt: skip

    def tools(self, target: Target) -> ToolsJob:
        """Return the job that makes what compilations for `target` share."""
        return ToolsJob(target, self.recipe.options, self.shared, RUNNER_SOURCE, self.programs)

    @property
    def packages(self) -> Path:
        """The folder of the caches of what was compiled before."""
        return self.workspace.parent / "packages"

    @property
    def shared(self) -> Path:
        """The folder of what compilations share."""
        return self.workspace.parent / "compiler"

    @property
    def torches(self) -> Path:
        """The folder of environments with other versions of torch."""
        return self.workspace.parent / "torch"

    @property
    def programs(self) -> Path:
        """The folder of the C++ runner's programs."""
        return self.workspace.parent / "programs"

    def variant(self, name: str, passes: tuple[PassChoice, ...]) -> OptimizeJob:
        """Return the job that runs the further passes of a variant behind the recipe's."""
        folder = self.workspace / "variants" / name
        recipe = replace(self.recipe, passes=(*self.recipe.passes, *passes))
        return OptimizeJob(self.staging, folder, recipe)

    def candidate(
        self, optimized: OptimizeResult, target: Target, name: str, options: dict[str, object]
    ) -> CompileJob:
        """Return the job that compiles a variant of the package, with further options."""
        folder = self.workspace / "candidates" / target.slug / name
        job = self.compile(optimized, target)
        return replace(job, folder=folder, options={**job.options, **options})

    def tap(self, job: CompileJob, reference: Path, blind: tuple[int, ...]) -> TapJob:
        """Return the job that taps the program that `job` compiles."""
        folder = self.workspace / "taps" / job.target.slug / job.folder.name
        return TapJob(job.program, reference, blind, folder)

    def localize(
        self, optimized: OptimizeResult, target: CpuTarget, verified: VerifyResult,
        known: Sequence[KnownFault],
    ) -> LocalizeJob:  # fmt: skip
        """Return the job that finds out where a package goes wrong, `known` faults first."""
        # A case that was called in another way goes by the name of the case that it is of.
        wrong_cases = [d.case.partition(",")[0] for d in verified.deviations if d.reasons]
        return LocalizeJob(
            optimized.program,
            self.staging,
            self.reference_file,
            target,
            self.recipe.options,
            self.recipe,
            folder=self.workspace / "localize" / target.slug,
            reproduction=self.workspace / "reproduction" / target.slug,
            cases=tuple(dict.fromkeys(wrong_cases)),
            seconds=self.recipe.verify.localize_seconds,
            shared=self.shared,
            known=tuple(fault.calls for fault in known),
        )

    def interpret(
        self, optimized: OptimizeResult, target: CudaTarget, compiled: CompileResult,
        reference: Path,
    ) -> InterpretJob:  # fmt: skip
        """Return the job that runs the kernels' sources of a package whose GPU isn't here."""
        names = tuple(spec.name for spec in optimized.outputs)
        return InterpretJob(
            optimized.program, target, reference, self.recipe, compiled.sources,
            self.workspace / "interpret" / target.slug, self.staging, optimized.reference, names,
            self.recipe.verify.interpret_seconds,
        )  # fmt: skip

    def probe(
        self, target: Target, compiled: CompileResult, signature: ModelSignature, reference: Path
    ) -> ProbeJob:
        """Return the job that runs the target's packages without Python."""
        limits = RunnerLimits()
        if isinstance(target, CudaTarget):
            # A GPU's driver reserves far more address space than it uses.
            limits = replace(limits, memory_bytes=0)
        elif emulated_target(target.slug):
            limits = replace(limits, answer_s=limits.answer_s * EMULATION_SLOWDOWN)
        return ProbeJob(
            self.package(target), compiled.files, compiled.fit, signature, reference, self.recipe,
            RUNNER_SOURCE, self.programs, self.workspace / "probe" / target.slug, limits,
        )  # fmt: skip

    def calls(
        self, target: Target, folder: Path, compiled: CompileResult, signature: ModelSignature,
        reference: Path,
    ) -> ProbeJob | None:  # fmt: skip
        """Return how the packages in `folder` are called where this machine can't open them.

        None where it can.
        """
        if emulated_target(target.slug) is None:
            return None
        job = self.probe(target, compiled, signature, reference)
        workspace = self.workspace / "calls" / target.slug / folder.parent.name / folder.name
        return replace(job, folder=folder, workspace=workspace)

    @property
    def measured(self) -> Path:
        """The folder of what was measured of earlier packages."""
        return self.workspace.parent / "measured"

    def reference(
        self, optimized: OptimizeResult, known: tuple[KnownFault, ...] = ()
    ) -> ReferenceJob:
        """Return the job that runs the reference, and asks for the faults that are `known`."""
        plan, file = self.recipe.verify, self.reference_file
        return ReferenceJob(self.staging, optimized.reference, plan, file, known)

    def verify(
        self, slug: str, folder: Path, library: str, optimized: OptimizeResult,
        reference: ReferenceResult,
    ) -> VerifyJob:  # fmt: skip
        """Return the job that compares the packages in a folder with a program's reference.

        The packages are a target's, by its slug, and their `.so` has the digest `library`.
        """
        names = tuple(spec.name for spec in optimized.outputs)
        return VerifyJob(
            folder, reference.file, self.recipe, library, outputs=names, target=slug,
            staging=self.staging, program=optimized.reference, evaluation=reference.evaluation,
            rounded=self._rounding_program(optimized),
        )  # fmt: skip

    def _rounding_program(self, optimized: OptimizeResult) -> Path | None:
        """Return the program whose rounding an agreed metric judges; None for a tolerance."""
        return optimized.program if self.recipe.metric and optimized.rounds else None

    @property
    def reference_file(self) -> Path:
        """Where the reference's outputs lie."""
        return self.workspace / "reference.pt"


def supports_other_torches(slug: str) -> bool:
    """Return whether a target's package can be tried with another torch: one that runs on this CPU.

    Another torch for ARM64 isn't here, and none was tried on a GPU.
    """
    return not isinstance(find_target(slug), CudaTarget) and not emulated_target(slug)


def label_with_torch(slug: str, version: str) -> str:
    """Return how a target is named with another torch."""
    return f"{slug} with torch {version}"


def _steps_of(slug: str) -> tuple[Step[Any, Any], ...]:
    """Return the steps of the target `slug`, here."""
    target = find_target(slug)
    if isinstance(target, CudaTarget) and not target.is_here:
        return OF_ABSENT_GPU
    # What an emulator runs isn't timed.
    return tuple(row for row in OF_TARGET if row not in TIMED or not emulated_target(slug))


def names_in_order(slugs: Iterable[str], torches: Iterable[str] = ()) -> list[str]:
    """Return the steps' names, as they are announced, of a release for the targets `slugs`.

    Packages for the CPU are tried with other `torches`, too.
    """
    other_versions = [*dict.fromkeys(torches)]
    of_targets = [f"{steps.MAKE_TORCH.name} {version}" for version in other_versions]
    for slug in slugs:
        of_targets += [f"{row.name} {slug}" for row in _steps_of(slug)]
        if supports_other_torches(slug):
            of_targets += [
                f"{steps.VERIFY.name} {label_with_torch(slug, version)}"
                for version in other_versions
            ]
    shared, last = ([row.name for row in rows] for rows in (SHARED, REGISTERING))
    return [*shared, *of_targets, *last]
