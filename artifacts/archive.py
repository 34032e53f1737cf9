"""The members of a `.pt2`: what torch's loader unpacks by their names, which it takes as they are.

AOTIModelPackageLoader joins each member's name to a folder of its own in TMPDIR and writes there,
so that `model/../../x` is written outside of it (measured with torch 2.13).
"""

from __future__ import annotations

import os
import zipfile

from artifacts.errors import PackageRefused


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


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return len(parts) > 1 and plain and name.isprintable() and "\\" not in name


def _refuse(what: str, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{what} is not a package that may be unpacked", expected=expected, got=got,
        remedy="Don't load it, and tell who releases: it was signed like this",
    )  # fmt: skip
