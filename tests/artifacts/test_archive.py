"""Which members a package may have, before torch unpacks them by their names."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from artifacts.archive import require_plain_members
from artifacts.errors import PackageRefused


def check(path: Path) -> None:
    """Check the archive at `path`."""
    with path.open("rb") as stream:
        require_plain_members(stream.fileno(), "model.pt2")


@pytest.mark.parametrize(
    "names",
    [
        ["../x"], ["model/../x"], ["model/../../x"], ["/etc/x"], ["model//x"], ["model/./x"],
        ["model\\x/y"], ["model/\u0007"], ["x"], ["model/"], ["model/x", "other/x"], [],
        ["model/a", "../../x"],
    ],
)  # fmt: skip
def test_members_that_do_not_stay_below_one_folder_are_refused(
    names: list[str], tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "it.pt2", "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(PackageRefused, match="is not a package that may be unpacked"):
        check(tmp_path / "it.pt2")


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "it.pt2", "w") as archive:
        archive.writestr("model/x", b"x")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("model/x", b"y")
    with pytest.raises(PackageRefused, match="each once"):
        check(tmp_path / "it.pt2")


@pytest.mark.parametrize("data", [b"", b"PK", os.urandom(200)])
def test_what_is_no_archive_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "it.pt2").write_bytes(data)
    with pytest.raises(PackageRefused, match="expected a ZIP archive"):
        check(tmp_path / "it.pt2")


def test_plain_members_below_one_folder_are_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "it.pt2", "w") as archive:
        archive.writestr("model/.data/version", b"3")
        archive.writestr("model/data/..weights", b"x")
    check(tmp_path / "it.pt2")
