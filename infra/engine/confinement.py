"""What a process that holds a stranger's graph, a compiler or compiled code may still do.

It reads the system's and Python's own files and those that it is given, writes into the folders
that it is given, and nothing else: no key, no other build, delivery or store, no home folder. It
opens no socket and has a network of its own, without a way out; it signals no process but its own,
reads no other's memory, and can't leave its group, by which it is ended together with all that it
started. It has none of root's rights but to open its own files, whoever owns them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.isolation import import_folders, isolated_command, own_root
from handoff.infra.engine.landlock import LINK, LIST, READ, RUN, USE, WRITE, confine
from handoff.infra.engine.seccomp import filter_calls
from handoff.infra.settings import has_gpu

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What the loader, the compilers, the C library and OpenSSL's digests read.
_SETTINGS = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
    "/etc/alternatives", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime",
    "/etc/timezone", "/etc/locale.alias", "/etc/os-release", "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf", "/etc/crypto-policies", "/etc/OpenCL", "/etc/mime.types",
)  # fmt: skip
# The kernel itself keeps what other processes hold in memory from one that is confined.
_KERNEL = ("/proc", "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_GPU_PATHS = ("/sys", "/run/nvidia-persistenced", "/etc/nvidia", "/opt/nvidia")
_PR_CAPBSET_DROP, _LAST_CAPABILITY = 24, 63
# CAP_DAC_OVERRIDE: in a container, root opens files of others.
_KEPT_CAPABILITIES = frozenset({1})
_CAPABILITY_VERSION, _WORD_BITS = 0x20080522, 32
_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
# Beyond it a file is no model's: a fifth of the largest disks that these are built on.
_MAX_FILE_BYTES = 1 << 40


@dataclass(frozen=True)
class FileAccess:
    """What a process may do beside the system: read files, run them, list folders, write to them.

    Of folders that it lists it knows the names that lie there, and nothing more. In those of
    `links`, to which it writes, it makes symbolic links, too: they are nobody else's.
    """

    reads: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    lists: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    links: tuple[Path, ...] = ()

    @property
    def rules(self) -> list[tuple[Path, int]]:
        """Each path and what may be done there."""
        grants = (
            (self.reads, READ), (self.runs, RUN), (self.lists, LIST), (self.writes, WRITE),
            (self.links, LINK),
        )  # fmt: skip
        return [(path, rights) for paths, rights in grants for path in paths]


def confine_to(access: FileAccess, *, gpu: bool = False) -> None:
    """Confine what this process execs to the system and its access, with a `gpu` if it drives one.

    Folders to write to are made. What the kernel or the container doesn't permit is left out, which
    `find_confinement_gaps` reports. The process must have set `no_new_privs`.
    """
    for folder in (*access.writes, *access.links):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _limit_file_size()
    _enter_network_namespace()
    rules = [*_system_rules(), *_python_rules(), *_tool_rules(), *access.rules]
    if gpu:
        rules += _gpu_rules()
    confine(rules)
    _drop_capabilities()
    filter_calls(sockets=gpu)


_ATTEMPTS = """
import json, os, socket, sys
secret, beside = sys.argv[1:]
def done(act):
    try:
        act()
    except OSError:
        return False
    return True
os.write(1, json.dumps({
    "reads files of others": done(lambda: open(secret).close()),
    "writes outside its folder": done(lambda: open(beside, "w").close()),
    "changes the modes of files": done(lambda: os.chmod(secret, 0o644)) and
        os.stat(secret).st_mode & 0o777 == 0o644,
    "opens sockets": done(lambda: socket.socket().close()),
    "signals other processes": done(lambda: os.kill(os.getppid(), 0)),
    "sees the machine's network": len(open("/proc/net/dev").readlines()) > 3,
}).encode())
"""


def find_confinement_gaps() -> tuple[str, ...]:
    """Return what a confined process can do here all the same, as one has just tried."""
    with tempfile.TemporaryDirectory(prefix="handoff-confined-") as folder:
        secret, outside = Path(folder, "secret"), Path(folder, "beside")
        secret.touch(mode=0o600)
        command = isolated_command(
            "handoff.infra.engine.sandbox", "--confined", *(["--gpu"] if has_gpu() else []), "--",
            sys.executable, "-I", "-c", _ATTEMPTS, str(secret), str(outside),
        )  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode:
        return (f"nothing: it doesn't start ({result.stderr.strip()[-200:]})",)
    return tuple(name for name, possible in json.loads(result.stdout).items() if possible)


def _system_rules() -> list[tuple[Path, int]]:
    rules = [(Path(path), RUN) for path in _PROGRAMS]
    rules += [(Path(path), READ) for path in (*_SETTINGS, *_KERNEL)]
    return [*rules, *((Path("/dev", name), USE) for name in _DEVICES)]


def _python_rules() -> list[tuple[Path, int]]:
    """Return where this Python and what it imports lie: of our own folder, our packages alone."""
    root = Path(own_root())
    folders = {Path(sys.prefix), Path(sys.base_prefix), *import_folders()}
    folders |= {Path(folder) for folder in sys.path if folder and Path(folder) != root}
    # Where the interpreter is a link, the folder that it leads to holds its library.
    folders.add(Path(os.path.realpath(sys.executable)).parent.parent)
    rules = [(folder, RUN) for folder in folders]
    # To find them, Python lists the folder.
    return [*rules, (root, LIST)]


def _tool_rules() -> list[tuple[Path, int]]:
    """Return where the compilers lie that are used, and where they and the loader search."""
    rules = []
    for name in ("CC", "CXX"):
        program = shutil.which(os.environ.get(name, "") or {"CC": "gcc", "CXX": "g++"}[name])
        if program:
            # A toolchain's libraries lie beside its programs.
            rules.append((Path(os.path.realpath(program)).parent.parent, RUN))
    for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME"):
        folders = [Path(folder) for folder in os.environ.get(name, "").split(os.pathsep) if folder]
        rules += [(folder, RUN) for folder in folders]
    home = Path(os.path.realpath(Path.home()))
    return [(path, rights) for path, rights in rules if not _contains_home(path, home)]


def _contains_home(path: Path, home: Path) -> bool:
    """Return whether the folder is or holds the user's home, which nothing may open."""
    return Path(os.path.realpath(path)) in (home, *home.parents)


def _gpu_rules() -> Iterator[tuple[Path, int]]:
    """Return what a GPU's driver opens, and where it writes the names of its threads.

    That is what `/proc` says of this very process, which what is execed here goes on being; what
    that starts needs more (`infra.engine.spawning`). The kernel may forget the folder and make it
    again, to which the rule wouldn't hold, but not while a descriptor of it is open: it is left so.
    """
    threads = os.open("/proc/self/task", os.O_PATH | os.O_DIRECTORY)
    os.set_inheritable(threads, True)
    yield Path("/proc/self/task"), USE
    for path in (*Path("/dev").glob("nvidia*"), Path("/dev/dri"), Path("/dev/shm")):  # noqa: S108
        yield path, USE | WRITE
    for name in _GPU_PATHS:
        yield Path(name), RUN


def _limit_file_size() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = _MAX_FILE_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _enter_network_namespace() -> None:
    """Go into a network of one's own, without a way out, where that is permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) == 0:
        return
    # Root would lose the files of others with it.
    if os.geteuid() != 0 and _succeeds_in_child(_enter_user_namespace):
        _enter_user_namespace()


def _enter_user_namespace() -> bool:
    """Go into a network with users of one's own, who are this one: that needs no rights at all."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"),
    ):  # fmt: skip
        Path("/proc/self", name).write_text(text, encoding="ascii")
    return True


def _succeeds_in_child(act: Callable[[], bool]) -> bool:
    """Return whether `act` succeeds, as seen in a process that ends with it: it can't be undone."""
    child = os.fork()
    if child == 0:
        done = False
        with contextlib.suppress(OSError):
            done = act()
        os._exit(0 if done else 1)
    return os.waitpid(child, 0)[1] == 0


def _drop_capabilities() -> None:
    """Drop root's privileges but those that are kept, now and for what is execed."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in _KEPT_CAPABILITIES:
            # Refused to all but root, who alone has them, and for those that there aren't.
            libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    # What is execed as another user than root has none, not even among users of its own.
    kept = _KEPT_CAPABILITIES if os.geteuid() == 0 else frozenset()
    lower, upper = (
        sum(1 << (number - first) for number in kept if 0 <= number - first < _WORD_BITS)
        for first in (0, _WORD_BITS)
    )
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    # What is effective, permitted and inheritable of the lower ones, then of the upper ones.
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities can't be read")
    for index, mask in enumerate((lower, lower, 0, upper, upper, 0)):
        sets[index] &= mask
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "the capabilities can't be dropped")
