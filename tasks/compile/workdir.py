"""Where a compilation works: an empty folder of its own, whose path reaches no byte of a package.

Inductor writes the path of its cache into a comment that it hashes, and compilers write the paths
of sources beside what they make of them. Both are given a path that is always the same instead, so
that the same program gives the same bytes wherever it is compiled.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch._inductor import codecache, cpp_builder
from torch._inductor.runtime.cache_dir_utils import cache_dir

from handoff.artifacts.files.writing import flush, replace_folder, scratch_folder
from handoff.tasks.compile.patching import patch_attribute, patch_environment

# What stands in a package where the folder's path would.
_NEUTRAL_PATH = "/handoff"


@contextmanager
def private_cache_folder() -> Iterator[Path]:
    """Give an empty private folder below Inductor's cache, and make it Inductor's cache meanwhile.

    It is gone afterwards; what was killed leaves it to whoever removes the cache.
    """
    parent = Path(cache_dir())
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        scratch_folder(parent, "place-") as folder,
        patch_environment({"TORCHINDUCTOR_CACHE_DIR": str(folder)}),
        _hide_path(folder),
    ):
        yield folder


@contextmanager
def _hide_path(folder: Path) -> Iterator[None]:
    """Keep the folder's path out of what Inductor hashes, and out of what compilers make."""
    comment = re.compile(rf"^(//.*?){re.escape(str(folder))}", re.MULTILINE)
    write, run = codecache.write, cpp_builder.run_compile_cmd

    def write_neutral(content: str | bytes, *args: object, **kwargs: object) -> object:
        if isinstance(content, str):
            content = comment.sub(rf"\1{_NEUTRAL_PATH}", content)
        return write(content, *args, **kwargs)  # type: ignore[arg-type]

    def run_neutral(cmd_line: str, cwd: str) -> None:
        run(map_path_prefix(cmd_line, folder) if str(folder) in cmd_line else cmd_line, cwd)

    with (
        patch_attribute(codecache, "write", write_neutral),
        patch_attribute(cpp_builder, "run_compile_cmd", run_neutral),
    ):
        yield


def map_path_prefix(command: str, folder: Path) -> str:
    """Return a compiler's command that writes a path always the same where the folder's would be.

    Not among Inductor's own flags: these are hashed, and precompiled headers go by them.
    """
    return command.replace(" -c ", f" -ffile-prefix-map={folder}={_NEUTRAL_PATH} -c ", 1)


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Give a folder beside `folder` that takes its place once the body has filled it, or is gone.

    What a process left there that was killed is removed first.
    """
    staging = folder.with_name(folder.name + ".building")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        for path in [*staging.iterdir(), staging]:
            flush(path)
        replace_folder(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
