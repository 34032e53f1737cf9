"""Reads the zip container that `torch.save` writes, without trusting what it says of itself.

The layout is that of PyTorch's `PyTorchStreamWriter` (caffe2/serialize/inline_container.cc): every
member is stored, never deflated, and below one folder named after the file; the central directory
holds the sizes. Both the plain and the zip64 end records are read.
"""

from __future__ import annotations

import mmap
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from handoff.tasks.intake.errors import DAMAGED, refuse

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MEMBER = re.compile(
    r"[^/\\\x00]{1,200}/(data\.pkl|byteorder|version|\.format_version|\.storage_alignment"
    r"|\.data/serialization_id|data/(?:0|[1-9][0-9]{0,8}))"
)
_MAX_MEMBERS = 200_000


@dataclass(frozen=True)
class Member:
    """Where one member's bytes lie in the file, and their checksum."""

    name: str
    begin: int
    size: int
    crc: int


class Archive:
    """The members of one `.pt` file, by their names without the leading folder."""

    def __init__(self, path: Path) -> None:
        """Map the file and check its directory; raise `DeliveryUnreadable` with a reason."""
        self.where = path.name
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            if size < _END.size:
                raise self.refuse("a zip archive", f"{size} bytes")
            # A private mapping, so that torch may take the buffer as writable; nothing writes it.
            self.bytes = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        try:
            self.members = self._read_directory()
        except struct.error as error:
            raise self.refuse("a whole zip archive", f"a cut record ({error})") from error
        for name in ("data.pkl", "version"):
            if name not in self.members:
                raise self.refuse(f"a member {name}", "none")
        if "byteorder" in self.members and self.read("byteorder") != b"little":
            raise self.refuse("little-endian data", str(self.read("byteorder")[:20]))

    def refuse(self, expected: str, got: object) -> Exception:
        """Return the error that says why this file is not what `torch.save` writes."""
        return refuse(
            f"{self.where} is not a file that torch.save wrote",
            expected=expected,
            got=got,
            where=self.where,
            remedy=DAMAGED,
        )

    def read(self, name: str) -> bytes:
        """Return the bytes of a member, whose checksum holds."""
        member = self.members[name]
        self.verify_checksum(member)
        return self.bytes[member.begin : member.begin + member.size]

    def verify_checksum(self, member: Member) -> None:
        """Raise `DeliveryUnreadable` unless the member's checksum holds."""
        with memoryview(self.bytes) as view:
            crc = zlib.crc32(view[member.begin : member.begin + member.size])
        if crc != member.crc:
            raise self.refuse(f"{member.name} with checksum {member.crc:08x}", f"{crc:08x}")

    def release_pages(self, member: Member) -> None:
        """Give the memory of the member's mapped pages back; reading it again maps them again."""
        first = member.begin // mmap.PAGESIZE * mmap.PAGESIZE
        self.bytes.madvise(mmap.MADV_DONTNEED, first, member.begin + member.size - first)

    def _read_directory(self) -> dict[str, Member]:
        count, size, begin, limit = self._read_end()
        if count > _MAX_MEMBERS or begin + size != limit or count * _ENTRY.size > size:
            raise self.refuse("a directory that fits the file", f"{count} members in {size} bytes")
        members: dict[str, Member] = {}
        roots = set()
        offsets = []
        at = begin
        for _ in range(count):
            path, member, offset, at = self._read_entry(at, begin)
            root, _, name = path.partition("/")
            roots.add(root)
            if name in members:
                raise self.refuse("members of different names", f"two of {name}")
            members[name] = member
            offsets.append((offset, member.begin + member.size))
        if at != limit or len(roots) != 1:
            raise self.refuse("one folder of members", f"{len(roots)} folders")
        self._check_disjoint(offsets, begin)
        return members

    def _check_disjoint(self, spans: list[tuple[int, int]], directory: int) -> None:
        end = 0
        for begin, stop in sorted(spans):
            if begin < end:
                raise self.refuse("members that lie apart", "members that overlap")
            end = stop
        if end > directory:
            raise self.refuse("members before the directory", "a member that reaches into it")

    def _read_end(self) -> tuple[int, int, int, int]:
        """Return the members' number, and the directory's size, begin and end."""
        last = len(self.bytes) - _END.size
        end = _END.unpack_from(self.bytes, last)
        if end[0] != b"PK\x05\x06" or end[7] != 0 or end[1] or end[2] or end[3] != end[4]:
            raise self.refuse("an end record as the file's last 22 bytes", "something else")
        if last < _LOCATOR64.size + _END64.size:
            return end[4], end[5], end[6], last
        locator = _LOCATOR64.unpack_from(self.bytes, last - _LOCATOR64.size)
        if locator[0] != b"PK\x06\x07":
            return end[4], end[5], end[6], last
        at = last - _LOCATOR64.size - _END64.size
        end64 = _END64.unpack_from(self.bytes, at)
        if locator[2] != at or end64[0] != b"PK\x06\x06" or end64[6] != end64[7]:
            raise self.refuse("a zip64 end record before its locator", "something else")
        return end64[7], end64[8], end64[9], at

    def _read_entry(self, at: int, directory: int) -> tuple[str, Member, int, int]:
        """Return path, member, offset of its local header, and where the next entry begins."""
        entry = _ENTRY.unpack_from(self.bytes, at)
        name_at = at + _ENTRY.size
        extra_at = name_at + entry[10]
        following = extra_at + entry[11] + entry[12]
        raw = self.bytes[name_at:extra_at]
        path = raw.decode("utf-8", errors="replace")
        if entry[0] != b"PK\x01\x02" or not _MEMBER.fullmatch(path):
            raise self.refuse("members named as torch.save names them", path)
        if entry[4] != 0 or entry[3] & 0x1:
            raise self.refuse(f"{path} stored as it is", "a compressed or encrypted member")
        size, packed, offset = self._widen(entry, self.bytes[extra_at : extra_at + entry[11]])
        if size != packed or offset + _LOCAL.size > directory:
            raise self.refuse(f"{path} inside the file", f"{size} bytes at {offset}")
        local = _LOCAL.unpack_from(self.bytes, offset)
        begin = offset + _LOCAL.size + local[9] + local[10]
        local_name = self.bytes[offset + _LOCAL.size : offset + _LOCAL.size + local[9]]
        if local[0] != b"PK\x03\x04" or local[3] != 0 or local_name != raw:
            raise self.refuse(f"a local header for {path}", "a different one")
        if begin + size > directory:
            raise self.refuse(f"{path} inside the file", f"{size} bytes at {begin}")
        name = path.partition("/")[2]
        return path, Member(name, begin, size, entry[7]), offset, following

    def _widen(self, entry: tuple[int, ...], extra: bytes) -> tuple[int, int, int]:
        """Return sizes and offset, taken from the zip64 field where the entry says so."""
        wide = [entry[9], entry[8], entry[16]]
        if 0xFFFFFFFF not in wide:
            return wide[0], wide[1], wide[2]
        at = 0
        while at + 4 <= len(extra):
            kind, size = struct.unpack_from("<2H", extra, at)
            if kind == 1:
                field = extra[at + 4 : at + 4 + size]
                values = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
                wide = [next(values, -1) if v == 0xFFFFFFFF else v for v in wide]
                break
            at += 4 + size
        if min(wide) < 0:
            raise self.refuse("a whole zip64 field", "a cut one")
        return wide[0], wide[1], wide[2]
