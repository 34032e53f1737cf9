"""Prepare: what a person is shown, and asked, before a model is delivered, which takes minutes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from handoff.artifacts.delivery.contract import require_model_name
from handoff.artifacts.errors import UsageProblem
from handoff.infra.engine.import_paths import importing_from
from handoff.tasks.deliver.arguments import unwrap
from handoff.tasks.deliver.factory import default_name, prepare_model
from handoff.tasks.deliver.messages import Prepared, PrepareJob
from handoff.tasks.deliver.naming import require_free
from handoff.tasks.deliver.step import guessed_inputs


def run(job: PrepareJob) -> Prepared:
    """Make the model that `job.factory` makes; return its name, and the ranges that are guessed.

    The factory is the training team's own code, and is run here on purpose, as by
    `tasks.deliver`, which takes what was made. Raises `UsageProblem` for a factory, options or a
    folder that can't be used.
    """
    require_free(job.folder)
    with redirect_output(job.prints):
        result = prepare_model(job.factory, job.search_path)
    # What forward imports is looked for when it runs.
    with importing_from(job.search_path):
        guessed = guessed_inputs(result) if job.reads_ranges else ()
    chosen = str(result.options.get("name") or "")
    if chosen:
        return Prepared(_check_name(chosen), "its factory's options", guessed, is_chosen=True)
    name, named_by = default_name(job.factory, unwrap(result.module))
    return Prepared(name, named_by, guessed)


@contextmanager
def redirect_output(file: Path | None) -> Iterator[None]:
    """Write what this process and its children print during the body to `file`, as it comes.

    That is for the whole process, compiled code included. Without a file nothing changes.
    """
    if file is None:
        yield
        return
    saved = [os.dup(stream) for stream in (1, 2)]
    buffered = sys.stdout.line_buffering if isinstance(sys.stdout, TextIOWrapper) else True
    try:
        with file.open("ab") as output:
            _flush_output()
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        _set_line_buffering(True)
        yield
    finally:
        _flush_output()
        _set_line_buffering(buffered)
        for stream, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, stream)
            os.close(descriptor)


def _flush_output() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _set_line_buffering(enabled: bool) -> None:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=enabled)


def _check_name(name: str) -> str:
    try:
        require_model_name(name)
    except ValueError as error:
        raise UsageProblem(
            "the factory's options have a name that can't be a model's",
            expected="a name for the registry", got=repr(name[:80]),
            remedy=f"Fix it, or give another one (--name): {error}",
        ) from error  # fmt: skip
    return name
