"""Places where each folder is a delivery: one on this machine, or a prefix in S3."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from handoff.artifacts.delivery.contract import CONTRACT_FILE
from handoff.artifacts.delivery.uri import S3Source, is_plain_path, parse_delivery_uri
from handoff.artifacts.errors import DeliveryUnreachable, UsageProblem
from handoff.artifacts.stores.s3_reading import S3Location, S3Object
from handoff.infra.home import absolute_path

_MOST_FILES = 100_000
_LARGEST_CONTRACT = 1 << 20


@dataclass(frozen=True)
class Listing:
    """What a delivery's folder holds: a digest of names, sizes, and times or ETags."""

    name: str
    uri: str
    content: str
    has_contract: bool


class Location(Protocol):
    """Where deliveries are put."""

    def look(self) -> list[Listing]:
        """Return every folder as it is now; raise `DeliveryUnreachable`."""

    def read_contract(self, listing: Listing) -> str:
        """Return the text of a delivery's contract; raise `HandoffError` or `UnicodeError`."""


def open_location(text: str) -> Location:
    """Return the place that `text` names: a folder, or `s3://bucket/prefix`."""
    if text.startswith("s3://"):
        source = parse_delivery_uri(text)
        assert isinstance(source, S3Source)
        return BucketLocation(source)
    folder = absolute_path(Path(text).expanduser())
    if not folder.is_dir():
        raise UsageProblem(
            f"{folder} can't be watched", expected="a folder, or s3://bucket/prefix",
            got="a file" if folder.exists() else "nothing of that name",
            remedy="Make the folder in which each delivery is to be a folder",
        )  # fmt: skip
    return FolderLocation(folder)


class FolderLocation:
    """A folder whose subfolders are deliveries; hidden ones and links are none."""

    def __init__(self, folder: Path) -> None:
        """Look at the subfolders of `folder`."""
        self._folder = folder

    def look(self) -> list[Listing]:
        """Return the subfolders with the sizes and times of their files."""
        try:
            with os.scandir(self._folder) as entries:
                names = sorted(
                    entry.name for entry in entries
                    if entry.is_dir(follow_symlinks=False) and _is_visible(entry.name)
                )  # fmt: skip
            return [self._list(name) for name in names]
        except OSError as error:
            raise DeliveryUnreachable(
                f"{self._folder} can't be looked at", expected="a folder that may be read",
                got=error.strerror or str(error), remedy="Is its disk there?",
            ) from error  # fmt: skip

    def read_contract(self, listing: Listing) -> str:
        """Return the text of the contract."""
        with (self._folder / listing.name / CONTRACT_FILE).open("rb") as stream:
            return stream.read(_LARGEST_CONTRACT).decode()

    def _list(self, name: str) -> Listing:
        folder = self._folder / name
        lines, has_contract = [], False
        for path, folders, files in os.walk(folder):
            folders.sort()
            for file in sorted(files):
                relative = os.path.relpath(os.path.join(path, file), folder)  # noqa: PTH118
                status = os.lstat(os.path.join(path, file))  # noqa: PTH118
                lines.append(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}")
                has_contract = has_contract or relative == CONTRACT_FILE
            if len(lines) > _MOST_FILES:
                break
        return Listing(name, str(folder), _digest(name, lines), has_contract)


class BucketLocation:
    """A prefix in S3 below which each folder is a delivery; boto3 reads the credentials."""

    def __init__(self, source: S3Source) -> None:
        """Look below the prefix."""
        self._source = source
        self._place = S3Location(source.bucket, source.key)
        self._contracts: dict[str, S3Object] = {}

    def look(self) -> list[Listing]:
        """Return the folders with the sizes and ETags of their objects."""
        folders: dict[str, list[S3Object]] = {}
        for stored in self._place.objects(_MOST_FILES):
            name, separator, _ = stored.name.partition("/")
            if separator and _is_visible(name):
                folders.setdefault(name, []).append(stored)
        self._contracts = {}
        return [self._list(name, stored) for name, stored in sorted(folders.items())]

    def read_contract(self, listing: Listing) -> str:
        """Return the text of the contract, as it was at the last look."""
        return self._place.read(self._contracts[listing.name], _LARGEST_CONTRACT).decode()

    def _list(self, name: str, objects: list[S3Object]) -> Listing:
        for stored in objects:
            if stored.name == f"{name}/{CONTRACT_FILE}":
                self._contracts[name] = stored
        lines = [f"{stored.name}\0{stored.size_bytes}\0{stored.etag}" for stored in objects]
        uri = f"s3://{self._source.bucket}/{self._source.key}/{name}"
        return Listing(name, uri, _digest(name, lines), name in self._contracts)


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and is_plain_path(name)


def _digest(name: str, lines: list[str]) -> str:
    return hashlib.sha256("\n".join([name, *lines]).encode(errors="surrogateescape")).hexdigest()
