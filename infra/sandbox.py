"""The launcher of child processes: it limits itself, drops what the child doesn't need, execs.

    python -m infra.sandbox [--stores | --sources | --keys | --whole] [--set NAME=VALUE ...]
        [--bar PATH ...] [--in FOLDER] -- COMMAND ARGUMENT ...

`--stores` lets the stores' settings and credentials through, `--sources` what deliveries are
fetched with (S3's, git's, ssh's), `--keys` those for signing, `--whole` the whole environment (for
the training side's own code, which is delivered from its own environment). Nothing below a PATH can
be read, and, without `--keys` or `--whole`, no signing key of this machine (see `infra.landlock`);
where the kernel can't do that the command runs all the same, and `handoff doctor` says so. The
command stands in FOLDER; what the environment names by relative paths it finds all the same.

It is started as a program and never imported by a step or a flow. A launcher that execs is used
rather than `preexec_fn`, which is not safe in a process that has threads, as Prefect's have.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import resource
import signal
import sys
from pathlib import Path

from artifacts.errors import UsageProblem
from infra.environments import child_environment, with_absolute_paths
from infra.landlock import bar_reading
from infra.settings import paths_kept_from_steps, step_memory_bytes

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def main(arguments: list[str]) -> None:
    """Replace this process by the command after `--`, limited and with a scrubbed environment."""
    border = arguments.index("--")
    options, command = arguments[:border], arguments[border + 1 :]
    keys, whole = "--keys" in options, "--whole" in options
    stores, sources = "--stores" in options, "--sources" in options
    environment = child_environment(stores=stores, sources=sources, keys=keys, whole=whole)
    environment |= with_absolute_paths(environment)
    folder = ""
    barred = [] if keys or whole else list(paths_kept_from_steps())
    for name, value in itertools.pairwise(options):
        if name == "--set":
            variable, _, text = value.partition("=")
            environment[variable] = text
        if name == "--bar":
            barred.append(Path(value))
        if name == "--in":
            folder = value
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    # The child must not outlive a flow that was killed: a compiler left alone eats a core.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent ended before the child began")
    # A crash is an expected result here; a core file of a process full of weights is not.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not whole:
        _limit_memory()
    if folder:
        os.chdir(folder)
    bar_reading(barred)
    os.execvpe(command[0], command, environment)  # noqa: S606 - argv from our own parent process


def _limit_memory() -> None:
    """Let allocations fail beyond a limit, which is told, before the kernel kills somebody."""
    try:
        most = step_memory_bytes()
    except UsageProblem as error:
        sys.exit(str(error))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if most is not None and (hard == resource.RLIM_INFINITY or most < hard):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    main(sys.argv[1:])
