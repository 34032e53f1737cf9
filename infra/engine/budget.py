"""What a step may take of this machine: memory, time, room; and the sentence where it took them.

A delivery costs what its weights and its inputs ask for, and nobody else's: a step that takes more
is ended, and the error names the budget and how to raise it.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from handoff.artifacts.errors import (
    BudgetSpent,
    EnvironmentLacking,
    HandoffError,
    StepKilled,
    UsageProblem,
)

# Settings, as `infra.settings` reads them and the launcher hands them on.
TIME_FACTOR, MEMORY_LIMIT = "HANDOFF_STEP_TIME", "HANDOFF_STEP_MEMORY"
_MAX_FACTOR = 1000.0
# What torch, the C++ library and Python say where memory is refused.
_OUT_OF_MEMORY_PHRASES = (
    "can't allocate memory", "not enough memory", "std::bad_alloc", "cannot allocate memory",
    "out of memory", "unable to mmap", "mmap failed", "defaultcpuallocator",
)  # fmt: skip
# What is said where a disk is full, all words of one of these: by the kernel, by numpy, by torch of
# any write that fell short, and by miniz, with which torch unpacks a package.
_DISK_FULL_PHRASES = (
    ("no space left on device",), ("disk quota exceeded",), ("not enough free space to write",),
    ("inline_container", "unexpected pos"),
    ("mz_zip error", "file write failed"), ("mz_zip error", "file close failed"),
    ("mz_zip error", "write callback failed"),
)  # fmt: skip
_MIN_FREE_BYTES = 1 << 20
# What gcc and clang say of a program of their own that the kernel ended.
_KILLED_PHRASES = ("killed signal terminated program", "unable to execute command: killed")


def memory_bytes() -> int:
    """Return how much memory this process may take: its limit, or all that the machine has."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return physical if soft == resource.RLIM_INFINITY else min(soft, physical)


def time_factor() -> float:
    """Return by what the time limits of steps are multiplied; raise `UsageProblem` for nonsense."""
    text = os.environ.get(TIME_FACTOR, "") or "1"
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0.0 < factor <= _MAX_FACTOR:
        raise UsageProblem(
            f"{TIME_FACTOR} is no factor of the steps' time limits",
            expected=f"a number above 0 and up to {_MAX_FACTOR:.0f}", got=text[:60],
            remedy="Set it to such as 4, or unset it",
        )  # fmt: skip
    return factor


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory was refused."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, OSError))
        and any(one in text for one in _OUT_OF_MEMORY_PHRASES)
    )


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one that it came of, says that a disk has no room.

    A refusal's own words don't count, since they may quote what a delivery holds.
    """
    return any(mentions_full_disk(str(one)) for one in _walk_causes(error))


def is_compiler_killed(error: BaseException | None) -> bool:
    """Return whether an error, or one that it came of, says that a compiler was killed."""
    return any(word in str(one).lower() for one in _walk_causes(error) for word in _KILLED_PHRASES)


def _walk_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error and those that it came of, without what are refusals."""
    while error is not None:
        if not isinstance(error, HandoffError):
            yield error
        error = error.__cause__ or error.__context__


def mentions_full_disk(text: str) -> bool:
    """Return whether what was printed says that a disk has no room."""
    text = text.lower()
    return any(all(word in text for word in words) for words in _DISK_FULL_PHRASES)


def is_out_of_space(folder: Path) -> bool:
    """Return whether the disk of `folder`, or that of temporary files, holds no more.

    What fails there may say anything.
    """
    usages = (shutil.disk_usage(path) for path in (folder, _temporary_folder()))
    # Some file systems don't report their size.
    return any(usage.total and usage.free < _MIN_FREE_BYTES for usage in usages)


def failed_on_full_disk(output: str, folder: Path) -> bool:
    """Return whether a process that printed this failed because a disk is full.

    Its output may say so; as that may have found no room either, the disk of `folder` is looked at,
    too.
    """
    return mentions_full_disk(output) or is_out_of_space(folder)


def disk_full_error(who: str, folder: Path) -> EnvironmentLacking:
    """Return the error where `who` found no room on the disk of `folder`, or on another."""
    return EnvironmentLacking(
        f"{who} found no room on a disk",
        expected="room for what a release makes, some times the size of the weights",
        got=f"{_free_bytes(folder) / 1e9:.1f} GB free on the disk of {folder}, and "
        f"{_free_bytes(_temporary_folder()) / 1e9:.1f} GB for temporary files",
        remedy="Make room there, or name another folder in HANDOFF_HOME, or in TMPDIR; then run "
        "the same command again",
    )  # fmt: skip


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        # Where Python looks for it first, it could not write a file.
        return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - looked at alone


def out_of_memory_error(step: str, error: BaseException) -> BudgetSpent:
    """Return the error of a step that asked for more than its budget of memory."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return BudgetSpent(
        f"the step {step} needs more memory than it may take",
        expected=f"at most {memory_bytes() / 1e9:.1f} GB", got=lines[0][:300],
        remedy=f"Run it on a machine with more; or, where {MEMORY_LIMIT} is set, raise it (such as "
        "64G); or deliver a smaller model, or smaller sizes",
    )  # fmt: skip


def step_killed_error(step: str, log: Path) -> StepKilled:
    """Return the error of a step that was killed, and not by us."""
    return StepKilled(
        f"the step {step} was killed",
        expected="a result or a refusal", got="signal SIGKILL, as the kernel ends a process when "
        "no memory is left", remedy=f"Close what else needs memory here, or run it on a machine "
        f"with more; {log} is what the step said",
    )  # fmt: skip


def compiler_killed_error(step: str) -> StepKilled:
    """Return the error of a step whose compiler was killed, and not by us."""
    return StepKilled(
        f"the compiler of the step {step} was killed",
        expected="what it compiles", got="signal SIGKILL, as the kernel ends a process when no "
        "memory is left", remedy="Close what else needs memory here, or run it on a machine with "
        "more",
    )  # fmt: skip


def too_many_processes_error(step: str, limit: int) -> BudgetSpent:
    """Return the error of a step that started processes and threads without end."""
    return BudgetSpent(
        f"the step {step} was ended, since it started more processes than it may",
        expected=f"at most {limit} threads in all its processes", got="more",
        remedy="No model needs that: look at who delivered it, and at what it holds",
    )  # fmt: skip


def timeout_error(step: str, limit_s: float) -> BudgetSpent:
    """Return the error of a step that took longer than its budget of time."""
    return BudgetSpent(
        f"the step {step} was ended, since it took longer than it may",
        expected="a result in time", got=f"no result within {limit_s:.0f} s",
        remedy=f"Set {TIME_FACTOR} to a factor (such as 4) where this machine is slow or the model "
        "is large; else look for what in the model takes that long",
    )  # fmt: skip
