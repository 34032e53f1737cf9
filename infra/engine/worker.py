"""The program inside a step process: reads jobs, runs steps, answers.

    worker --answers FD [--look FOLDER ...] [--later MODULE ...] MODULE ...   serve
    worker STEP JOB.json   run one job again, print its result

It is started isolated (`artifacts.isolation`); the folders are where the user's own code may lie
(`infra.engine.import_paths`). The modules named are imported before the first request, or `later`,
after its answer, and their `prepare()` is called where they have one; `extension:NAME@DIGEST` is an
extension (`tasks.optimize.extensions`). A request is one line of stdin, of JSON, `[step, its
module, the module of the job's class, that class, job, path of a file that holds the job, too]`:
what a step doesn't need, such as the table of all steps, isn't imported. An answer is one line,
too: the `result` or the `error`, and the `seconds` that it took; lines before it say how far the
step is, in bytes (`done` of `total`). Answers have a descriptor of their own, because compilers and
compiled code print.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, StepCrashed
from handoff.artifacts.isolation import isolated_command
from handoff.artifacts.record import from_plain, to_plain
from handoff.infra.engine import import_paths, progress
from handoff.infra.engine.budget import (
    compiler_killed_error,
    disk_full_error,
    is_compiler_killed,
    is_disk_full,
    is_out_of_memory,
    is_out_of_space,
    out_of_memory_error,
)
from handoff.infra.engine.forking import FORK_SERVERS
from handoff.infra.extras import missing_extra_error


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Let Python not look for garbage meanwhile.

    Importing leaves none to speak of, and looking for it was a sixth of the time that importing
    torch and Inductor took.
    """
    was_looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_looking:
            gc.enable()


def import_step(module: str) -> ModuleType:
    """Import the module of that name below `tasks`."""
    with gc_paused():
        return importlib.import_module(f"handoff.tasks.{module}")


def step_function(module: str) -> Callable[[Any], Any]:
    """Return what a step's row names: a function of its module, which is `run` unless it says."""
    name, _, function_name = module.partition(":")
    function: Callable[[Any], Any] = getattr(import_step(name), function_name or "run")
    return function


def run_step(name: str, module: str, kind: type[Any], plain_job: object) -> dict[str, Any]:
    """Run the step `name` on a plain job of that kind and return the plain answer."""
    try:
        job: Any = from_plain(kind, plain_job)
        return {"result": to_plain(step_function(module)(job))}
    except HandoffError as error:
        if error.__cause__ is not None:
            # What is shown is a sentence; the log keeps the whole trace.
            traceback.print_exc()
        return {"error": _as_refusal(name, error).as_record()}
    except Exception as error:  # noqa: BLE001 - the border: whatever it is, it must reach the flow
        traceback.print_exc()
        return {"error": _as_refusal(name, error).as_record()}


def _as_refusal(name: str, error: Exception) -> HandoffError:
    """Return what the step `name` raised as a refusal."""
    is_known = isinstance(error, HandoffError)
    if is_disk_full(error) or (not is_known and is_out_of_space(Path.cwd())):
        return disk_full_error(f"the step {name}", Path.cwd())
    if is_compiler_killed(error):
        return compiler_killed_error(name)
    if isinstance(error, HandoffError):
        return error
    if is_out_of_memory(error):
        return out_of_memory_error(name, error)
    if isinstance(error, ModuleNotFoundError) and (extra_error := missing_extra_error(error)):
        return extra_error
    return _file_error(name, error) if isinstance(error, OSError) else _crash_error(name, error)


def _file_error(name: str, error: Exception) -> HandoffError:
    return EnvironmentLacking(
        f"the step {name} could not read or write a file",
        expected="a readable, writable disk with room on it",
        got=str(error),
        remedy="Make room or fix the permissions, then run the same command again",
    )


def _crash_error(name: str, error: Exception) -> HandoffError:
    lines = str(error).strip().splitlines() or [""]
    return StepCrashed(
        f"the step {name} failed",
        expected="a result or a refusal",
        got=f"{type(error).__name__}: {lines[0][:300]}",
        remedy="Run again with --debug for the whole trace, and report it",
    )


def _serve(answers: int, modules: list[str], later: list[str]) -> None:
    progress.listen(lambda done, total: _write(answers, {"done": done, "total": total}))
    refusal = _prepare(modules)
    for line in sys.stdin:
        name, module, job_module, kind, plain, path = json.loads(line)
        command = shlex.join(
            ["python", *isolated_command("handoff.infra.engine.worker", name, path)[1:]]
        )
        print(f"repeat with: {command}", flush=True)  # noqa: T201
        began = time.monotonic()
        job = getattr(importlib.import_module(job_module), kind)
        outcome = refusal or run_step(name, module, job, plain)
        seconds = time.monotonic() - began
        sys.stdout.flush()
        _write(answers, {**outcome, "seconds": seconds})
        while later:
            # What can't be imported is reported by the step that needs it.
            with contextlib.suppress(Exception):
                _prepare([later.pop(0)])


def _write(answers: int, plain: dict[str, Any]) -> None:
    with os.fdopen(os.dup(answers), "wb") as stream:
        stream.write(json.dumps(plain).encode() + b"\n")


def _prepare(modules: list[str]) -> dict[str, Any] | None:
    """Import what was named; return the answer to every job where an extension is wrong."""
    for module in modules:
        kind, separator, name = module.partition(":")
        if separator:
            from handoff.tasks.optimize.extensions import load_extension

            assert kind == "extension"
            try:
                load_extension(name)
            except HandoffError as error:
                return {"error": error.as_record()}
        else:
            getattr(import_step(module), "prepare", lambda: None)()
    return None


def _take_option(option: str, arguments: list[str]) -> list[str]:
    """Take the option with its values from the front of the arguments; return these."""
    values = []
    while arguments[:1] == [option]:
        values.append(arguments[1])
        del arguments[:2]
    return values


def main(arguments: list[str]) -> None:
    """Serve jobs, or run one again."""
    FORK_SERVERS.disable()
    if arguments[:1] == ["--answers"]:
        modules = arguments[2:]
        folders, later = _take_option("--look", modules), _take_option("--later", modules)
        import_paths.set_user_search_path(folders)
        _serve(int(arguments[1]), modules, later)
        return
    from handoff.tasks.steps import step_named

    name, path = arguments
    plain = json.loads(Path(path).read_text(encoding="utf-8"))
    step = step_named(name)
    answer = run_step(name, step.module, step.job, plain)
    print(json.dumps(answer, indent=2))  # noqa: T201 - this is a program


if __name__ == "__main__":
    main(sys.argv[1:])
