"""The launcher of child processes: it limits itself, drops what the child doesn't need, execs.

    python -m handoff.infra.engine.sandbox [--stores | --sources | --keys | --whole | --confined]
        [--gpu] [--read PATH ...] [--run PATH ...] [--list FOLDER ...] [--write FOLDER ...]
        [--link FOLDER ...] [--set NAME=VALUE ...] [--bar PATH ...] [--memory BYTES] [--in FOLDER]
        -- COMMAND ARGUMENT ...

`--stores` lets the stores' settings and credentials through, `--sources` what deliveries are
fetched with (S3's, git's, ssh's), `--keys` those for signing, `--whole` the whole environment (for
the training side's own code, which is delivered from its own environment). Nothing below a PATH can
be read, and, without `--keys` or `--whole`, no signing key of this machine (see
`infra.engine.landlock`); where the kernel can't do that the command runs all the same, and `handoff
doctor` says so. `--confined` leaves the command the system, the PATHs and FOLDERs, and little else
(`infra.engine.confinement`); with `--gpu` it drives a GPU, and programs that do are started for it
(`infra.engine.spawning`). The command stands in FOLDER; what the environment names by relative
paths it finds all the same.

It is started as a program, or what it does is done in what a fork server has forked (`limit`), and
never in a flow. A launcher that execs is used rather than `preexec_fn`, which is not safe in a
process that has threads, as Prefect's have.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from handoff.artifacts.errors import UsageProblem
from handoff.infra.engine.confinement import FileAccess, confine_to
from handoff.infra.engine.environments import child_environment, with_absolute_paths
from handoff.infra.engine.landlock import bar_reading
from handoff.infra.engine.spawning import STARTER, end_with_parent, fork_starter
from handoff.infra.settings import paths_kept_from_steps, step_memory_bytes

_PR_SET_NO_NEW_PRIVS = 38
_ACCESS_OPTIONS = ("--read", "--run", "--list", "--write", "--link")
_WITH_VALUE = frozenset({"--set", "--bar", "--memory", "--in", *_ACCESS_OPTIONS})


@dataclass
class _Options:
    """The launcher's own arguments, before the command."""

    flags: set[str] = field(default_factory=set)
    values: dict[str, list[str]] = field(default_factory=dict)

    def paths(self, name: str) -> list[Path]:
        """Return the paths that an option was given with."""
        return [Path(value) for value in self.values.get(name, ())]


def main(arguments: list[str]) -> None:
    """Replace this process by the command after `--`, limited and with a scrubbed environment."""
    separator = arguments.index("--")
    launcher_arguments, command = arguments[:separator], arguments[separator + 1 :]
    # The child must not outlive a flow that was killed: a compiler left alone eats a core.
    end_with_parent(os.getppid())
    try:
        environment = limit([*launcher_arguments, *settings_arguments(launcher_arguments)])
    except UsageProblem as error:
        sys.exit(str(error))
    os.execvpe(command[0], command, environment)  # noqa: S606 - argv from our own parent process


def settings_arguments(arguments: Sequence[str]) -> list[str]:
    """Return what a launcher with these arguments needs beside them, by this process's settings.

    Raises `UsageProblem` where they are wrong.
    """
    if "--whole" in arguments:
        return []
    limit_bytes = step_memory_bytes()
    memory = [] if limit_bytes is None else ["--memory", str(limit_bytes)]
    barred = () if "--keys" in arguments else paths_kept_from_steps()
    return [*memory, *(part for path in barred for part in ("--bar", str(path)))]


def limit(arguments: Sequence[str]) -> dict[str, str]:
    """Limit this process for good, as the arguments say; return the environment it is to have."""
    options = _parse(arguments)
    stores, sources, keys, whole = (
        f"--{name}" in options.flags for name in ("stores", "sources", "keys", "whole")
    )
    environment = child_environment(stores=stores, sources=sources, keys=keys, whole=whole)
    environment |= with_absolute_paths(environment)
    for setting in options.values.get("--set", ()):
        variable, _, text = setting.partition("=")
        environment[variable] = text
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # A crash is an expected result here; a core file of a process full of weights is not.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for limit_bytes in options.values.get("--memory", ()):
        _limit_memory(int(limit_bytes))
    for folder in options.paths("--in"):
        os.chdir(folder)
    bar_reading(options.paths("--bar"))
    if "--confined" in options.flags:
        access = FileAccess(*(tuple(options.paths(name)) for name in _ACCESS_OPTIONS))
        if gpu := "--gpu" in options.flags:
            starter = fork_starter(lambda: confine_to(access, gpu=True))
            environment[STARTER] = str(starter)
        confine_to(access, gpu=gpu)
    return environment


def _parse(arguments: Sequence[str]) -> _Options:
    options, remaining = _Options(), iter(arguments)
    for name in remaining:
        if name in _WITH_VALUE:
            options.values.setdefault(name, []).append(next(remaining))
        else:
            options.flags.add(name)
    return options


def _limit_memory(limit_bytes: int) -> None:
    """Let allocations fail beyond a limit, as an error, before the kernel kills somebody."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit_bytes < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


if __name__ == "__main__":
    main(sys.argv[1:])
