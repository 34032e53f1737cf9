"""Which members a package may have, before torch unpacks them by their names."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.serve.archive import require_known_members, require_plain_members


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


def _with_kernels(path: Path, data: bytes, method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/a.wrapper.so", b"library")
        archive.writestr("model/data/a.wrapper.json", data, method)
        archive.writestr("model/data/a.wrapper_metadata.json", b"{}")


def _naming(operator: str) -> bytes:
    return json.dumps({"nodes": [{"name": "n", "node": {"target": operator}}]}).encode()


def test_operators_of_libtorch_may_be_called_by_name_from_a_package(tmp_path: Path) -> None:
    _with_kernels(tmp_path / "it.pt2", _naming("aten::bincount"))
    with (tmp_path / "it.pt2").open("rb") as stream:
        require_known_members(stream.fileno(), "model.pt2")


@pytest.mark.parametrize("operator", ["mine::run", "aten::from_file"])
def test_a_package_that_has_others_called_is_refused(operator: str, tmp_path: Path) -> None:
    _with_kernels(tmp_path / "it.pt2", _naming(operator))
    with (
        (tmp_path / "it.pt2").open("rb") as stream,
        pytest.raises(PackageRefused, match=r"model\.pt2 calls what a package may not"),
    ):
        require_known_members(stream.fileno(), "model.pt2")


def test_names_that_are_compressed_are_refused(tmp_path: Path) -> None:
    _with_kernels(tmp_path / "it.pt2", _naming("aten::bincount"), zipfile.ZIP_DEFLATED)
    with (
        (tmp_path / "it.pt2").open("rb") as stream,
        pytest.raises(PackageRefused, match="stored as they are"),
    ):
        require_known_members(stream.fileno(), "model.pt2")
