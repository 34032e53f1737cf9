"""Assemble: what the steps found out becomes the release record, or a refusal.

These are the rules of a release, and nothing here runs a model: no torch is imported.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from handoff.artifacts.delivery.captures import CaptureRow
from handoff.artifacts.delivery.contract import EXAMPLES_FILE, DeliveryContract, Lineage
from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest, digest_file
from handoff.artifacts.errors import (
    BlessingRefused,
    DeliveryUnsound,
    UsageProblem,
    split_expected_got,
)
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CudaTarget
from handoff.artifacts.release.evidence import (
    ServedVersion,
)
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, PackageFile
from handoff.tasks.conformance.known_faults import fault_findings
from handoff.tasks.conformance.messages import NOTHING_KNOWN, KnownWrong
from handoff.tasks.inspect.messages import TraceabilityResult
from handoff.tasks.intake.messages import IntakeResult
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.registry.changes import TRIAL_ALIAS, TRIAL_ALIASES
from handoff.tasks.registry.sign import refused_targets
from handoff.tasks.registry.target_record import BuiltTargets
from handoff.tasks.report.page import evidence


def with_source(taken: IntakeResult, model: str, announced: Lineage) -> IntakeResult:
    """Return what was taken in with the source that was announced for it.

    Raises `UsageProblem` where the delivery is another model's, or says another commit.
    """
    contract = taken.contract
    try:
        if model not in ("", contract.model.name):
            raise ValueError(f"expected the model {model}, got {contract.model.name}")
        source = contract.source.merge(announced)
    except ValueError as error:
        expected, got = split_expected_got(str(error))
        raise UsageProblem(
            "the delivery is not the one that was announced",
            expected=expected, got=got,
            remedy="Announce what the delivery is, or deliver what was announced",
        ) from error  # fmt: skip
    return replace(taken, contract=replace(contract, source=source))


def refuse_unsound(result: TraceabilityResult) -> None:
    """Raise `DeliveryUnsound` with every finding that makes the delivery so."""
    grave = [finding for finding in result.findings if finding.severity == "unsound"]
    if not grave:
        return
    raise DeliveryUnsound(
        "the delivery would not compute what was trained",
        expected="a sound graph",
        got="; ".join(f"{f.message} [{f.code}]" for f in grave),
        remedy=". ".join(dict.fromkeys(finding.remedy for finding in grave)),
        where=grave[0].where,
    )


def signature_of(contract: DeliveryContract, optimized: OptimizeResult) -> ModelSignature:
    """Return what the packages take, as delivered, and what they give, as captured."""
    dimensions = {**contract.dimensions, **optimized.computed_dimensions}
    return ModelSignature(contract.inputs, optimized.outputs, dimensions)


def require_trial_alias(recipe: Recipe, alias: str) -> None:
    """Raise `BlessingRefused` where a package that nobody has run would get a further alias."""
    targets = recipe.resolved_targets()
    unverified = [t.slug for t in targets if isinstance(t, CudaTarget) and not t.is_here]
    if unverified and alias not in TRIAL_ALIASES:
        raise BlessingRefused(
            f"the alias {alias} can't be set on this release",
            expected=f"{TRIAL_ALIAS}, as long as {', '.join(unverified)} is not yet verified",
            got=alias,
            remedy=f"Leave --alias out; verify the package on its GPU before it gets {alias}",
        )


def assemble(
    folder: Path,
    *,
    recipe: Recipe,
    taken: IntakeResult,
    judged: TraceabilityResult,
    fingerprint: Digest,
    optimized: OptimizeResult,
    signature: ModelSignature,
    built: BuiltTargets,
    captures: tuple[CaptureRow, ...] = (),
    served: ServedVersion | None = None,
    known: KnownWrong = NOTHING_KNOWN,
    began: str = "",
) -> Manifest:
    """Write the manifest and the shared files to the release's `folder`; return the manifest.

    `known` is what the toolchain is known to get wrong of the graph's operators.
    Where a target is refused, the report is written beside them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = []
    examples = taken.staging / EXAMPLES_FILE
    if examples.exists():
        copy = Path(shutil.copy2(examples, folder / EXAMPLES_FILE))
        size = copy.stat().st_size
        shared.append(PackageFile(EXAMPLES_FILE, digest_file(copy), size))
    contract = taken.contract
    manifest = Manifest(
        model=contract.model.name,
        delivery=taken.digest,
        fingerprint=fingerprint,
        verdict=judged.verdict,
        signature=signature,
        recipe=recipe,
        lineage=contract.source,
        targets=built.records,
        files=tuple(shared),
        findings=(*judged.findings, *fault_findings(known, built.asked)),
        passes=optimized.effects,
        toolchain=built.toolchain,
        plan=built.plan,
        graphs=optimized.graphs,
        captures=captures,
        served=served,
        structure=contract.structure,
        created=_now(),
        began=began,
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    if refused_targets(manifest):
        _write_evidence(folder, manifest)
    return manifest


def record_unsound(
    folder: Path,
    *,
    recipe: Recipe,
    taken: IntakeResult,
    judged: TraceabilityResult,
    fingerprint: Digest,
    began: str = "",
) -> None:
    """Write the record of a delivery that is refused before anything is built, and its report.

    Nothing is written for one that is sound.
    """
    if judged.verdict != "unsound":
        return
    folder.mkdir(parents=True, exist_ok=True)
    contract = taken.contract
    manifest = Manifest(
        model=contract.model.name,
        delivery=taken.digest,
        fingerprint=fingerprint,
        verdict=judged.verdict,
        signature=ModelSignature(contract.inputs, (), contract.dimensions),
        recipe=recipe,
        lineage=contract.source,
        targets=(),
        findings=judged.findings,
        created=_now(),
        began=began,
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    _write_evidence(folder, manifest)


def _write_evidence(folder: Path, manifest: Manifest) -> None:
    """Write the report of what is refused: of what is accepted it is uploaded, of this it isn't."""
    for name, data in evidence(manifest).items():
        (folder / name).write_bytes(data)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
