"""Keep this process and all that it starts from files and from others, by Landlock.

`confine` allows what is named, and nothing else; `bar_reading` bars what is named, and nothing
else. Both can't be undone, and hold together where both are asked for.

Landlock (the kernel's Documentation/userspace-api/landlock.rst) only allows, and what it allows
for a folder holds for everything below it. To leave one path out, each entry of each folder above
it is allowed except the one that leads there. So, for the process that was barred from it:

- What comes to be later *directly* in a folder above the path can be written and not read. What
  is there when the process starts, and all that comes to be below it, reads as before.
- A hard link or a bind mount of the file elsewhere, made by somebody else, stays readable.
- Names can still be listed: a folder above the path may be one that Python imports from.

The memory of processes that may read it is out of reach, too: the kernel lets no other be their
debugger. Nothing moves out of the path, and no folder above it is renamed or removed, by a process
that is kept from it: the next one would be kept from another place then.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
# Reading files, removing or renaming folders, moving and linking from one folder to another.
_READ_FILE, _REMOVE_DIR, _REFER = 1 << 2, 1 << 4, 1 << 13
_HANDLED = _READ_FILE | _REMOVE_DIR | _REFER
# All that reads, and what makes plain files and folders, changes and removes them. Pipes, sockets
# and devices are made by nobody who is confined, and links only where nobody else follows them: it
# needs the right to make one also to move one there.
_EXECUTE, _WRITE_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 3
_REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 5, 1 << 7, 1 << 8, 1 << 12
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
READ = _READ_FILE | _READ_DIR
RUN = READ | _EXECUTE
LIST = _READ_DIR
WRITE = READ | _WRITE_FILE | _REMOVE_FILE | _REMOVE_DIR | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE
LINK = WRITE | _MAKE_SYM
USE = READ | _WRITE_FILE | _TRUNCATE | _IOCTL
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
# By the version of the interface: each right that there is to be handled, of files, of TCP (to
# listen and to connect), and of others (to reach their abstract sockets, to send them signals).
_RIGHTS_BY_VERSION = ((5, (1 << 16) - 1), (3, (1 << 15) - 1), (2, (1 << 14) - 1))
_NET_VERSION, _NET = 4, 0b11
_SCOPE_VERSION, _SCOPED = 6, 0b11
# Before it (Linux 5.19), no file could be moved or linked from one folder to another at all.
_FIRST_WITH_REFER = 2
# What root would get round it with: CAP_DAC_READ_SEARCH, SYS_MODULE, SYS_RAWIO, SYS_PTRACE,
# SYS_ADMIN, MKNOD, PERFMON (another process's memory map and environment) and BPF.
_BYPASSING_CAPABILITIES = (2, 16, 17, 19, 21, 27, 38, 39)
_PR_CAPBSET_DROP = 24
_UNSUPPORTED_ERRORS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface; 0 for none that serves here."""
    try:
        version = _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS:
            raise
        return 0
    return version if version >= _FIRST_WITH_REFER else 0


def confine(rules: Iterable[tuple[Path, int]]) -> bool:
    """Allow what this process execs the rights named below each path, and nothing else.

    The rights are `READ`, `RUN` (reading and executing), `LIST` (the names in folders), `WRITE`
    (all but making links and devices), `LINK` (links, too) and `USE` (of a device). Where the
    kernel can, TCP is closed, too, and no process outside gets a signal or a connection. A path
    that isn't there is left out. Return False without Landlock. The process must have set
    `no_new_privs`, or `OSError` is raised.
    """
    version = landlock_version()
    if not version:
        return False
    handled = next(rights for since, rights in _RIGHTS_BY_VERSION if version >= since)
    attributes = struct.pack(
        "=QQQ", handled, _NET if version >= _NET_VERSION else 0,
        _SCOPED if version >= _SCOPE_VERSION else 0,
    )  # fmt: skip
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path, rights in rules:
            _allow(ruleset, Path(os.path.realpath(path)), rights & handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def bar_reading(paths: Sequence[Path]) -> bool:
    """Keep what this process execs from reading below `paths`; return False without Landlock.

    That can't be undone, and what is execed has none of root's ways round it. A path that isn't
    there yet is barred, too. The process must have set `no_new_privs`, or `OSError` is raised.
    """
    if not paths or not landlock_version():
        return False
    barred = {Path(os.path.realpath(path)) for path in paths}
    handled = struct.pack("=Q", _HANDLED)
    ruleset = _call(_CREATE_RULESET, handled, len(handled), 0)
    try:
        for entry in _list_unbarred(barred):
            _allow(ruleset, entry, _HANDLED)
        _call(_RESTRICT_SELF, ruleset, 0)
        for capability in _BYPASSING_CAPABILITIES:
            # Refused to all but root, who alone has them.
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    finally:
        os.close(ruleset)
    return True


def _list_unbarred(barred: set[Path]) -> Iterator[Path]:
    """Give what lies in the folders above the paths and leads to none of them."""
    leading = {above for path in barred for above in path.parents}
    for folder in leading:
        if any(above in barred for above in (folder, *folder.parents)):
            continue
        try:
            entries = list(folder.iterdir())
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # nothing there, or nothing that this user finds there
        yield from (entry for entry in entries if entry not in leading | barred)


def _allow(ruleset: int, path: Path, access: int) -> None:
    """Allow `access` below the path, or what of it there is for a file; nothing for a link."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # gone since it was listed, or closed to this user in any case
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISLNK(mode):
            return  # it may lead to what is barred; what it leads to is allowed where it lies
        allowed = access if stat.S_ISDIR(mode) else access & _FILE_RIGHTS
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
