"""The members of a `.pt2`: what torch's loader unpacks by their names, and what it then calls.

AOTIModelPackageLoader joins each member's name to a folder of its own in TMPDIR and writes there,
so that `model/../../x` is written outside of it (measured with torch 2.13).
"""

from __future__ import annotations

import os
import zipfile

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.serve.extern_kernels import (
    EXTERN_KERNELS_LIMIT_BYTES,
    require_known_operators,
)


def require_plain_members(descriptor: int, what: str) -> None:
    """Raise `PackageRefused`, naming `what`, unless every member stays below one folder.

    The archive is the one open at `descriptor`.
    """
    try:
        with (
            os.fdopen(os.dup(descriptor), "rb") as stream,
            zipfile.ZipFile(stream) as archive,
        ):
            names = [member.orig_filename for member in archive.infolist()]
            stray = archive.comment != b""
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise _refuse(what, "a ZIP archive", str(error)[:200]) from error
    roots = {name.partition("/")[0] for name in names}
    for name in names:
        if not _is_plain(name):
            raise _refuse(what, "members with plain names below one folder", repr(name[:80]))
    if len(roots) != 1 or len(set(names)) != len(names) or stray:
        raise _refuse(what, "members below one folder, each once, and nothing else", "others")


def require_known_members(descriptor: int, what: str) -> None:
    """Raise `PackageRefused`, naming `what`, for a `.pt2` that may not be unpacked and opened.

    Beyond `require_plain_members`: the JSON beside each library, which torch's runner reads, has
    operators of libtorch alone called by name.
    """
    require_plain_members(descriptor, what)
    with os.fdopen(os.dup(descriptor), "rb") as stream, zipfile.ZipFile(stream) as archive:
        names = set(archive.namelist())
        for library in sorted(name for name in names if name.endswith(".so")):
            kernels = library.removesuffix(".so") + ".json"
            if kernels in names:
                require_known_operators(_read(archive, kernels, what), what)


def _read(archive: zipfile.ZipFile, name: str, what: str) -> bytes:
    """Return the bytes of a member that is stored as it is, as torch and we write it."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise _refuse(what, "operators' names that are stored as they are", "others")
    if member.file_size > EXTERN_KERNELS_LIMIT_BYTES:
        raise _refuse(what, "operators' names of 16 MiB at most", "more")
    try:
        return archive.read(member)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise _refuse(what, "a ZIP archive", str(error)[:200]) from error


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return len(parts) > 1 and plain and name.isprintable() and "\\" not in name


def _refuse(what: str, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{what} is not a package that may be unpacked", expected=expected, got=got,
        remedy="Don't load it, and tell who releases: it was signed like this",
    )  # fmt: skip
