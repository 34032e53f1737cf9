"""A delivery of a few files, in every archive, and what is asserted of fetching it."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_folder
from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.fetch import step as fetch
from handoff.tasks.fetch.messages import FetchJob, FetchLimits, FetchResult

FILES = {
    "delivery.toml": b"format = 1\n",
    "module.py": b"raise SystemExit('executed')\n",
    "__init__.py": b"",
    "state_dict.pt": os.urandom(300_000),
}
SMALL = FetchLimits(size_bytes=1 << 20, files=20, seconds=60)


def write_files(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def assert_fetched(uri: str, to: Path, limits: FetchLimits = SMALL) -> FetchResult:
    result = fetch.run(FetchJob(uri, to, limits))
    assert {path.name: path.read_bytes() for path in to.iterdir()} == FILES
    assert (result.folder, result.digest, result.files) == (to, digest_folder(to), len(FILES))
    assert result.size_bytes == sum(map(len, FILES.values()))
    assert list(to.parent.iterdir()) == [to]
    return result


def assert_refused(
    uri: str, to: Path, match: str, kind: type[Exception] = DeliveryUnreadable,
    limits: FetchLimits = SMALL,
) -> None:  # fmt: skip
    with pytest.raises(kind, match=match):
        fetch.run(FetchJob(uri, to, limits))
    assert list(to.parent.iterdir()) == []


def tar_of(*members: tuple[str, bytes], mode: str = "w:gz", **fields: object) -> bytes:
    """Return an archive; `fields` are set on every member."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def zip_of(*members: tuple[str, bytes], attributes: int = 0) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            member = zipfile.ZipInfo(name)
            member.external_attr = attributes
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    return packed.getvalue()


MEMBERS = tuple(FILES.items())
BELOW = tuple((f"./delivery/{name}", data) for name, data in MEMBERS)
ARCHIVES = {
    "tar": tar_of(*MEMBERS, mode="w"), "tar.gz": tar_of(*MEMBERS), "zip": zip_of(*MEMBERS),
    "tar.gz of a folder": tar_of(*BELOW),
    "PAX": tar_of(*MEMBERS, pax_headers={"comment": "x" * 5000}),
}  # fmt: skip
