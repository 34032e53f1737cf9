"""The release record: what was released, for which machines, from what, how exact and how fast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from handoff.artifacts.delivery.captures import CaptureRow
from handoff.artifacts.delivery.contract import (
    NO_STRUCTURE,
    Lineage,
    Structure,
    require_model_name,
)
from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.gpu_generations import format_capabilities
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import (
    Deviation,
    ErrorSpread,
    largest_difference,
    pooled_rmse,
)
from handoff.artifacts.record import RecordInvalid, added_field, canonical_bytes, from_plain
from handoff.artifacts.release.culprit import Culprit
from handoff.artifacts.release.evidence import (
    SOURCE_LEVEL,
    Candidate,
    EarlierMeasurement,
    Finding,
    FoldedGraphs,
    PassEffect,
    ServedVersion,
    SourceCheck,
    Timing,
    TorchCheck,
    Verdict,
    headline_of,
)
from handoff.artifacts.release.mechanics import Mechanics

SCHEMA = 1
MANIFEST_FILE = "manifest.json"
# No release record is near this; a store that sends more is not sending one.
MANIFEST_LIMIT_BYTES = 64 << 20

_LARGE_BYTES = 256 << 20


def is_large(size_bytes: int) -> bool:
    """Return whether it is worth some seconds that fewer processes hold such weights at once."""
    return size_bytes > _LARGE_BYTES


@dataclass(frozen=True)
class PackageFile:
    """One file of a release: its path in a pulled folder, its digest and its size in bytes."""

    path: str
    digest: Digest
    size_bytes: int

    def __post_init__(self) -> None:
        """Check that the path stays in the folder that it is pulled into."""
        parts = self.path.split("/")
        if not self.path or any(part in ("", ".", "..") or "\\" in part for part in parts):
            raise ValueError(f"expected a relative path of plain names, got {self.path[:80]!r}")


_MOST_CASES = 3


def _format_cases(cases: list[str]) -> str:
    distinct = list(dict.fromkeys(filter(None, cases)))
    more = len(distinct) - _MOST_CASES
    listed = ", ".join(distinct[:_MOST_CASES]) + (f" and {more} more" if more > 0 else "")
    return f"{listed}: " if listed else ""


@dataclass(frozen=True)
class TargetRecord:
    """One target of a release: its packages, what they ask of a machine, and the evidence.

    `accepted` is what both gates answered; `reasons` says why not. `skipped` names the sizes that
    were not compared, and why. `instruction_sets` are those found in the package's code.
    `reused` says what of it came from an earlier compilation of the same graph. `candidates` are
    the variants that a search tried, the plain one first, and `chosen` the one that is shipped. A
    target that was built where it can't be run is neither accepted nor refused: `unverified` says
    why. `kernels` are those for a GPU, each with the configuration that was kept. `notes` say what
    the numeric gate saw beside, and `mechanics` is the mechanical one's evidence. `spreads`
    show how the errors of the first outputs lie. `taken_over` is the package of the same code
    whose timings and mechanics these are, but for the replays. One that is refused because a step
    `crashed` may be accepted the next time: nothing was shown to be wrong. `metric` is what the
    package loses of the delivery's own. One that no processor of its kind has run says in
    `emulated` what has, and is never timed. `source_checked` says what the sources of kernels for
    a GPU that isn't here were seen to compute. `torches` say how the package did in other versions
    of torch than its own; those where it was right are in `fit`, as are the compute capabilities
    on which a package for several generations of GPUs was run, and those on which it was not.
    """

    slug: str
    accepted: bool
    reasons: tuple[str, ...]
    files: tuple[PackageFile, ...]
    fit: Fit | None
    deviations: tuple[Deviation, ...] = ()
    skipped: tuple[str, ...] = ()
    timings: tuple[Timing, ...] = ()
    compile_s: float = 0.0
    size_bytes: int = 0
    instruction_sets: tuple[str, ...] = added_field(())
    reused: Literal["", "code", "package"] = added_field("")
    candidates: tuple[Candidate, ...] = added_field(())
    chosen: str = added_field("")
    unverified: str = added_field("")
    kernels: tuple[str, ...] = added_field(())
    notes: tuple[str, ...] = added_field(())
    mechanics: Mechanics | None = added_field(None)
    spreads: tuple[ErrorSpread, ...] = added_field(())
    crashed: bool = added_field(False)
    taken_over: EarlierMeasurement | None = added_field(None)
    atomic_sums: tuple[str, ...] = added_field(())
    metric: MeasuredMetric | None = added_field(None)
    emulated: str = added_field("")
    source_checked: SourceCheck | None = added_field(None)
    torches: tuple[TorchCheck, ...] = added_field(())
    culprit: Culprit | None = added_field(None)

    @property
    def verdict(self) -> Literal["accepted", "built, not yet verified", "refused"]:
        """What was decided on this target."""
        if self.accepted:
            return "accepted"
        return "built, not yet verified" if self.unverified else "refused"

    @property
    def standing(self) -> str:
        """The verdict as people read it, with what was seen of a target that is unverified."""
        if self.accepted and self.unverified_gpus:
            return f"{self.verdict}, {self.unverified_gpus_text}"
        return f"{self.verdict}, {SOURCE_LEVEL}" if self.is_checked_at_source else self.verdict

    @property
    def unverified_gpus(self) -> tuple[int, ...]:
        """The compute capabilities whose machine code in the package no GPU has run."""
        if self.fit is None:
            return ()
        return self.fit.gpu_members if self.unverified else self.fit.gpu_unverified

    @property
    def unverified_gpus_text(self) -> str:
        """The same, as people read it; '' for none."""
        if not self.unverified_gpus:
            return ""
        return (
            f"not yet verified for compute capability {format_capabilities(self.unverified_gpus)}"
        )

    @property
    def is_checked_at_source(self) -> bool:
        """Return whether nothing more is known than that its kernels' sources are right."""
        return self.source_checked is not None and bool(self.unverified)

    @property
    def reason_lines(self) -> tuple[str, ...]:
        """The reasons as a person reads them: what several cases have in common is said once.

        What isn't about a case comes first, then the cases that are furthest off.
        """
        distances = {f"{one.case}, output {one.output}": one.max_abs for one in self.deviations}

        def rank(reason: str) -> float:
            distance = distances.get(reason.partition(": ")[0], math.inf)
            return -math.inf if math.isnan(distance) else -distance

        cases: dict[str, list[str]] = {}
        for reason in sorted(self.reasons, key=rank):
            case, colon, what = reason.partition(": ")
            cases.setdefault(what if colon else case, []).append(case if colon else "")
        return tuple(f"{_format_cases(names)}{what}" for what, names in cases.items())

    @property
    def headline(self) -> Timing | None:
        """The timing that stands for all: the delivered example's, else the largest input's."""
        return headline_of(self.timings)

    @property
    def speedup(self) -> float | None:
        """The headline's speed-up over eager; None where nothing was timed."""
        return self.headline.speedup if self.headline else None

    @property
    def is_wrong_on_special_inputs_alone(self) -> bool:
        """Return whether its numbers were refused, and none on ordinary inputs was."""
        wrong = [deviation for deviation in self.deviations if not deviation.accepted]
        return bool(wrong) and all(deviation.special for deviation in wrong)

    @property
    def max_abs(self) -> float | None:
        """The largest absolute deviation on ordinary inputs; None without any."""
        return largest_difference(self.deviations)

    @property
    def undecided_shares(self) -> tuple[tuple[int, float], ...]:
        """The outputs some of whose elements rounding decides, and the share of those elements.

        On ordinary inputs; no comparison says whether they are right.
        """
        shares = []
        for output in sorted({deviation.output for deviation in self.deviations}):
            ordinary = [d for d in self.deviations if d.output == output and not d.special]
            count = sum(d.at_step + d.incomparable for d in ordinary)
            if count:
                shares.append((output, count / sum(d.elements for d in ordinary)))
        return tuple(shares)

    @property
    def decided_by_metric(self) -> int | None:
        """The output about which the delivery's metric decides, and no tolerance; None for none."""
        return self.metric.place if self.metric and self.metric.decides else None

    @property
    def rmse_ratio(self) -> float | None:
        """The largest RMSE of an output to float64, in multiples of eager's; below 1 is closer.

        Over all ordinary inputs together, because few elements say little; None without any error
        of eager's to compare with. An output about which a metric decides is left out.
        """
        ratios = []
        for output in {deviation.output for deviation in self.deviations}:
            ordinary = [d for d in self.deviations if d.output == output and not d.special]
            if output == self.decided_by_metric:
                continue
            eager = pooled_rmse((d.elements, d.rmse_eager) for d in ordinary)
            package = pooled_rmse((d.elements, d.rmse_package) for d in ordinary)
            if eager and package is not None:
                ratios.append(package / eager)
        return max(ratios, default=None)


@dataclass(frozen=True)
class Manifest:
    """Everything that a serving machine and a later engineer need to know about one release.

    The version number is not part of it: the registry gives it out after the manifest is fixed,
    and the manifest's digest is what the version points to. `files` are those that all targets
    share (the examples with their golden outputs). `fingerprint` stands for everything that the
    release was made from: the same one would be made again. `plan` is the digest of the inputs that
    the packages were compared on. `graphs` are the delivered graph and the compiled one, folded.
    `captures` are the capture table, where the recipe asks for it. `served` is
    the version that was in production. `structure` says where the inputs and outputs belong in the
    original model's call and result. Its making began at `began` and ended at `created`, both in
    ISO 8601.
    """

    model: str
    delivery: Digest
    fingerprint: Digest
    verdict: Verdict
    signature: ModelSignature
    recipe: Recipe
    lineage: Lineage
    targets: tuple[TargetRecord, ...]
    files: tuple[PackageFile, ...] = ()
    findings: tuple[Finding, ...] = ()
    passes: tuple[PassEffect, ...] = ()
    toolchain: dict[str, str] = field(default_factory=dict)
    created: str = ""
    schema: int = SCHEMA
    plan: str = added_field("")
    graphs: FoldedGraphs | None = added_field(None)
    captures: tuple[CaptureRow, ...] = added_field(())
    served: ServedVersion | None = added_field(None)
    began: str = added_field("")
    structure: Structure = added_field(NO_STRUCTURE)

    def __post_init__(self) -> None:
        """Check the name and the schema version."""
        require_model_name(self.model)
        if self.schema != SCHEMA:
            raise ValueError(
                f"expected a manifest of schema {SCHEMA}, got {self.schema}; "
                "a newer Handoff may read it"
            )

    def to_bytes(self) -> bytes:
        """Return the canonical form: JSON with sorted keys, no spaces, UTF-8, one final newline."""
        return canonical_bytes(self)

    @property
    def digest(self) -> Digest:
        """The digest of the canonical form."""
        return digest_bytes(self.to_bytes())


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest in `data`; raise `PackageRefused` when it isn't one."""
    try:
        return from_plain(Manifest, parse_json(data), MANIFEST_FILE)
    except (ValueError, RecordInvalid) as error:
        raise PackageRefused(
            "the release record can't be read",
            expected=f"a manifest of schema {SCHEMA}",
            got=str(error),
            remedy="Pull the release again, or with the Handoff version that wrote it",
        ) from error


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a pulled folder; raise `PackageRefused` when there is none."""
    path = folder / MANIFEST_FILE
    try:
        return parse_manifest(path.read_bytes())
    except OSError as error:
        raise unreadable_release(folder, error) from error


def unreadable_release(folder: Path, error: OSError) -> PackageRefused:
    """Return the refusal of a folder whose manifest or signature can't be read."""
    if isinstance(error, PermissionError):
        return PackageRefused(
            f"the release in {folder} can't be read", expected="files that this user may read",
            got=error.strerror or str(error),
            remedy="Let this user read them (chmod -R a+rX), or pull it as this user",
        )  # fmt: skip
    return PackageRefused(
        f"{folder} is not a pulled release", expected=f"a folder with a {MANIFEST_FILE}",
        got=error.strerror or str(error),
        remedy="Pull one with 'handoff pull NAME@ALIAS --to FOLDER'",
    )  # fmt: skip


# In the folder that comes back for a target, beside its packages.
ANSWER_FILE = "answer.json"


@dataclass(frozen=True)
class TargetAnswer:
    """What another machine made of one target: its record, and what it was made with.

    `delivery` and `plan` are the digests of what it was made from and compared on, which have to be
    those of the release that it becomes part of. `asked` has the cases that ask for known faults.
    """

    record: TargetRecord
    toolchain: dict[str, str]
    plan: str
    delivery: Digest
    asked: dict[str, str] = field(default_factory=dict)
