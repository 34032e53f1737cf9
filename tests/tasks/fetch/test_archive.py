"""An archive: what is in it, or a refusal, and nothing outside of the folder."""

from __future__ import annotations

import gzip
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.fetch import step as fetch
from handoff.tasks.fetch.messages import FetchJob, FetchLimits
from tests.tasks.fetch.samples import (
    ARCHIVES,
    MEMBERS,
    SMALL,
    assert_fetched,
    assert_refused,
    tar_of,
    zip_of,
)


@pytest.mark.parametrize("form", ARCHIVES)
def test_an_archive_is_unpacked(form: str, tmp_path: Path, to: Path) -> None:
    (tmp_path / "archive").write_bytes(ARCHIVES[form])
    assert_fetched((tmp_path / "archive").as_uri(), to)


BOMB = b"\0" * (4 << 20)
BAD = [("x", b"1")]
HOSTILE = {
    "a tar bomb": (tar_of(("x", BOMB)), "too large"),
    "a zip bomb": (zip_of(("x", BOMB)), "too large"),
    "a gzip bomb": (gzip.compress(BOMB), "too large"),
    "a tar that leaves": (tar_of(("../x", b"1")), "name that is never written"),
    "an absolute tar": (tar_of(("/tmp/x", b"1")), "name that is never written"),
    "a zip that leaves": (zip_of(("a/../../x", b"1")), "name that is never written"),
    "an absolute zip": (zip_of(("/tmp/x", b"1")), "name that is never written"),
    "backslashes": (zip_of(("..\\x", b"1")), "name that is never written"),
    "a symbolic link": (tar_of(*BAD, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "a link"),
    "a hard link": (tar_of(*BAD, type=tarfile.LNKTYPE, linkname="/etc/passwd"), "a link"),
    "a device": (tar_of(*BAD, type=tarfile.CHRTYPE), "a device"),
    "a pipe": (tar_of(*BAD, type=tarfile.FIFOTYPE), "a device, a pipe"),
    "a sparse file": (tar_of(*BAD, type=tarfile.GNUTYPE_SPARSE), "a sparse file"),
    "a link in a zip": (zip_of(*BAD, attributes=(stat.S_IFLNK | 0o777) << 16), "a link"),
    "one file twice": (tar_of(*BAD, *BAD), "two entries of one name"),
    "a file in a file": (tar_of(("a", b"1"), ("a/b", b"2")), "File exists|Not a directory"),
    "a long header": (
        tar_of(*BAD, pax_headers={"comment": "x" * (17 << 20)}, mode="w"), "headers of a usual size"
    ),
    "endless folders": (tar_of(*(("./", b""),) * 99, type=tarfile.DIRTYPE), "at most 40 entries"),
    "a cut gzip": (tar_of(*MEMBERS)[:-40], "a whole archive"),
    "a cut zip": (zip_of(*MEMBERS)[:-40], "a whole archive"),
    "no archive": (b"hello" * 100, "a .tar, .tar.gz or .zip archive"),
}  # fmt: skip


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    attack: str, tmp_path: Path, to: Path
) -> None:
    packed, match = HOSTILE[attack]
    (tmp_path / "archive").write_bytes(packed)
    limits = FetchLimits(size_bytes=40 << 20 if attack == "a long header" else 1 << 20, files=20)
    kinds: type[Exception] = OSError if attack == "a file in a file" else DeliveryUnreadable
    assert_refused(str(tmp_path / "archive"), to, match, kinds, limits)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.text(max_size=30), zipped=st.booleans())
def test_no_name_in_an_archive_is_written_outside_of_the_folder(
    name: str, zipped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("names")
    try:
        packed = (zip_of if zipped else tar_of)((name, b"1"))
    except (ValueError, UnicodeError, OSError):
        return
    (root / "archive").write_bytes(packed)
    try:
        fetch.run(FetchJob(str(root / "archive"), root / "inside" / "new", SMALL))
    except DeliveryUnreadable:
        assert list((root / "inside").iterdir()) == []
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "archive"]
    assert all((root / "inside" / "new") in path.parents for path in files)
    assert {path.name for path in root.iterdir()} == {"archive", "inside"}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(form=st.sampled_from(sorted(ARCHIVES)), at=st.integers(0, 5000), byte=st.integers(0, 255))
def test_a_damaged_archive_is_read_or_refused(
    form: str, at: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("damaged")
    packed = bytearray(ARCHIVES[form])
    packed[at] = byte
    (root / "archive").write_bytes(packed)
    try:
        fetch.run(FetchJob(str(root / "archive"), root / "inside" / "new", SMALL))
    except (DeliveryUnreadable, OSError):
        assert list((root / "inside").iterdir()) == []
