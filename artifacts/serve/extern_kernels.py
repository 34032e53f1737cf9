"""The operators that a package has called by name: a JSON beside `model.so`, and in `model.pt2`.

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.files.new_folder import scratch_folder
from handoff.artifacts.files.strict_json import parse_json

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
    nodes = _entry(parse_json(data), "nodes")
    if not isinstance(nodes, list):
        raise ValueError("expected a list of nodes")  # noqa: TRY004 - as for any record
    found = [_entry(_entry(node, "node"), "target") for node in nodes]
    if not all(isinstance(target, str) for target in found):
        raise ValueError("expected an operator's name in each node")
    return tuple(dict.fromkeys(str(target) for target in found))


def _entry(value: object, name: str) -> object:
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"expected an object with {name!r}")
    return value[name]


def require_known_operators(data: bytes, what: str) -> None:
    """Raise `PackageRefused`, naming `what`, unless the JSON names operators of libtorch alone."""
    try:
        operators = operators_in(data)
    except ValueError as error:
        raise _refuse(what, "a list of operators in JSON", str(error)[:200]) from error
    for operator in operators:
        parts = _OPERATOR.fullmatch(operator)
        known = parts is not None and parts[1] in _NAMESPACES
        if parts is None or not known or f"{parts[1]}::{parts[2]}" in _REACHING_OUT:
            raise _refuse(
                what, "operators of libtorch alone, none that opens files", repr(operator[:80])
            )


def _refuse(what: str, expected: str, got: str) -> PackageRefused:
    return PackageRefused(
        f"{what} calls what a package may not", expected=expected, got=got,
        remedy="Don't load it, and tell who releases: it was signed like this",
    )  # fmt: skip


def read_descriptor(descriptor: int, what: str) -> bytes:
    """Return a whole file's bytes; raise `PackageRefused`, naming `what`, beyond 16 MiB."""
    data = os.pread(descriptor, EXTERN_KERNELS_LIMIT_BYTES + 1, 0)
    if len(data) > EXTERN_KERNELS_LIMIT_BYTES:
        raise _refuse(what, f"at most {EXTERN_KERNELS_LIMIT_BYTES} bytes", "more")
    return data


@contextmanager
def side_by_side(library: int, kernels: int) -> Iterator[str]:
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
