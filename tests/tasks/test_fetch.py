"""Fetching: what arrives is what lies there, whole or not at all, and nothing of it is executed."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.digest import digest_folder
from artifacts.errors import DeliveryUnreachable, DeliveryUnreadable, UsageProblem
from artifacts.fetching import FetchJob, FetchLimits, FetchResult
from tasks import fetch
from tasks.child import ProcessPlan, StepProcess
from tasks.fetching import downloading
from tests.tls_server import TlsServer, body, tls_server

FILES = {
    "delivery.toml": b"format = 1\n",
    "module.py": b"raise SystemExit('executed')\n",
    "__init__.py": b"",
    "state_dict.pt": os.urandom(300_000),
}
SMALL = FetchLimits(size_bytes=1 << 20, files=20, seconds=60)


@pytest.fixture
def delivery(tmp_path: Path) -> Path:
    return write_files(tmp_path / "delivery")


@pytest.fixture
def to(tmp_path: Path) -> Path:
    """Where the delivery goes, in a folder where litter shows."""
    (tmp_path / "fetched").mkdir()
    return tmp_path / "fetched" / "new"


def write_files(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def fetched(uri: str, to: Path, limits: FetchLimits = SMALL) -> FetchResult:
    result = fetch.run(FetchJob(uri, to, limits))
    assert {path.name: path.read_bytes() for path in to.iterdir()} == FILES
    assert (result.folder, result.digest, result.files) == (to, digest_folder(to), len(FILES))
    assert result.size_bytes == sum(map(len, FILES.values()))
    assert list(to.parent.iterdir()) == [to]
    return result


def refused(
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


ALL = tuple(FILES.items())
BELOW = tuple((f"./delivery/{name}", data) for name, data in ALL)
ARCHIVES = {
    "tar": tar_of(*ALL, mode="w"), "tar.gz": tar_of(*ALL), "zip": zip_of(*ALL),
    "tar.gz of a folder": tar_of(*BELOW), "PAX": tar_of(*ALL, pax_headers={"comment": "x" * 5000}),
}  # fmt: skip


# A folder, and archives.


def test_a_folder_is_copied_without_what_python_left_in_it(delivery: Path, to: Path) -> None:
    (delivery / "__pycache__").mkdir()
    (delivery / "__pycache__" / "module.pyc").write_bytes(b"x")
    fetched(str(delivery), to)
    assert stat.S_IMODE((to / "module.py").stat().st_mode) & 0o111 == 0


@pytest.mark.parametrize("form", ARCHIVES)
def test_an_archive_is_unpacked(form: str, tmp_path: Path, to: Path) -> None:
    (tmp_path / "archive").write_bytes(ARCHIVES[form])
    fetched((tmp_path / "archive").as_uri(), to)


def test_a_folder_that_is_there_is_left_alone(delivery: Path, to: Path) -> None:
    to.mkdir()
    (to / "mine").touch()
    with pytest.raises(UsageProblem, match="is there already"):
        fetch.run(FetchJob(str(delivery), to))
    assert [path.name for path in to.iterdir()] == ["mine"]


def test_nothing_and_an_empty_folder_are_refused(tmp_path: Path, to: Path) -> None:
    refused(str(tmp_path / "none"), to, "there is no delivery at")
    (tmp_path / "empty").mkdir()
    refused(str(tmp_path / "empty"), to, "the delivery is empty")


def link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")


def folder_link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize("add", [link, folder_link, pipe])
def test_a_folder_with_anything_but_files_is_refused(
    add: Callable[[Path], None], delivery: Path, to: Path
) -> None:
    add(delivery)
    refused(str(delivery), to, "which is not a plain file")


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        (FetchLimits(size_bytes=200_000), "at most 200000 bytes"),
        (FetchLimits(files=3), "at most 3 files"),
    ],
)
@pytest.mark.parametrize("form", ["folder", "tar.gz", "zip"])
def test_what_is_too_large_is_refused(
    form: str, limits: FetchLimits, match: str, delivery: Path, to: Path
) -> None:
    if form != "folder":
        delivery = delivery.with_name("archive")
        delivery.write_bytes(ARCHIVES[form])
    refused(str(delivery), to, match, limits=limits)


def test_what_takes_too_long_is_given_up(delivery: Path, to: Path) -> None:
    late = FetchLimits(seconds=-1)
    refused(str(delivery), to, "took too long", kind=DeliveryUnreachable, limits=late)


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
    "a cut gzip": (tar_of(*ALL)[:-40], "a whole archive"),
    "a cut zip": (zip_of(*ALL)[:-40], "a whole archive"),
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
    refused(str(tmp_path / "archive"), to, match, kinds, limits)


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


# Over https.


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsServer]:
    (tmp_path / "tls").mkdir()
    with tls_server(tmp_path / "tls") as serving:
        monkeypatch.setenv("SSL_CERT_FILE", str(serving.authority))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(downloading, "_FIRST_PAUSE_S", 0.01)
        yield serving


def archive_at(server: TlsServer, path: str = "/d.tar.gz", form: str = "tar.gz") -> str:
    data = ARCHIVES[form]
    server.answers.setdefault(path, body(data))
    return f"{server.address}{path}#sha256={hashlib.sha256(data).hexdigest()}"


def test_an_archive_behind_https_is_fetched(server: TlsServer, to: Path) -> None:
    fetched(archive_at(server), to)


def test_another_archive_than_the_announced_one_is_refused(server: TlsServer, to: Path) -> None:
    server.answers["/d.tar.gz"] = body(ARCHIVES["tar"])
    refused(archive_at(server), to, "is not what was announced")


def test_a_server_that_nobody_vouches_for_isnt_believed(
    server: TlsServer, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    refused(archive_at(server), to, "certificate verify failed", DeliveryUnreachable)
    assert server.asked == []


def test_a_redirect_is_followed_to_https_alone(server: TlsServer, to: Path) -> None:
    server.answers["/moved"] = body(b"", 302, Location=f"{server.address}/d.tar.gz")
    archive_at(server)
    uri = archive_at(server, "/moved")
    server.answers["/away"] = body(b"", 302, Location="http://127.0.0.1:1/d.tar.gz")
    refused(uri.replace("/moved", "/away"), to, "redirects away from https")
    server.answers["/file"] = body(b"", 302, Location="file:///etc/passwd")
    refused(uri.replace("/moved", "/file"), to, "file:.* is not allowed", DeliveryUnreachable)
    fetched(uri, to)


def test_a_login_comes_from_netrc_and_stays_with_its_host(
    server: TlsServer, tmp_path: Path, to: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    (tmp_path / ".netrc").chmod(0o600)
    server.answers["/moved"] = body(b"", 302, Location=f"{server.address}/d.tar.gz")
    archive_at(server)
    fetched(archive_at(server, "/moved"), to)
    (_, first), (_, second) = server.asked
    assert first["Authorization"] == "Basic bWU6aHVudGVyMg=="
    assert "Authorization" not in second


def test_a_busy_server_and_a_broken_line_are_tried_again(server: TlsServer, to: Path) -> None:
    tries: list[int] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        tries.append(1)
        data = ARCHIVES["tar.gz"]
        if len(tries) == 1:
            body(b"", 503)(request)
        elif len(tries) == 2:
            body(data[: len(data) // 2], Content_Length=str(len(data)))(request)
            request.close_connection = True
        else:
            body(data)(request)

    server.answers["/d.tar.gz"] = answer
    fetched(archive_at(server), to)
    assert len(tries) == 3


def test_what_isnt_there_is_told_at_once(server: TlsServer, to: Path) -> None:
    server.answers["/none"] = body(b"", 404)
    refused(archive_at(server, "/none"), to, "HTTP status 404", DeliveryUnreachable)
    assert len(server.asked) == 1


def test_a_body_that_is_too_large_is_refused_by_its_length_and_by_its_bytes(
    server: TlsServer, to: Path
) -> None:
    server.answers["/long"] = body(b"x", Content_Length=str(1 << 40))
    refused(archive_at(server, "/long"), to, "too large")

    def endless(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        for _ in range(64):
            request.wfile.write(b"\0" * (1 << 16))

    server.answers["/endless"] = endless
    refused(archive_at(server, "/endless"), to, "too large")


# From S3.


@pytest.fixture
def s3(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> object:
    import boto3

    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3")


@pytest.mark.server
def test_a_folder_of_objects_and_an_archive_object_are_fetched(s3: object, to: Path) -> None:
    for name, data in FILES.items():
        s3.put_object(Bucket="models", Key=f"in/toy/{name}", Body=data)  # type: ignore[attr-defined]
    s3.put_object(Bucket="models", Key="in/toy/", Body=b"")  # type: ignore[attr-defined]
    s3.put_object(Bucket="models", Key="in/toy-2/other", Body=b"x")  # type: ignore[attr-defined]
    fetched("s3://models/in/toy", to)
    s3.put_object(Bucket="models", Key="in/d.zip", Body=ARCHIVES["zip"])  # type: ignore[attr-defined]
    (to.parent / "second").mkdir()
    fetched("s3://models/in/d.zip", to.parent / "second" / "new")


@pytest.mark.server
def test_what_isnt_in_s3_or_too_much_is_refused(s3: object, to: Path) -> None:
    refused("s3://models/nothing/here", to, "the delivery is empty")
    refused("s3://no-such-bucket/x", to, "NoSuchBucket|404|can't tell", DeliveryUnreachable)
    for name, data in FILES.items():
        s3.put_object(Bucket="models", Key=f"big/{name}", Body=data)  # type: ignore[attr-defined]
    refused("s3://models/big", to, "at most 2 files", limits=FetchLimits(files=2))
    refused("s3://models/big", to, "at most 100 bytes", limits=FetchLimits(size_bytes=100))
    s3.put_object(Bucket="models", Key="bad/../x", Body=b"x")  # type: ignore[attr-defined]
    refused("s3://models/bad", to, "name that is never written|is empty")


@pytest.mark.server
def test_an_object_that_changes_meanwhile_is_refused(
    s3: object, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from artifacts.stores.s3_reading import S3Place

    s3.put_object(Bucket="models", Key="c/module.py", Body=b"1")  # type: ignore[attr-defined]
    listed = S3Place.objects

    def then_changed(place: S3Place, limit: int) -> object:
        found = listed(place, limit)
        s3.put_object(Bucket="models", Key="c/module.py", Body=b"2")  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(S3Place, "objects", then_changed)
    refused("s3://models/c", to, "changed while it was fetched")


# Out of a git commit: see also test_fetch_git.


# The step's own process.


def test_the_fetching_process_sees_the_credentials_for_it_and_no_others(
    delivery: Path, tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"AWS_SECRET_ACCESS_KEY", "GIT_ASKPASS", "SSH_AUTH_SOCK", "SSL_CERT_FILE"}
    unseen = {"HANDOFF_SIGNING_KEY", "MLFLOW_TRACKING_PASSWORD", "PREFECT_API_AUTH_STRING"}
    for name in seen | unseen:
        monkeypatch.setenv(name, "value")
    process = StepProcess(ProcessPlan("fetch", sees="sources"), tmp_path / "logs" / "fetch.log")
    try:
        result = process.run(FetchJob(str(delivery), to, SMALL), limit_s=60)
        assert isinstance(result, FetchResult)
        assert result.digest == digest_folder(to)
        raw = Path(f"/proc/{process._process.pid}/environ").read_bytes()
    finally:
        process.close()
    names = {entry.partition(b"=")[0].decode() for entry in raw.split(b"\0")}
    assert names & (seen | unseen) == seen
