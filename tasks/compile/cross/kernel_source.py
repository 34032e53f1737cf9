"""What a kernel was compiled from, as a digest: to tell whether two programs have the same one."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Mapping

from handoff.artifacts.digest import Digest, digest_bytes

_DEFINITION = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)


def kernel_digest(source: str, meta: Mapping[str, object]) -> Digest:
    """Return the digest of a kernel's function, its parameters' types, and its constants.

    `source` holds the function, with what stands before it; `meta` is what Inductor says of it to
    Triton (`signature`, `constants`). Comments and layout count for nothing. Raises `ValueError`
    where there is no function.
    """
    text = textwrap.dedent(source)
    found = _DEFINITION.search(text)
    if found is None:
        raise ValueError("expected a kernel's function, got none")
    code = ast.unparse(ast.parse(text[found.start() :]))
    said = {
        part: {str(name): str(value) for name, value in _table(meta, part).items()}
        for part in ("signature", "constants")
    }
    return digest_bytes(f"{code}\n{json.dumps(said, sort_keys=True)}\n".encode())


def _table(meta: Mapping[str, object], part: str) -> Mapping[object, object]:
    table = meta.get(part)
    return table if isinstance(table, Mapping) else {}
