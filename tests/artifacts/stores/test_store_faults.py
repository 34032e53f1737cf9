"""Whatever happens between here and an S3 server: survived, or refused in a sentence."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.stores import s3, s3_transfer
from handoff.artifacts.stores.objects import Objects, object_key
from handoff.artifacts.stores.s3 import S3Store
from tests.artifacts.stores.store_fixtures import put_file, s3_store, sizes_below
from tests.faulty_server import FAULTS, FOREVER, Fault, FaultyServer

pytestmark = pytest.mark.server

# Moto checks no signature; any other server refuses a request that lacks what was signed.
stripping = pytest.mark.skipif(
    "HANDOFF_TEST_S3" in os.environ, reason="the signature covers the header that is taken away"
)

SMALL = b"head, weights, tail" * 100
# Four parts, of the least that S3 takes.
LARGE_BYTES = (15 << 20) + 12345


@pytest.fixture
def server(
    s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[FaultyServer]:
    """A faulty server in front of S3, which the settings of the environment name."""
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    with FaultyServer(s3_environment["AWS_ENDPOINT_URL"]) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        yield server


@pytest.fixture
def store(server: FaultyServer) -> S3Store:
    """A store that has passed its self-test, so that what is planned meets what is tested."""
    store = s3_store(patience_s=9)
    assert store.guarantees.conditional_writes
    server.log.clear()
    return store


@pytest.fixture(scope="module")
def random_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "model.so"
    path.write_bytes(os.urandom(LARGE_BYTES))
    return path


@pytest.fixture
def large(random_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 15 MiB that is sent in parts and fetched in ranges, which are smaller here.

    `test_a_large_file_that_is_not_what_its_digest_says_is_not_kept` keeps to the real sizes.
    """
    monkeypatch.setattr(s3, "_MULTIPART_BYTES", 15 << 20)
    monkeypatch.setattr(s3, "_RANGE_BYTES", 2 << 20)
    monkeypatch.setattr(s3_transfer, "_PART_BYTES", 5 << 20)
    return random_file


def faults_seen(server: FaultyServer) -> list[Fault]:
    """Return the faults that were really done."""
    return [request.fault for request in server.log if request.fault]


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=stripping) if f == "strip_if_none_match" else f for f in FAULTS],
)
def test_an_entry_is_created_once_through_a_passing_fault(
    server: FaultyServer, store: S3Store, fault: Fault
) -> None:
    server.plan(fault, method="PUT")
    assert store.create("models/toy/ledger/00000001.json", SMALL)
    assert faults_seen(server) == [fault]
    assert store.read("models/toy/ledger/00000001.json", limit=10_000) == SMALL
    assert not store.create("models/toy/ledger/00000001.json", b"another's")
    assert [stored.key for stored in store.keys("")] == ["models/toy/ledger/00000001.json"]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_object_is_kept_and_fetched_through_passing_faults(
    server: FaultyServer, store: S3Store, tmp_path: Path, fault: Fault
) -> None:
    source = tmp_path / "source"
    source.write_bytes(SMALL)
    objects = Objects(store)
    times = 1 if fault == "hang" else 2  # each one takes seconds
    server.plan(fault, times=times, method="PUT")
    digest = put_file(objects, source)
    server.plan(fault, times=times, method="GET")
    (tmp_path / "pulled").mkdir()
    if fault == "flip_answer":
        with pytest.raises(StoreFailed, match="not what its digest says"):
            objects.fetch(digest, tmp_path / "pulled" / "back")
        assert sizes_below(tmp_path / "pulled") == {}
    objects.fetch(digest, tmp_path / "pulled" / "back")
    assert fault in faults_seen(server)
    assert (tmp_path / "pulled" / "back").read_bytes() == SMALL
    assert sizes_below(tmp_path / "pulled") == {"back": len(SMALL)}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_in_parts_is_kept_and_fetched_through_passing_faults(
    server: FaultyServer, tmp_path: Path, large: Path, fault: Fault
) -> None:
    objects = Objects(s3_store(patience_s=9 if fault == "hang" else 30))
    server.plan(fault, method="PUT", path="partNumber=3")
    if fault != "hang":  # one costs three seconds
        server.plan(fault, method="POST")
    digest = put_file(objects, large)
    if fault != "hang":
        server.plan(fault, method="GET", path=object_key(digest))
    objects.fetch(digest, tmp_path / "back")
    assert fault in faults_seen(server)
    assert digest_bytes((tmp_path / "back").read_bytes()) == digest
    assert sizes_below(tmp_path) == {"back": LARGE_BYTES}


@pytest.mark.parametrize("fault", ["unavailable", "reset", "hang", "truncate"])
def test_a_fault_that_does_not_pass_is_told_and_a_second_try_succeeds(
    server: FaultyServer, tmp_path: Path, fault: Fault
) -> None:
    patient = s3_store()
    assert patient.guarantees.conditional_writes
    # It waits a second for an answer, which a busy machine's take now and then: it is asked only
    # for what must fail, and not to find out what the server guarantees.
    store = s3_store(patience_s=1, prefix=patient.bucket.prefix)
    store.guarantees = patient.guarantees
    source = tmp_path / "source"
    source.write_bytes(SMALL)
    digest = digest_bytes(SMALL)
    server.plan(fault, times=FOREVER)
    with pytest.raises(StoreFailed, match=r"again and again for [0-9]+ seconds"):
        Objects(store).fetch(digest, tmp_path / "back")
    if fault != "truncate":  # an answer to a put has no body
        with pytest.raises(StoreFailed, match=r"again and again for [0-9]+ seconds"):
            put_file(Objects(store), source)
        with pytest.raises(StoreFailed, match=r"again and again for [0-9]+ seconds"):
            store.create("entry", SMALL)
    server.clear()
    assert put_file(Objects(patient), source) == digest
    Objects(patient).fetch(digest, tmp_path / "back")
    assert patient.create("entry", SMALL)
    assert sizes_below(tmp_path) == {"source": len(SMALL), "back": len(SMALL)}


def test_an_answer_that_a_key_is_not_there_may_be_damaged_anywhere(server: FaultyServer) -> None:
    store = s3_store(patience_s=30)
    # The longer the key, the further on in the answer's XML is the bit that is flipped.
    for length in range(1, 200, 7):
        server.plan("flip_answer", method="GET", path="k" * length)
        assert store.read("k" * length, 10) is None
    assert faults_seen(server).count("flip_answer") == len(range(1, 200, 7))


def test_a_download_that_broke_off_is_gone_on_from(
    server: FaultyServer, tmp_path: Path, large: Path
) -> None:
    patient = s3_store()
    digest = put_file(Objects(patient), large)
    # Two seconds for each answer, on whatever machine.
    store = s3_store(patience_s=6, prefix=patient.bucket.prefix)
    server.plan("delay", times=4, method="GET", path=object_key(digest))
    server.plan("unavailable", times=FOREVER, method="GET", path=object_key(digest))
    with pytest.raises(StoreFailed, match="503, again and again"):
        Objects(store).fetch(digest, tmp_path / "back")
    assert list(sizes_below(tmp_path).values()) == [4 * s3._RANGE_BYTES]
    server.clear()
    server.log.clear()
    done: list[int] = []
    Objects(patient).fetch(digest, tmp_path / "back", progress=done.append)
    assert done[0] == 4 * s3._RANGE_BYTES
    assert sum(done) == LARGE_BYTES
    left = -(-(LARGE_BYTES - done[0]) // s3._RANGE_BYTES)
    assert len([request for request in server.log if request.method == "GET"]) == left == 4
    assert sizes_below(tmp_path) == {"back": LARGE_BYTES}
    assert digest_bytes((tmp_path / "back").read_bytes()) == digest


def test_bytes_that_are_damaged_at_every_try_are_never_taken_for_kept(
    server: FaultyServer, tmp_path: Path
) -> None:
    store = s3_store()
    assert store.guarantees.conditional_writes
    # It gives up after a second, but waits longer for an answer: what is written or removed behind
    # a failure has to arrive, on a busy machine too.
    store._requests.patience_s = 1
    source = tmp_path / "source"
    source.write_bytes(SMALL)
    server.plan("flip_request", times=FOREVER, method="PUT")
    with pytest.raises(StoreFailed, match="again and again"):
        put_file(Objects(store), source)
    with pytest.raises(StoreFailed, match="again and again"):
        store.create("entry", SMALL)
    server.clear()
    assert store.stat("entry") is None, "a damaged entry would end the ledger"
    assert store.create("entry", SMALL)
    digest = Objects(store).put_bytes(b"undamaged")
    server.plan("flip_answer", times=FOREVER, method="GET")
    with pytest.raises(StoreFailed, match=r"again and again|not what its digest says"):
        Objects(store).read_bytes(digest, limit=100)


def test_an_upload_in_parts_that_fails_leaves_no_part_behind(
    server: FaultyServer, large: Path
) -> None:
    store = s3_store(patience_s=5)
    server.plan("unavailable", times=FOREVER, method="PUT", path="partNumber=2")
    with pytest.raises(StoreFailed, match="can't keep a part of an object"):
        put_file(Objects(store), large)
    assert (
        store.bucket.client.list_multipart_uploads(
            Bucket=store.bucket.name, Prefix=store.bucket.root
        ).get("Uploads", [])
        == []
    )
    assert list(store.keys("")) == []


def test_a_large_file_that_is_not_what_its_digest_says_is_not_kept(
    store: S3Store, tmp_path: Path
) -> None:
    path, size = tmp_path / "model.so", s3._MULTIPART_BYTES + 12345
    path.write_bytes(os.urandom(size))
    with pytest.raises(StoreFailed, match=r"model\.so changed while it was being kept"):
        store.upload("file", path, size, hashlib.sha256(b"another").hexdigest())
    assert list(store.keys("")) == []


@stripping
def test_a_server_that_ignores_conditions_is_found_out(server: FaultyServer) -> None:
    server.plan("strip_if_none_match", times=FOREVER, method="PUT")
    store = s3_store()
    assert not store.guarantees.conditional_writes
    assert list(store.keys("")) == []


@stripping
def test_of_eight_racers_exactly_one_is_told_it_won_where_conditions_are_ignored(
    server: FaultyServer,
) -> None:
    server.plan("strip_if_none_match", times=FOREVER, method="PUT")
    first = s3_store()
    together = Barrier(8)

    def race(number: int) -> bool:
        store = s3_store(prefix=first.bucket.prefix)
        assert not store.guarantees.conditional_writes
        together.wait()
        return store.create("raced", b"racer %d" % number)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(race, range(8)))
    assert sum(answers) == 1
    assert first.read("raced", limit=100) == b"racer %d" % answers.index(True)
    assert not first.create("raced", b"too late")
    assert first.create("raced", b"racer %d" % answers.index(True))
