"""Faults of S3 during a release and a pull: each kind at each request, once and for ever."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from handoff.artifacts.errors import HandoffError
from handoff.artifacts.release.releases import open_releases
from handoff.artifacts.stores import s3_bucket
from handoff.artifacts.stores.s3_requests import make_client
from handoff.artifacts.stores.store import open_store
from handoff.tasks.registry import pull
from handoff.tasks.registry.messages import PullJob
from tests.faulty_server import FOREVER, Fault
from tests.studies.outages.children import ChildResult, run_in_child
from tests.studies.outages.numbered_faults import NumberedFaults, s3_process
from tests.studies.outages.outcomes import InspectionResult, Outcome, judge
from tests.studies.outages.registries import append_only, make_place, release_first

KINDS: tuple[Fault, ...] = (
    "unavailable", "broken", "reset", "hang", "lost_answer", "truncate", "flip_answer",
    "flip_request",
)  # fmt: skip
NAMES: dict[str, str] = {
    "unavailable": "503", "broken": "500", "reset": "connection reset", "hang": "no answer",
    "lost_answer": "answer lost", "truncate": "truncated answer",
    "flip_answer": "flipped bit in the answer", "flip_request": "flipped bit in the request",
}  # fmt: skip
# An operation gives up after so many seconds here, and after 60 in a release.
PATIENCE_S = 2.0


class S3Bench:
    """A place whose objects are in S3 behind a faulty server."""

    def __init__(self, root: Path, settings: dict[str, str], server: NumberedFaults) -> None:
        """Release version 1 there, and keep that state."""
        self.settings = settings
        self.server = server
        self._bucket = _Bucket(settings)
        self.place = make_place(root, "s3://models/outages")
        self._at_server(lambda: release_first(self.place, is_shown=False))
        self._kept = {key: self._bucket.get(key) for key in self._keys()}

    def __getstate__(self) -> dict[str, Any]:
        """Give a child the place alone: servers and clients are this process' own."""
        return {"place": self.place}

    def restore(self) -> None:
        """Bring bucket and folder back to version 1."""
        self.place.restore()
        for key in self._keys() - {*self._kept}:
            self._bucket.remove(key)
        for key, data in self._kept.items():
            self._bucket.put(key, data)
        self._bucket.abandon()

    def count(self, work: Callable[[], object]) -> int:
        """Return how many requests `work` makes."""
        self.restore()
        self.server.begin()
        ended = self._behind_server(work)
        assert ended.refusal is None, ended
        return self.server.passed

    def inject(
        self, where: str, work: Callable[[], object], fault: Fault, at: int, times: int,
        *, again: Callable[[], object] | None = None,
    ) -> Outcome:  # fmt: skip
        """Do `fault` to the requests of `work` from the `at`-th on, then release, or run `again`.

        Afterwards both versions have to be there, or the first alone where nothing is released.
        """
        self.restore()
        self.server.begin(fault, at, times)
        ended = self._behind_server(work)
        self.server.begin()
        last, versions = (self.release, [1, 2]) if again is None else (again, [1])
        found = self._at_server(lambda: judge(self.place, last, versions)).value
        assert isinstance(found, InspectionResult)
        lost = [*found.lost, *_see_unexpected(ended.refusal)]
        kind = f"{NAMES[fault]}, {'once' if times == 1 else 'for ever'}"
        return Outcome(
            kind, where, "refused" if ended.refusal else "well", str(ended.refusal or ""),
            tuple(found.half), tuple(lost), tuple(found.litter), found.for_collector,
        )  # fmt: skip

    def release(self) -> None:
        """Release version 2."""
        append_only(self.place)

    def pull(self) -> None:
        """Pull version 1 into a new folder, and leave nothing."""
        with tempfile.TemporaryDirectory() as folder:
            to = Path(folder, "pulled")
            stores = self.place.registry.stores
            pull.run(PullJob("toy", 1, to, "auto", stores, torch_version=None))

    def _keys(self) -> set[str]:
        return self._bucket.keys()

    def _behind_server(self, work: Callable[[], object]) -> ChildResult:
        return self._run(work, self.server.url)

    def _at_server(self, work: Callable[[], object]) -> ChildResult:
        return self._run(work, self.settings["AWS_ENDPOINT_URL"])

    def _run(self, work: Callable[[], object], address: str) -> ChildResult:
        settings = {**self.settings, "AWS_ENDPOINT_URL": address}

        def run() -> object:
            be_impatient()
            os.environ.update(settings)
            # To make a client takes longer than all of its requests, and each step makes one.
            client = make_client(PATIENCE_S)
            setattr(s3_bucket, "make_client", lambda _: client)  # noqa: B010
            return work()

        return run_in_child(run)


class _Bucket:
    """The bucket's keys, past every fault."""

    def __init__(self, settings: dict[str, str]) -> None:
        import boto3

        self._client: Any = boto3.session.Session().client(
            "s3", endpoint_url=settings["AWS_ENDPOINT_URL"], region_name="us-east-1",
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip

    def keys(self) -> set[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket="models")
        return {entry["Key"] for page in pages for entry in page.get("Contents", [])}

    def get(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket="models", Key=key)["Body"].read()
        return data

    def put(self, key: str, data: bytes) -> None:
        # With the checksum that the store asks for when it looks whether a key is whole.
        self._client.put_object(Bucket="models", Key=key, Body=data, ChecksumAlgorithm="SHA256")

    def remove(self, key: str) -> None:
        self._client.delete_object(Bucket="models", Key=key)

    def abandon(self) -> None:
        for upload in self._client.list_multipart_uploads(Bucket="models").get("Uploads", []):
            self._client.abort_multipart_upload(
                Bucket="models", Key=upload["Key"], UploadId=upload["UploadId"]
            )


def be_impatient() -> None:
    """Let this process's operations on S3 give up after seconds instead of a minute."""
    openings: tuple[Any, ...] = (open_store, open_releases)
    for opening in openings:
        opening.__kwdefaults__["patience_s"] = PATIENCE_S


@contextmanager
def open_bench(root: Path) -> Iterator[S3Bench]:
    """Give a bench on a new S3 server."""
    with s3_process() as settings, NumberedFaults(settings["AWS_ENDPOINT_URL"]) as server:
        yield S3Bench(root, settings, server)


def inject_everywhere(
    bench: S3Bench, *, every: int = 1, lasting_every: int = 1, kinds: tuple[Fault, ...] = KINDS
) -> Iterator[Outcome]:
    """Do each kind at each request, or at each `every`-th, once; and for ever from fewer on."""
    for where, work in (("release", bench.release), ("pull", bench.pull)):
        count = bench.count(work)
        for fault in kinds:
            for at in range(1, count + 1, every):
                yield bench.inject(where, work, fault, at, 1)
            for at in range(1, count + 1, lasting_every):
                yield bench.inject(where, work, fault, at, FOREVER)


def _see_unexpected(refusal: HandoffError | None) -> list[str]:
    """Say where a refusal is not one of those that a fault of the store may end with."""
    if refusal is None or refusal.exit_code in (5, 6):
        return []
    return [f"refused with exit code {refusal.exit_code}: {refusal}"]
