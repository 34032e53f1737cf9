"""Check a pulled release: is it what was signed, and can this machine run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.release.manifest import (
    MANIFEST_FILE,
    MANIFEST_LIMIT_BYTES,
    Manifest,
    parse_manifest,
    unreadable_release,
)
from handoff.artifacts.release.signing import ENVELOPE_LIMIT_BYTES, Trust
from handoff.artifacts.release.statement import (
    RELEASE_FILE,
    Claim,
    match_manifest,
    open_release,
    require_same_files,
)
from handoff.artifacts.serve.archive import require_known_members
from handoff.artifacts.serve.sealing import check_file, read_record


@dataclass(frozen=True)
class CheckedRelease:
    """A pulled release whose files are what was signed; the slugs of its targets."""

    manifest: Manifest
    targets: tuple[str, ...]
    claim: Claim


def read_release(
    folder: Path, trust: Trust, *, name: str | None = None, version: int | None = None
) -> tuple[Manifest, Claim]:
    """Return the manifest of a pulled folder, and what a trusted key has signed about it.

    `name` and `version` are those that it has to be, since another release is
    validly signed, too. Each file is read once, and the manifest only after the signature was
    verified. Raises `PackageRefused`.
    """
    what = f"the release in {folder}"
    try:
        claim = open_release(read_record(folder / RELEASE_FILE, ENVELOPE_LIMIT_BYTES), trust, what)
    except OSError as error:
        if not (folder / MANIFEST_FILE).exists():
            raise unreadable_release(folder, error) from error
        raise PackageRefused(
            f"{what} is not signed", expected=f"a signature in {RELEASE_FILE}",
            got=error.strerror or str(error), remedy="Don't use it: pull the release again",
        ) from error  # fmt: skip
    _require_identity(claim, what, name, version)
    try:
        data = read_record(folder / MANIFEST_FILE, MANIFEST_LIMIT_BYTES)
    except OSError as error:
        raise unreadable_release(folder, error) from error
    match_manifest(claim, data, f"{folder / MANIFEST_FILE}")
    manifest = parse_manifest(data)
    require_same_files(claim, manifest)
    return manifest, claim


def check_release(
    folder: Path,
    torch_version: str | None,
    trust: Trust,
    *,
    name: str | None = None,
    version: int | None = None,
    unverified: bool = False,
) -> CheckedRelease:
    """Check the signature, every file's size and digest, that there is no other, and the fit.

    `name` and `version` are those that it has to be; with `unverified` a package may be one whose
    numbers nobody has compared yet, since that comes now. Raises `PackageRefused` with the file or
    the reason. No package is opened.
    """
    manifest, claim = read_release(folder, trust, name=name, version=version)
    slugs = check_packages(folder, manifest, torch_version, unverified=unverified)
    return CheckedRelease(manifest, slugs, claim)


def check_packages(
    folder: Path, manifest: Manifest, torch_version: str | None, *, unverified: bool = False
) -> tuple[str, ...]:
    """Check the files of `folder` against a manifest that is known to be right.

    Returns the slugs of the targets that are there. Raises `PackageRefused` as `check_release`.
    """
    present = [t for t in manifest.targets if t.files and (folder / t.slug).is_dir()]
    if not present:
        raise PackageRefused(
            f"{folder} holds no package", expected="a folder for at least one target",
            got="none", remedy="Pull the release again",
        )  # fmt: skip
    expected = [*manifest.files, *[file for target in present for file in target.files]]
    for file in expected:
        check_file(folder, file)
        if file.path.endswith(".pt2"):
            with (folder / file.path).open("rb") as package:
                require_known_members(package.fileno(), file.path)
    _refuse_other_files(folder, {MANIFEST_FILE, RELEASE_FILE, *(file.path for file in expected)})
    for target in present:
        misfit = unverified_misfit = "it was never built"
        if target.fit:
            misfit = target.fit.misfit(torch_version) or ""
            unverified_misfit = target.fit.misfit(torch_version, unverified=True) or ""
        # Nothing but that no GPU of this machine's kind has run it.
        if not unverified_misfit and (target.unverified or misfit):
            if unverified:
                continue
            raise PackageRefused(
                f"{target.slug} was never run" + (" on such a GPU" if target.accepted else ""),
                expected="a package that was verified",
                got=misfit if target.accepted else f"one that was {target.verdict}",
                remedy="Compare it with its delivery on this machine: "
                "handoff verify FOLDER --delivery PATH",
            )  # fmt: skip
        if not target.accepted or misfit:
            raise PackageRefused(
                f"{target.slug} is not for this machine", expected="a package that fits it",
                got=misfit or f"one that was {target.verdict}",
                remedy="Pull the release on the machine that it is for, with --target auto",
            )  # fmt: skip
    return tuple(target.slug for target in present)


def _require_identity(claim: Claim, what: str, name: str | None, version: int | None) -> None:
    if name in (None, claim.model) and version in (None, claim.version):
        return
    number = "of any number" if version is None else str(version)
    raise PackageRefused(
        f"{what} is another one", expected=f"{name or claim.model} version {number}",
        got=f"{claim.model} version {claim.version}",
        remedy="Pull the one that you want; the signature of this one is good",
    )  # fmt: skip


def _refuse_other_files(folder: Path, known: set[str]) -> None:
    paths = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    others = sorted({path.relative_to(folder).as_posix() for path in paths} - known)
    if others:
        raise PackageRefused(
            f"{folder} holds a file that its manifest doesn't name",
            expected="the files of the release alone", got=others[0][:200],
            remedy="Pull the release again into a new folder",
        )  # fmt: skip
