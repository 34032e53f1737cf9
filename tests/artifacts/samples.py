"""Small releases made by hand, with files that stand for packages."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from securesystemslib.signer import CryptoSigner, Signer

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.digest import digest_bytes, digest_file
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.artifacts.recipe.tolerance import Deviation
from handoff.artifacts.release.evidence import Finding, PassEffect, SourceCheck, Timing
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, PackageFile, TargetRecord
from handoff.artifacts.release.signing import Trust, public_key_of, sign_statement
from handoff.artifacts.release.statement import RELEASE_FILE, release_statement

TORCH = "2.15.0"


@dataclass(frozen=True)
class SampleKey:
    """A key that signs, its public half in PEM, and trust in that alone."""

    signer: Signer
    pem: bytes
    trust: Trust


@cache
def sample_key(name: str = "releases") -> SampleKey:
    """Return a fresh key of that name; the same one for all tests of a process."""
    private = generate_private_key(SECP256R1())
    form = PublicFormat.SubjectPublicKeyInfo
    pem = private.public_key().public_bytes(Encoding.PEM, form)
    public = public_key_of(pem, name)
    return SampleKey(CryptoSigner(private, public), pem, Trust((public,)))


def sign_release(
    folder: Path, manifest: Manifest, *, version: int = 1, key: SampleKey | None = None
) -> Mapping[str, Any]:
    """Write the signed statement of a release into its folder, as `version`; return it."""
    statement = release_statement(
        manifest, version, parts=digest_bytes(b"parts"),
        evidence={"report.md": digest_bytes(b"report")}, pipeline="1.2.3", run="run 7",
    )  # fmt: skip
    signed = sign_statement(statement, (key or sample_key()).signer)
    (folder / RELEASE_FILE).write_bytes(signed)
    return statement


def sample_source_check() -> SourceCheck:
    """Return what running two kernels' sources has shown."""
    return SourceCheck({"triton_poi_fused_add_0": str(digest_bytes(b"add"))}, ("batch=1 seed=0",),
                       2.4e-7, 12, ("triton_red_fused_sum_1",), 3)  # fmt: skip


def sample_target(slug: str, *, flags: tuple[str, ...] = ()) -> TargetRecord:
    """Return an accepted target without files that asks for the processor flags `flags`."""
    deviation = Deviation(0, "batch=1 seed=0", "float32", 4, 3e-7, 1e-6, 8e-8, 7e-8, 0.5, 0.0)
    return TargetRecord(
        slug=slug,
        accepted=True,
        reasons=(),
        files=(),
        fit=Fit(cpu_flags=flags, torch=TORCH),
        deviations=(deviation,),
        skipped=("batch=1024: about 62.8 GiB of intermediate results",),
        timings=(Timing("batch=1 seed=0", 2e-3, 1e-3, 2.0, 1.9, 2.1, 9, 2),),
        compile_s=12.5,
    )


def sample_metric(
    package: float = 0.97, *, name: str = "top-1", decides: bool = True, **changes: Any
) -> MeasuredMetric:
    """Return a metric of a package that was 0.97 by eager, of which 0.01 may be lost."""
    drop = 0.97 - package
    measured = MeasuredMetric(
        name, "output0", 800, 0.97, package, drop, drop - 0.005, drop + 0.005, is_error=False,
        confidence=0.95, data="sha256:" + 64 * "0", max_drop=0.01, decides=decides,
    )  # fmt: skip
    return replace(measured, **changes)


def sample_manifest(*targets: TargetRecord, model: str = "toy") -> Manifest:
    """Return a manifest with the targets, or with one that every machine here can run."""
    batch = {"batch": Dimension(1, 1024)}
    chosen = targets or (sample_target(native_cpu_target().slug),)
    return Manifest(
        model=model,
        delivery=digest_bytes(b"delivery"),
        fingerprint=digest_bytes(b"fingerprint"),
        verdict="sound within limits",
        signature=ModelSignature(
            (TensorSpec("x", "float32", ("batch", 8)),),
            (TensorSpec("output0", "float32", ("batch", 4)),),
            batch,
        ),
        recipe=Recipe(),
        lineage=Lineage("https://example.org/models.git", "0123abcd", "run 7", "A <a@b.c>"),
        targets=chosen,
        findings=(
            Finding("unused-input", "limit", "y is used by nothing", "Drop it", "module.py:7"),
        ),
        passes=(PassEffect("fold-batch-norm", "aten", True, 9, 7, 1e-9),),
        toolchain={"torch": TORCH, "compiler": "g++ 12"},
        created="2026-11-21T03:00:00+00:00",
    )


def write_release(folder: Path, *targets: TargetRecord, model: str = "toy") -> Manifest:
    """Write a signed release with small files for packages; return its manifest."""
    manifest = sample_manifest(*targets, model=model)
    records = []
    for target in manifest.targets:
        files = []
        library = f"{target.slug} library".encode()
        for name, data in (("model.pt2", _archive_of(library)), ("model.so", library)):
            files.append(_write(folder, f"{target.slug}/{name}", data))
        records.append(replace(target, files=tuple(files)))
    shared = _write(folder, "examples.safetensors", b"examples")
    whole = replace(manifest, targets=tuple(records), files=(shared,))
    (folder / MANIFEST_FILE).write_bytes(whole.to_bytes())
    sign_release(folder, whole)
    return whole


def _archive_of(library: bytes) -> bytes:
    """Return a ZIP archive with one member, the same bytes every time."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(zipfile.ZipInfo("model/data/aotinductor/model/it.wrapper.so"), library)
    return stream.getvalue()


def _write(folder: Path, name: str, data: bytes) -> PackageFile:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return PackageFile(name, digest_file(path), len(data))
