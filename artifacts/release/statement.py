"""A release's signed statement: SLSA provenance v1 about the record and every file of a version.

Its subjects are the manifest and the files, each with its digest; it alone says which version of
which model they are, because a manifest is fixed before the version has a number. The predicate is
that of slsa.dev/provenance/v1 (https://slsa.dev/spec/v1.2/build-provenance); what `buildType`
stands for is written here. No SLSA level is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from handoff.artifacts.delivery.contract import Lineage, require_model_name
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.record import RecordInvalid, from_plain, to_plain
from handoff.artifacts.release.layout import DELIVERY_FILE, PARTS_FILE
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, PackageFile
from handoff.artifacts.release.signing import STATEMENT_TYPE, Trust, open_envelope

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:handoff:release:1"
BUILDER = "urn:handoff:pipeline"
RELEASE_FILE = "release.dsse.json"


@dataclass(frozen=True)
class Claim:
    """What a release's signature vouches for.

    `files` are all files of the release by their path, the manifest among them; `parts` is the
    list of objects that they are kept as, and `evidence` what else was written about the release
    (the report, its pictures), both in the object store. `delivery` is the list of objects that the
    delivery is kept as; None for a version that was released before deliveries were kept.
    """

    model: str
    version: int
    manifest: Digest
    files: dict[str, Digest]
    parts: Digest
    evidence: dict[str, Digest]
    delivery: Digest | None = None

    def __post_init__(self) -> None:
        """Check the name, and that versions are counted from 1."""
        require_model_name(self.model)
        if self.version < 1:
            raise ValueError(f"expected a version from 1, got {self.version}")


def release_files(manifest: Manifest) -> tuple[PackageFile, ...]:
    """Return every file of a release: those that all targets share, then each target's."""
    return (*manifest.files, *(file for target in manifest.targets for file in target.files))


def release_statement(
    manifest: Manifest,
    version: int,
    *,
    parts: Digest,
    evidence: Mapping[str, Digest],
    pipeline: str,
    run: str = "",
    delivery: Digest | None = None,
) -> dict[str, Any]:
    """Return the statement that is signed for `version`.

    `pipeline` is the version of the Handoff that made it and `run` the flow run. `delivery` is the
    list of objects that the delivery is kept as, where it is.
    """
    lists = {PARTS_FILE: parts} | ({DELIVERY_FILE: delivery} if delivery else {})
    files = {MANIFEST_FILE: manifest.digest, **{f.path: f.digest for f in release_files(manifest)}}
    metadata = {"invocationId": run, "finishedOn": manifest.created}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [_resource_descriptor(name, digest) for name, digest in files.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "model": manifest.model,
                    "version": version,
                    "recipe": to_plain(manifest.recipe),
                },
                "internalParameters": {
                    "toolchain": manifest.toolchain,
                    "fingerprint": str(manifest.fingerprint),
                },
                "resolvedDependencies": [
                    _resource_descriptor("delivery", manifest.delivery),
                    *_source_descriptors(manifest.lineage),
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"handoff": pipeline}},
                "metadata": {key: value for key, value in metadata.items() if value},
                "byproducts": [
                    _resource_descriptor(name, digest)
                    for name, digest in {**lists, **evidence}.items()
                ],
            },
        },
    }


def open_release(data: bytes, trust: Trust, what: str) -> Claim:
    """Return what a signed release says; raise `PackageRefused`, naming `what`, unless it is one.

    The statement may hold more than is read here, as in-toto asks of its readers.
    """
    statement = open_envelope(data, trust, what)
    try:
        return _read_claim(statement)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PackageRefused(
            f"{what} is no release's", expected=f"a statement of {BUILD_TYPE}",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            remedy="Use a Handoff that is as new as the one that signed it",
        ) from error  # fmt: skip


def match_manifest(claim: Claim, data: bytes, what: str) -> None:
    """Raise `PackageRefused` unless `data` is the manifest that the claim vouches for."""
    digest = digest_bytes(data)
    if digest != claim.manifest:
        raise PackageRefused(
            f"{what} is not the one that was signed", expected=claim.manifest.short,
            got=digest.short, remedy="Don't use it: pull the release again into a new folder",
        )  # fmt: skip


def require_same_files(claim: Claim, manifest: Manifest) -> None:
    """Raise `PackageRefused` unless the claim's subjects are the manifest's files, and its model.

    Both are signed, so that a difference is a fault of the signing side: nothing is guessed.
    """
    expected = {file.path: file.digest for file in release_files(manifest)}
    actual = {path: digest for path, digest in claim.files.items() if path != MANIFEST_FILE}
    if claim.model == manifest.model and expected == actual:
        return
    other = sorted(p for p in {*expected, *actual} if expected.get(p) != actual.get(p))
    raise PackageRefused(
        f"the signature of {claim.model} version {claim.version} is about other files",
        expected=f"the files of {manifest.model}'s manifest", got=", ".join(other[:3]) or "a name",
        remedy="Don't use it, and tell who releases",
    )  # fmt: skip


def _resource_descriptor(name: str, digest: Digest) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest.hex}}


def _source_descriptors(lineage: Lineage) -> list[dict[str, Any]]:
    """Return the training code as in-toto describes a resource; none where nothing was said."""
    if not (lineage.repository and lineage.commit):
        return []
    return [
        {
            "name": "training code",
            "uri": f"git+{lineage.repository}@{lineage.commit}",
            "digest": {"gitCommit": lineage.commit},
        }
    ]


def _read_claim(statement: Mapping[str, Any]) -> Claim:
    if statement["predicateType"] != PREDICATE_TYPE:
        raise ValueError(f"expected {PREDICATE_TYPE}, got {statement['predicateType']!r}")
    definition = statement["predicate"]["buildDefinition"]
    if definition["buildType"] != BUILD_TYPE:
        raise ValueError(f"expected {BUILD_TYPE}, got {definition['buildType']!r}")
    parameters = definition["externalParameters"]
    files = _parse_digests(statement["subject"])
    evidence = _parse_digests(statement["predicate"]["runDetails"]["byproducts"])
    return from_plain(
        Claim,
        {
            "model": parameters["model"],
            "version": parameters["version"],
            "manifest": files[MANIFEST_FILE],
            "files": files,
            "parts": evidence.pop(PARTS_FILE),
            "delivery": evidence.pop(DELIVERY_FILE, None),
            "evidence": evidence,
        },
    )


def _parse_digests(descriptors: list[Mapping[str, Any]]) -> dict[str, str]:
    digests = {
        descriptor["name"]: f"sha256:{descriptor['digest']['sha256']}" for descriptor in descriptors
    }
    if len(digests) != len(descriptors):
        raise RecordInvalid("expected each name once")
    return digests
