"""The `.pt2` package that is shipped: the library and what a loader reads, and no build's traces.

Inductor leaves the C++ in it, with the compiler's command lines and so the paths of the machine
that built it. Without that, the same library makes the same package, byte for byte.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import torch

from handoff.artifacts.digest import Digest, digest_bytes, digest_file, digest_stream
from handoff.artifacts.errors import BlessingRefused, PackageRefused
from handoff.artifacts.serve.archive import require_known_operators

# The dates of torch's own archives: none.
_NO_DATE = (1980, 1, 1, 0, 0, 0)
_SOURCES = (".cpp", ".o", ".log")
# Up to 2.12 torch's loader finds what a package says of itself by the name of a source beside it.
# Nothing is released with those, but 2.11 is the torch of the GPU that can be had (docs/gpu.md).
_FOUND_BY_SOURCE = torch.__version__ < (2, 13)  # type: ignore[operator]
_ID_FILE = ".data/serialization_id"
_ID_DIGITS = 40


def extract_library(package: Path, destination: Path) -> None:
    """Copy the one shared library in the package, which holds code and weights, to a file."""
    with (
        zipfile.ZipFile(package) as archive,
        archive.open(_library_name(archive)) as source,
        destination.open("wb") as target,
    ):
        shutil.copyfileobj(source, target, 1 << 20)
    destination.chmod(0o755)


def digest_library(package: Path) -> Digest:
    """Return the digest of the one shared library in the package."""
    with zipfile.ZipFile(package) as archive, archive.open(_library_name(archive)) as library:
        assert isinstance(library, zipfile.ZipExtFile)
        return digest_stream(library)


def read_kernels(package: Path) -> bytes | None:
    """Return the JSON of the operators that the library has called by name; None without one.

    It lies under the library's name but for the suffix, where torch's loader looks for it.
    """
    with zipfile.ZipFile(package) as archive:
        name = _library_name(archive).removesuffix(".so") + ".json"
        return archive.read(name) if name in archive.namelist() else None


def extract_kernels(package: Path, destination: Path) -> None:
    """Write the JSON of the operators that are called by name to a file, if the package has one.

    Raises `BlessingRefused` where it names one that no serving process has.
    """
    data = read_kernels(package)
    if data is None:
        return
    try:
        require_known_operators(data, destination.name)
    except PackageRefused as error:
        raise BlessingRefused(
            "the package calls operators by name that a serving process lacks",
            expected=error.expected, got=error.got,
            remedy="Write the model with torch's own operators, or give this one a C++ function "
            "(tasks.optimize.kernels.add_cpu_function)",
        ) from error  # fmt: skip
    destination.write_bytes(data)


def write_package(original: Path, library: Path, destination: Path) -> None:
    """Write the package to ship: the entries of `original` but for sources, and this library."""
    with zipfile.ZipFile(original) as old, zipfile.ZipFile(destination, "w") as new:
        name = _library_name(old)
        checksums = [
            f"{entry.filename} {entry.CRC}" for entry in old.infolist()
            if not entry.filename.endswith((*_SOURCES, _ID_FILE, name))
        ]  # fmt: skip
        # What stands for the contents, as torch's writer puts it there.
        digest = digest_bytes("\n".join([*checksums, digest_file(library)]).encode())
        number = str(int(digest.hex, 16))[:_ID_DIGITS].zfill(_ID_DIGITS)
        for entry in old.infolist():
            info = zipfile.ZipInfo(entry.filename, _NO_DATE)
            if entry.filename.endswith(_SOURCES):
                if _FOUND_BY_SOURCE and entry.filename.endswith(".cpp"):
                    new.writestr(info, b"")
                continue
            if entry.filename == name:
                info.file_size = library.stat().st_size
                with library.open("rb") as source, new.open(info, "w") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            elif entry.filename.endswith(_ID_FILE):
                new.writestr(info, number)
            else:
                new.writestr(info, old.read(entry))


def write_shell(package: Path, destination: Path) -> None:
    """Write the package with an empty library: what `write_package` needs of the original."""
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(destination, "w") as new:
        name = _library_name(old)
        for entry in old.infolist():
            new.writestr(entry, b"" if entry.filename == name else old.read(entry))


def _library_name(archive: zipfile.ZipFile) -> str:
    libraries = [name for name in archive.namelist() if name.endswith(".so")]
    if len(libraries) != 1:
        raise BlessingRefused(
            "the compiled package is not whole",
            expected="one shared library in it",
            got=f"{len(libraries)}",
            remedy="Run again; if it stays, report it with the torch version",
        )
    return libraries[0]
