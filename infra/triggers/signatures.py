"""Who sent a request: GitHub's HMAC, GitLab's token or signature, a bearer token, our own.

Signatures are compared in constant time. GitLab (with a signing token) and we follow Standard
Webhooks (github.com/standard-webhooks/standard-webhooks, spec v1): HMAC-SHA256 over id, timestamp
and body. GitHub signs the body alone, and GitLab's older token and S3's bearer token sign nothing:
TLS has to keep those.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping

from handoff.infra.triggers.hooks import Guarded, Kind

TOLERANCE_S = 300.0
_STANDARD_SECRET = "whsec_"  # noqa: S105 - a prefix
_MOST_SIGNATURES = 8


def fits(guarded: Guarded, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Tell whether the request was made by whoever has the source's secret, and lately.

    `headers` have lower-case names; `now` is in seconds since the epoch.
    """
    secret, kind = guarded.secret, guarded.source.kind
    if kind == "github":
        expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return _same(headers.get("x-hub-signature-256", ""), expected)
    if kind == "s3":
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _same(token.strip(), secret)
    if kind == "gitlab" and not secret.startswith(_STANDARD_SECRET):
        return _same(headers.get("x-gitlab-token", ""), secret)
    return _fits_standard(secret, headers, body, now)


def mark(kind: Kind, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return what a replay of the request would have in common with it: what is signed.

    The ids that GitHub and GitLab's older way send are not, so that a replay may have others.
    """
    signed = headers.get("webhook-id", "") if "webhook-signature" in headers else ""
    return hashlib.sha256(f"{kind}\0{signed}\0".encode() + body).digest()


def sign(secret: str, identifier: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` of Standard Webhooks, version 1."""
    content = f"{identifier}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), content, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _fits_standard(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> bool:
    identifier = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    if not identifier or len(identifier) > 200 or not (timestamp.isascii() and timestamp.isdigit()):
        return False
    if len(timestamp) > 12 or abs(int(timestamp) - now) > TOLERANCE_S:
        return False
    expected = sign(secret, identifier, int(timestamp), body)
    given = headers.get("webhook-signature", "").split(" ")[:_MOST_SIGNATURES]
    # Each is looked at, so that the time says nothing of which one fits.
    return sum(_same(one, expected) for one in given) > 0


def _key(secret: str) -> bytes:
    if secret.startswith(_STANDARD_SECRET):
        try:
            return base64.b64decode(secret.removeprefix(_STANDARD_SECRET), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
