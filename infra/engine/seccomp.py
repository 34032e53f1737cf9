"""Keep this process and all that it starts from calls of the kernel's, by seccomp.

What a compiler and compiled code never ask for is refused: sockets, other processes' memory, mounts
and namespaces, the kernel's own programs and keys, and ways round the filter. What they ask for and
needn't have is answered as if it were done: no process leaves its group (by which all are ended),
and no mode of a file is changed, since Landlock rules over what a file holds and not over that.

The filter is a program for the kernel's packet filter (Documentation/userspace-api/seccomp_filter);
the numbers of the calls are those of the kernel's tables, arch/x86/entry/syscalls/syscall_64.tbl
and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
# Load a word at an offset, compare it, test its bits, end with an answer.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Where the data that the filter sees holds the call's number, the architecture, the first argument.
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16
# Asking a clone for a namespace of its own: cgroup, mounts, names, IPC, users, processes, network.
_NAMESPACES = 0x7E020000
_OWN_SOCKETS = 1


@dataclass(frozen=True)
class _CallTable:
    """An architecture's numbers of the calls that are refused, answered, or looked at."""

    architecture: int
    refused: tuple[int, ...]
    answered: tuple[int, ...]
    socket: int
    clone: int
    # Numbers from here on are those of another way to call.
    beyond: int = 0


# The same on all architectures since they were added: io_uring, mounts by descriptor, another
# process's descriptors, extended attributes by descriptor, and modes by another name.
_IO_URING_CALLS = (425, 426, 427)
_MOUNT_CALLS = (428, 429, 430, 431, 432, 433, 442)
_COMMON_REFUSED = (*_IO_URING_CALLS, *_MOUNT_CALLS, 438, 463, 466, 469)
_CHMOD_AT_2, _CLONE_3 = 452, 435

_CALL_TABLES = {
    "x86_64": _CallTable(
        0xC000003E,
        (
            *_COMMON_REFUSED,
            101, 310, 311, 312,  # ptrace, process_vm_readv and _writev, kcmp
            165, 166, 155, 161,  # mount, umount2, pivot_root, chroot
            272, 308,  # unshare, setns
            321, 298, 323,  # bpf, perf_event_open, userfaultfd
            248, 249, 250,  # add_key, request_key, keyctl
            304, 103, 163, 179,  # open_by_handle_at, syslog, acct, quotactl
            175, 313, 176, 246, 320, 169,  # kernel modules, kexec_load, kexec_file_load, reboot
            167, 168, 164, 227, 159, 305, 170, 171, 172, 173,  # swap, clocks, host's names, ports
            92, 93, 94, 260,  # chown, fchown, lchown, fchownat
            188, 189, 190, 197, 198, 199,  # setxattr and removexattr
        ),
        (112, 109, 90, 91, 268),  # setsid, setpgid, chmod, fchmod, fchmodat
        socket=41, clone=56, beyond=0x40000000,
    ),
    "aarch64": _CallTable(
        0xC00000B7,
        (
            *_COMMON_REFUSED,
            117, 270, 271, 272,
            40, 39, 41, 51,
            97, 268,
            280, 241, 282,
            217, 218, 219,
            265, 116, 89, 60,
            105, 273, 106, 104, 294, 142,
            224, 225, 170, 112, 171, 266, 161, 162,
            55, 54,
            5, 6, 7, 14, 15, 16,
        ),
        (157, 154, 52, 53),
        socket=198, clone=220,
    ),
}  # fmt: skip


def filter_calls(*, sockets: bool = False) -> bool:
    """Filter the calls of what this process execs; return False where that isn't known here.

    With `sockets`, those to other processes of this machine (AF_UNIX) are let through, which a
    GPU's driver may ask for. The process must have set `no_new_privs`.
    """
    calls = _CALL_TABLES.get(platform.machine())
    if calls is None:
        return False
    program = _program(calls, sockets=sockets)
    instructions = (ctypes.c_ubyte * len(program)).from_buffer_copy(program)
    # `struct sock_fprog`: how many there are, and where.
    filter_program = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, filter_program, 0, 0)) == 0


def _program(calls: _CallTable, *, sockets: bool) -> bytes:
    """Return the filter: instructions of eight bytes, each with how far to go on where (not) so."""
    refuse, answer = _ERRNO | errno.EPERM, _ERRNO
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, calls.architecture), (_RETURN, 0, 0, refuse),
        (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip
    if calls.beyond:
        lines += [(_AT_LEAST, 0, 1, calls.beyond), (_RETURN, 0, 0, refuse)]
    lines += _answer_calls(calls.refused, refuse)
    lines += _answer_calls((*calls.answered, _CHMOD_AT_2), answer)
    # Whoever meets that asks by the older call, whose flags can be seen.
    lines += _answer_calls((_CLONE_3,), _ERRNO | errno.ENOSYS)
    lines += [
        (_EQUAL, 0, 3, calls.clone), (_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NAMESPACES),
        (_RETURN, 0, 0, refuse), (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip
    # A socket of any kind, or of any but one.
    lines += [(_EQUAL, 0, 3, calls.socket), (_LOAD, 0, 0, _FIRST)]
    lines += [(_EQUAL, 1, 0, _OWN_SOCKETS if sockets else 0xFFFFFFFF), (_RETURN, 0, 0, refuse)]
    lines += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _answer_calls(numbers: Iterable[int], answer: int) -> list[tuple[int, int, int, int]]:
    """Return the instructions that end each of these calls with the answer."""
    return [
        line for number in numbers for line in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer))
    ]
