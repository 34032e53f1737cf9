"""Check a pulled release: is it what its manifest says, and can this machine run it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from artifacts.digest import digest_file
from artifacts.errors import PackageRefused
from artifacts.manifest import MANIFEST_FILE, Manifest, PackageFile, read_manifest


@dataclass(frozen=True)
class CheckedRelease:
    """A pulled release whose files are what the manifest says; the slugs of its targets."""

    manifest: Manifest
    targets: tuple[str, ...]


def check_release(folder: Path, torch_version: str | None) -> CheckedRelease:
    """Check every file's size and digest, that there is no other, and the fit to this machine.

    Raises `PackageRefused` with the file or the reason. No package is opened.
    """
    manifest = read_manifest(folder)
    present = [t for t in manifest.targets if t.files and (folder / t.slug).is_dir()]
    if not present:
        raise PackageRefused(
            f"{folder} holds no package", expected="a folder for at least one target",
            got="none", remedy="Pull the release again",
        )  # fmt: skip
    expected = [*manifest.files, *[file for target in present for file in target.files]]
    for file in expected:
        check_file(folder, file)
    _refuse_others(folder, {file.path for file in expected})
    for target in present:
        misfit = target.fit.misfit(torch_version) if target.fit else "it was never built"
        if not target.accepted or misfit:
            raise PackageRefused(
                f"{target.slug} is not for this machine", expected="a package that fits it",
                got=misfit or f"one that was {target.verdict}",
                remedy="Pull the release on the machine that it is for, with --target auto",
            )  # fmt: skip
    return CheckedRelease(manifest, tuple(target.slug for target in present))


def check_file(folder: Path, file: PackageFile) -> None:
    """Raise `PackageRefused` unless the file in `folder` has the released size and digest."""
    path = folder / file.path
    if path.is_symlink() or not path.is_file():
        raise _changed(file, "a file", "nothing" if not path.exists() else "something else")
    size = path.stat().st_size
    if size != file.size_bytes:
        raise _changed(file, f"{file.size_bytes} bytes", f"{size} bytes")
    found = digest_file(path)
    if found != file.digest:
        raise _changed(file, f"the digest {file.digest.short}", found.short)


def _refuse_others(folder: Path, known: set[str]) -> None:
    paths = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    others = sorted({path.relative_to(folder).as_posix() for path in paths} - known)
    others = [name for name in others if name != MANIFEST_FILE]
    if others:
        raise PackageRefused(
            f"{folder} holds a file that its manifest doesn't name",
            expected="the files of the release alone", got=others[0][:200],
            remedy="Pull the release again into a new folder",
        )  # fmt: skip


def _changed(file: PackageFile, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{file.path} is not the file that was released", expected=expected, got=got,
        remedy="Don't load it: pull the release again into a new folder",
    )  # fmt: skip
