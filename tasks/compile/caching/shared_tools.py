"""What compilations share: precompiled headers, and that a level's instructions were seen to run.

It takes seconds to make and is the same for every model. What compiles a stranger's graph reads it
and can't write it: another model's build would run what it left there. It is made from our own code
alone (`tasks.compile.caching.make_tools`); what isn't there is made once more, in the build's own
folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch._inductor import codecache
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.recipe.target import Isa, host_cpu_flags
from handoff.tasks.compile.patching import patch_attribute


@contextmanager
def build_headers_in(shared: Path) -> Iterator[None]:
    """Let Inductor make the precompiled headers of the body that aren't in the folder yet.

    A compiler that is killed leaves half a header, at which every later compilation would fail:
    each is made elsewhere, and has its name when it is whole.
    """
    headers = shared / "headers"
    headers.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=shared, prefix=".making-") as name:
        existing = [path.name for path in headers.iterdir() if path.is_file()]
        for header in existing:
            os.link(headers / header, Path(name, header))
        with (
            patch_attribute(codecache, "_HEADER_DIR", name),
            patch_attribute(codecache, "_HEADER_LOCK_DIR", str(Path(name, "locks"))),
        ):
            yield
        new = [p for p in Path(name).iterdir() if p.is_file() and p.name not in existing]
        # The source first: where what is made of it is found, both are there.
        for path in sorted(new, key=lambda path: path.suffix == ".gch"):
            path.replace(headers / path.name)


@contextmanager
def use_headers_from(shared: Path | None) -> Iterator[None]:
    """Let Inductor take the precompiled headers of the body from the folder, where they are there.

    Others it makes in its own.
    """
    original = codecache._precompile_header

    def precompile(header: str, hashable_cmd_line: str, **command: object) -> str:
        try:
            with patch_attribute(codecache, "_HEADER_DIR", str(Path(str(shared), "headers"))):
                return original(header, hashable_cmd_line, **command)
        except Exception:  # noqa: BLE001 - whatever it is, one's own are as good
            return original(header, hashable_cmd_line, **command)

    if shared is None:
        yield
        return
    with patch_attribute(codecache, "_precompile_header", precompile):
        yield


def reset_header_folder() -> None:
    """Let Inductor keep its own headers where this process's temporary files are.

    It looks for that place when it is imported, which may have been in another process
    (`infra.engine.forkserver`).
    """
    codecache._HEADER_DIR = str(Path(default_cache_dir(), "precompiled_headers"))
    codecache._HEADER_LOCK_DIR = str(Path(codecache._HEADER_DIR, "locks"))


def level_marker(shared: Path, isa: Isa) -> Path:
    """Return the file that is there once the level was compiled for, and run, on this processor."""
    flags = " ".join(sorted(host_cpu_flags()))
    return shared / "levels" / f"{digest_bytes(flags.encode()).short}-{isa}"
