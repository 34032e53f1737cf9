"""Download an archive over https, whose digest is known before."""

from __future__ import annotations

import base64
import hashlib
import http.client
import netrc
import ssl
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from handoff.artifacts.delivery.uri import ArchiveSource, redacted
from handoff.artifacts.errors import DeliveryUnreachable, DeliveryUnreadable, HandoffError
from handoff.artifacts.waiting import Pauses
from handoff.tasks.fetch.budget import Budget

_PIECE = 1 << 18
_SILENCE_S = 30.0
_PATIENCE_S = 60.0
_FIRST_PAUSE_S = 0.5


def download(source: ArchiveSource, path: Path, budget: Budget) -> None:
    """Write the archive to `path`; raise `DeliveryUnreadable` unless it has the digest.

    A server that is busy or a line that breaks is tried again for a minute. It is never another
    protocol than https, wherever the server sends us.
    """
    pauses = Pauses(_FIRST_PAUSE_S, limit_s=_PATIENCE_S)
    while True:
        try:
            digest = _try(source.url, path, budget)
            break
        except (OSError, http.client.HTTPException) as error:
            if not _may_pass(error) or pauses.are_over:
                raise _unreachable(source.url, error) from None
        pauses.take(budget.left_s())
    if digest != source.digest.hex:
        raise DeliveryUnreadable(
            f"{redacted(source.url)} is not what was announced",
            expected=f"sha256 {source.digest.short}...", got=f"{digest[:12]}...",
            remedy="Announce the archive that is there, or put the announced one there",
        )  # fmt: skip


def _try(url: str, path: Path, budget: Budget) -> str:
    """Download once and return the digest; what is wrong comes through as it is."""
    request = urllib.request.Request(url, headers={"User-Agent": "handoff"})  # noqa: S310 - https
    if authorization := _authorization(url):
        # Not sent along where the server redirects to.
        request.add_unredirected_header("Authorization", authorization)
    hasher = hashlib.sha256()
    size = 0
    timeout_s = min(_SILENCE_S, budget.left_s())
    with _opener().open(request, timeout=timeout_s) as answer, path.open("wb") as target:
        budget.require_room(int(answer.headers.get("Content-Length") or 0))
        while piece := answer.read(_PIECE):
            size += len(piece)
            budget.left_s()
            budget.require_room(size)
            hasher.update(piece)
            target.write(piece)
        # A body with a length that ends early; `read` with a size doesn't tell.
        if answer.length:
            raise http.client.IncompleteRead(b"", answer.length)
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
                f"{redacted(req.full_url)} redirects away from https", expected="https",
                got=redacted(newurl), remedy="Name the archive's address behind https",
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


def _may_pass(error: Exception) -> bool:
    if isinstance(error, HandoffError):
        return False
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 425, 429) or error.code >= 500
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return not isinstance(reason, ssl.SSLCertVerificationError)


def _unreachable(url: str, error: Exception) -> DeliveryUnreachable:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    code = f"HTTP status {error.code} " if isinstance(error, urllib.error.HTTPError) else ""
    return DeliveryUnreachable(
        f"{redacted(url)} can't be downloaded", expected="an archive",
        got=f"{code}{reason}"[:200] or type(error).__name__,
        remedy="Look at the address, at the login in ~/.netrc of whoever fetches, and whether the "
        "server is up; a certificate of one's own is named by SSL_CERT_FILE",
    )  # fmt: skip
