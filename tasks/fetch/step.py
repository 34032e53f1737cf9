"""Fetch: a delivery from where it lies into a new folder, whole or not at all.

Nothing of what is fetched is executed, and nothing of it is looked at beyond names and sizes: what
it is worth, intake finds out.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import netrc
import os
import ssl
import stat
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from handoff.artifacts.delivery.contract import IGNORED_FOLDER
from handoff.artifacts.delivery.uri import (
    ArchiveSource,
    GitSource,
    LocalSource,
    S3Source,
    parse_delivery_uri,
    redact_uri,
)
from handoff.artifacts.digest import digest_folder
from handoff.artifacts.errors import (
    DeliveryUnreachable,
    DeliveryUnreadable,
    HandoffError,
    UsageProblem,
)
from handoff.artifacts.files.writing import scratch_folder
from handoff.artifacts.stores.s3_reading import S3Location, changed_while_fetched
from handoff.artifacts.waiting import Backoff
from handoff.tasks.fetch.archive import unpack
from handoff.tasks.fetch.budget import Budget, refuse_kind
from handoff.tasks.fetch.git import read_commit
from handoff.tasks.fetch.messages import FetchJob, FetchResult

_CHUNK_BYTES = 1 << 20


def copy_folder(source: Path, folder: Path, budget: Budget) -> None:
    """Copy every regular file below `source` into the new `folder`.

    What Python left beside a delivery's modules is left out. Raises `DeliveryUnreadable` for
    links, pipes and devices, and for a file that grows or shrinks meanwhile.
    """
    folder.mkdir()
    for directory, folders, files, descriptor in os.fwalk(source, follow_symlinks=False):
        relative = Path(directory).relative_to(source)
        folders[:] = sorted(set(folders) - {IGNORED_FOLDER})
        for name in folders:
            mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(mode):
                raise refuse_kind(name, "a link")
            (folder / budget.take_name((relative / name).as_posix(), "folder")).mkdir()
        for name in sorted(files):
            target = folder / budget.take_name((relative / name).as_posix())
            _copy_file(name, descriptor, target, budget)


def copy_file(source: Path, target: Path, budget: Budget) -> None:
    """Copy one regular file; a link to one is followed, since somebody named it."""
    resolved = source.resolve()
    parent = os.open(resolved.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _copy_file(resolved.name, parent, target, budget)
    finally:
        os.close(parent)


def _copy_file(name: str, folder: int, target: Path, budget: Budget) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        source = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise refuse_kind(name, error.strerror or str(error)) from error
    with os.fdopen(source, "rb", buffering=0) as stream, target.open("xb") as copy:
        state = os.fstat(source)
        if not stat.S_ISREG(state.st_mode):
            raise refuse_kind(name, "something else")
        budget.require_room(state.st_size)
        size = 0
        while chunk := stream.read(_CHUNK_BYTES):
            size += len(chunk)
            budget.take_bytes(len(chunk))
            copy.write(chunk)
        if size != state.st_size:
            raise changed_while_fetched(name)


def require_exists(path: Path) -> None:
    """Raise `DeliveryUnreachable` where nothing is: another machine may see it."""
    if not path.exists():
        raise DeliveryUnreachable(
            f"there is no delivery at {path}", expected="a folder or an archive", got="nothing",
            remedy="Is the folder on a disk that the machine that fetches sees, too?",
        )  # fmt: skip


_DOWNLOAD_CHUNK_BYTES = 1 << 18
_SILENCE_S = 30.0
_PATIENCE_S = 60.0
_FIRST_PAUSE_S = 0.5


def download(source: ArchiveSource, path: Path, budget: Budget) -> None:
    """Write the archive to `path`; raise `DeliveryUnreadable` unless it has the digest.

    A server that is busy or a line that breaks is tried again for a minute. It is never another
    protocol than https, wherever the server sends us.
    """
    pauses = Backoff(_FIRST_PAUSE_S, limit_s=_PATIENCE_S)
    while True:
        try:
            digest = _download_once(source.url, path, budget)
            break
        except (OSError, http.client.HTTPException) as error:
            if not _is_transient(error) or pauses.are_over:
                raise _unreachable_error(source.url, error) from None
        pauses.take(budget.remaining_s())
    if digest != source.digest.hex:
        raise DeliveryUnreadable(
            f"{redact_uri(source.url)} is not what was announced",
            expected=f"sha256 {source.digest.short}...", got=f"{digest[:12]}...",
            remedy="Announce the archive that is there, or put the announced one there",
        )  # fmt: skip


def _download_once(url: str, path: Path, budget: Budget) -> str:
    """Download once and return the digest; what is wrong comes through as it is."""
    request = urllib.request.Request(url, headers={"User-Agent": "handoff"})  # noqa: S310 - https
    if authorization := _authorization(url):
        # Not sent along where the server redirects to.
        request.add_unredirected_header("Authorization", authorization)
    hasher = hashlib.sha256()
    size = 0
    timeout_s = min(_SILENCE_S, budget.remaining_s())
    with _opener().open(request, timeout=timeout_s) as response, path.open("wb") as target:
        budget.require_room(int(response.headers.get("Content-Length") or 0))
        while chunk := response.read(_DOWNLOAD_CHUNK_BYTES):
            size += len(chunk)
            budget.remaining_s()
            budget.require_room(size)
            hasher.update(chunk)
            target.write(chunk)
        # A body that ends before its length; `read` with a size doesn't say so.
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
    return hasher.hexdigest()


def _opener() -> urllib.request.OpenerDirector:
    """Return what opens https and nothing else; urllib's own would take ftp and files, too."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _HttpsRedirects(),
    ):
        opener.add_handler(handler)
    return opener


class _HttpsRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, to https alone."""

    max_redirections = 5

    def redirect_request(  # noqa: PLR0917 - urllib's own signature
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str,
        headers: http.client.HTTPMessage, newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        """Return the next request; raise `DeliveryUnreadable` where it leaves https."""
        if urlsplit(newurl).scheme != "https":
            raise DeliveryUnreadable(
                f"{redact_uri(req.full_url)} redirects away from https", expected="https",
                got=redact_uri(newurl), remedy="Name the archive's address behind https",
            )  # fmt: skip
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _authorization(url: str) -> str:
    """Return what ~/.netrc holds for the host; nothing where it holds none."""
    with suppress(OSError, netrc.NetrcParseError):
        entry = netrc.netrc().authenticators(urlsplit(url).hostname or "")
        if entry:
            login, _, password = entry
            return "Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()
    return ""


def _is_transient(error: Exception) -> bool:
    if isinstance(error, HandoffError):
        return False
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 425, 429) or error.code >= 500
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return not isinstance(reason, ssl.SSLCertVerificationError)


def _unreachable_error(url: str, error: Exception) -> DeliveryUnreachable:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    code = f"HTTP status {error.code} " if isinstance(error, urllib.error.HTTPError) else ""
    return DeliveryUnreachable(
        f"{redact_uri(url)} can't be downloaded", expected="an archive",
        got=f"{code}{reason}"[:200] or type(error).__name__,
        remedy="Look at the address, at the login in ~/.netrc of whoever fetches, and whether the "
        "server is up; a certificate of one's own is named by SSL_CERT_FILE",
    )  # fmt: skip


def run(job: FetchJob) -> FetchResult:
    """Write the delivery to `job.folder`; return what came.

    Raises `UsageProblem` for a bad address, `DeliveryUnreachable` for what may come another time,
    and `DeliveryUnreadable` for what never will.
    """
    source = parse_delivery_uri(job.uri)
    if job.folder.exists():
        raise UsageProblem(
            f"{job.folder} is there already", expected="a new folder", got="one with that name",
            remedy="Name another folder",
        )  # fmt: skip
    budget = Budget(job.limits)
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(job.folder.parent, f".{job.folder.name}-") as scratch:
        fetched = _fetch(source, scratch, budget)
        files = [path for path in fetched.rglob("*") if path.is_file()]
        if not files:
            raise DeliveryUnreadable(
                "the delivery is empty", expected="the files of a delivery", got="none",
                remedy="Does the address name the delivery's folder?",
            )  # fmt: skip
        digest = digest_folder(fetched)
        size_bytes = sum(path.stat().st_size for path in files)
        fetched.rename(job.folder)
    return FetchResult(job.folder, digest, len(files), size_bytes)


def _fetch(
    source: LocalSource | S3Source | ArchiveSource | GitSource, scratch: Path, budget: Budget
) -> Path:
    """Bring the delivery into `scratch`, and return its folder there."""
    folder, archive = scratch / "delivery", scratch / "archive"
    match source:
        case LocalSource():
            require_exists(source.path)
            if source.path.is_dir():
                copy_folder(source.path.resolve(), folder, budget)
                return folder
            copy_file(source.path, archive, Budget(budget.limits))
        case S3Source():
            location = S3Location(source.bucket, source.key)
            archive_object = location.find_object()
            if archive_object is None:
                _download_all(location, folder, budget)
                return folder
            # The archive itself, and then what is in it.
            archive_budget = Budget(budget.limits)
            archive_budget.require_room(archive_object.size_bytes)
            location.download(archive_object, archive, archive_budget.check_time)
        case ArchiveSource():
            download(source, archive, budget)
        case GitSource():
            read_commit(source, folder, scratch, budget)
            return folder
    return unpack(archive, folder, budget)


def _download_all(location: S3Location, folder: Path, budget: Budget) -> None:
    objects = location.objects(budget.limits.files)
    folder.mkdir()
    budget.require_room(sum(item.size_bytes for item in objects))
    for item in objects:
        path = folder / budget.take_name(item.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        budget.take_bytes(item.size_bytes)
        location.download(item, path, budget.check_time)
