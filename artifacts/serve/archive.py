"""The members of a `.pt2`: what torch's loader unpacks by their names, and what it then calls.

AOTIModelPackageLoader joins each member's name to a folder of its own in TMPDIR and writes there,
so that `model/../../x` is written outside of it (measured with torch 2.13).

Which operators a package has called by name is in a JSON beside `model.so`, and in `model.pt2`.
Operators without a function in AOTInductor's C interface (linear algebra, FFT) are called through
libtorch's dispatcher, by the names and arguments that Inductor writes into a JSON. Torch's runner
reads it where the library lies, under the library's name but for the suffix, so that it is released
as `model.json`. It decides what is called: it is signed as the library is, and only operators that
libtorch itself has, and that stay within their arguments, may stand in it.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.files.writing import scratch_folder

EXTERN_KERNELS_FILE = "model.json"
# A node takes some 400 bytes.
EXTERN_KERNELS_LIMIT_BYTES = 16 << 20
# As infra/runner/kernels.cpp has them. Others come from libraries that a serving process lacks.
_NAMESPACES = frozenset({"_quantized", "aten", "mkldnn", "onednn", "prims", "quantized"})
# It opens the file that its argument names, and makes one.
_REACHING_OUT = frozenset({"aten::from_file"})
_OPERATOR = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.\w+)?", re.ASCII)


def operators_in(data: bytes) -> tuple[str, ...]:
    """Return the operators that the JSON has called, each once, by their names (`aten::lerp`).

    Raises `ValueError` for what isn't such a JSON.
    """
    nodes = _require_key(parse_json(data), "nodes")
    if not isinstance(nodes, list):
        raise ValueError("expected a list of nodes")  # noqa: TRY004 - as for any record
    targets = [_require_key(_require_key(node, "node"), "target") for node in nodes]
    if not all(isinstance(target, str) for target in targets):
        raise ValueError("expected an operator's name in each node")
    return tuple(dict.fromkeys(str(target) for target in targets))


def _require_key(value: object, name: str) -> object:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"expected an object with {name!r}")
    return value[name]


def require_known_operators(data: bytes, what: str) -> None:
    """Raise `PackageRefused`, naming `what`, unless the JSON names operators of libtorch alone."""
    try:
        operators = operators_in(data)
    except ValueError as error:
        raise _call_refusal(what, "a list of operators in JSON", str(error)[:200]) from error
    for operator in operators:
        parts = _OPERATOR.fullmatch(operator)
        known = parts is not None and parts[1] in _NAMESPACES
        if parts is None or not known or f"{parts[1]}::{parts[2]}" in _REACHING_OUT:
            raise _call_refusal(
                what, "operators of libtorch alone, none that opens files", repr(operator[:80])
            )


def _call_refusal(what: str, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{what} calls what a package may not", expected=expected, got=got,
        remedy="Don't load it, and tell who releases: it was signed like this",
    )  # fmt: skip


def read_descriptor(descriptor: int, what: str) -> bytes:
    """Return a whole file's bytes; raise `PackageRefused`, naming `what`, beyond 16 MiB."""
    data = os.pread(descriptor, EXTERN_KERNELS_LIMIT_BYTES + 1, 0)
    if len(data) > EXTERN_KERNELS_LIMIT_BYTES:
        raise _call_refusal(what, f"at most {EXTERN_KERNELS_LIMIT_BYTES} bytes", "more")
    return data


@contextmanager
def linked_library(library: int, kernels: int) -> Iterator[str]:
    """Give a path of the library beside which torch's runner finds the JSON, for the body.

    Both are descriptors; in a folder of mode 700 in TMPDIR lie links to them. What they hold can't
    be exchanged there, but this user's other processes could put other links in their place. The
    path is one that no other library has had in this process, as long as `library` stays open.
    """
    with scratch_folder(Path(tempfile.gettempdir()), "handoff-") as folder:
        # The number, because dlopen goes by the path, and folders' names might come again.
        path = folder / f"model-{library}.so"
        path.symlink_to(f"/proc/self/fd/{library}")
        path.with_suffix(".json").symlink_to(f"/proc/self/fd/{kernels}")
        yield str(path)


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
            has_comment = archive.comment != b""
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise _refusal(what, "a ZIP archive", str(error)[:200]) from error
    roots = {name.partition("/")[0] for name in names}
    for name in names:
        if not _is_plain(name):
            raise _refusal(what, "members with plain names below one folder", repr(name[:80]))
    if len(roots) != 1 or len(set(names)) != len(names) or has_comment:
        raise _refusal(what, "members below one folder, each once, and nothing else", "others")


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
        raise _refusal(what, "operators' names that are stored as they are", "others")
    if member.file_size > EXTERN_KERNELS_LIMIT_BYTES:
        raise _refusal(what, "operators' names of 16 MiB at most", "more")
    try:
        return archive.read(member)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise _refusal(what, "a ZIP archive", str(error)[:200]) from error


def _is_plain(name: str) -> bool:
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts)
    return len(parts) > 1 and plain and name.isprintable() and "\\" not in name


def _refusal(what: str, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{what} is not a package that may be unpacked", expected=expected, got=got,
        remedy="Don't load it, and tell who releases: it was signed like this",
    )  # fmt: skip
