"""Who sent a request, and what it says: the arrivals that GitHub, GitLab, S3 or our own tell of.

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
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, unquote_plus

from handoff.artifacts.delivery.contract import CONTRACT_FILE
from handoff.artifacts.delivery.uri import is_plain_path
from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.hooks import Kind, Source, SourceWithSecret

TOLERANCE_S = 300.0
_STANDARD_SECRET = "whsec_"  # noqa: S105 - a prefix
_MOST_SIGNATURES = 8


def is_authentic(
    sender: SourceWithSecret, headers: Mapping[str, str], body: bytes, now: float
) -> bool:
    """Return whether the request was made by whoever has the source's secret, and lately.

    `headers` have lower-case names; `now` is in seconds since the epoch.
    """
    secret, kind = sender.secret, sender.source.kind
    if kind == "github":
        expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        return _equals(headers.get("x-hub-signature-256", ""), expected)
    if kind == "s3":
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _equals(token.strip(), secret)
    if kind == "gitlab" and not secret.startswith(_STANDARD_SECRET):
        return _equals(headers.get("x-gitlab-token", ""), secret)
    return _is_standard_signature_valid(secret, headers, body, now)


def replay_key(kind: Kind, headers: Mapping[str, str], body: bytes) -> bytes:
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


def _is_standard_signature_valid(
    secret: str, headers: Mapping[str, str], body: bytes, now: float
) -> bool:
    identifier = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    if not identifier or len(identifier) > 200 or not (timestamp.isascii() and timestamp.isdigit()):
        return False
    if len(timestamp) > 12 or abs(int(timestamp) - now) > TOLERANCE_S:
        return False
    expected = sign(secret, identifier, int(timestamp), body)
    signatures = headers.get("webhook-signature", "").split(" ")[:_MOST_SIGNATURES]
    # Each is looked at, so that the time says nothing of which one fits.
    return sum(_equals(signature, expected) for signature in signatures) > 0


def _key(secret: str) -> bytes:
    if secret.startswith(_STANDARD_SECRET):
        try:
            return base64.b64decode(secret.removeprefix(_STANDARD_SECRET), validate=True)
        except binascii.Error:
            pass
    return secret.encode()


def _equals(received: str, expected: str) -> bool:
    return hmac.compare_digest(received.encode(errors="replace"), expected.encode())


_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_RECORDS = 100


class PayloadInvalid(Exception):
    """A payload that isn't of the form that its sender documents."""


def arrivals_of(
    source: Source, headers: Mapping[str, str], payload: Any  # noqa: ANN401 - JSON
) -> tuple[Arrival, ...]:  # fmt: skip
    """Return what the request tells of that `source` is for; nothing for other events.

    Raises `PayloadInvalid`, and `UsageProblem` for what can't be released.
    """
    if not isinstance(payload, dict):
        raise PayloadInvalid
    if source.kind == "github":
        return _github(source, headers.get("x-github-event", ""), payload)
    if source.kind == "gitlab":
        return _gitlab(source, payload)
    if source.kind == "s3":
        return _s3(source, payload)
    return _handoff(source, payload)


def _github(source: Source, event: str, payload: dict[str, Any]) -> tuple[Arrival, ...]:
    if event != "push":
        return ()
    repository = _table(payload, "repository")
    if repository.get("full_name") != source.repository:
        return ()
    by = f"{_text(_table(payload, 'pusher'), 'name')}@github"
    return _push(source, payload, str(repository.get("html_url", "")), by)


def _gitlab(source: Source, payload: dict[str, Any]) -> tuple[Arrival, ...]:
    if payload.get("object_kind") != "push":
        return ()
    project = _table(payload, "project")
    if project.get("path_with_namespace") != source.repository:
        return ()
    by = f"{_text(payload, 'user_username')}@gitlab"
    return _push(source, payload, str(project.get("web_url", "")), by)


def _push(source: Source, payload: dict[str, Any], address: str, by: str) -> tuple[Arrival, ...]:
    """Return the push of a commit to the source's branch; nothing for others, and deletions."""
    if _text(payload, "ref") != f"refs/heads/{source.branch}":
        return ()
    commit = _text(payload, "after")
    if not _COMMIT.fullmatch(commit):
        raise PayloadInvalid
    if not int(commit, 16):
        return ()
    delivery = source.fill(source.delivery, {"commit": commit})
    return (Arrival(delivery, source.model, address, commit, _printable(by), source.alias),)


def _s3(source: Source, payload: dict[str, Any]) -> tuple[Arrival, ...]:
    """Return the deliveries whose contract was written, which is uploaded last."""
    records = payload.get("Records")
    if not isinstance(records, list) or len(records) > _MOST_RECORDS:
        raise PayloadInvalid
    arrivals: dict[str, Arrival] = {}
    for record in records:
        if not isinstance(record, dict):
            raise PayloadInvalid
        if "ObjectCreated:" not in str(record.get("eventName", "")):
            continue
        s3 = _table(record, "s3")
        entry = _table(s3, "object")
        if _table(s3, "bucket").get("name") != source.bucket:
            continue
        # S3 and MinIO write keys as a form's values.
        folder, _, name = unquote_plus(_text(entry, "key")).rpartition("/")
        begins = f"{folder}/".startswith(f"{source.prefix.strip('/')}/".lstrip("/"))
        if name != CONTRACT_FILE or not begins or not is_plain_path(folder):
            continue
        arrival = _s3_arrival(source, folder, entry)
        arrivals[arrival.key] = arrival
    return tuple(arrivals.values())


def _s3_arrival(source: Source, folder: str, entry: dict[str, Any]) -> Arrival:
    values = {"folder": folder, "name": folder.rpartition("/")[2]}
    delivery = source.fill(source.delivery or f"s3://{source.bucket}/{{folder}}", values)
    # One writing of one object: an event that comes twice has the same.
    fields = [folder, *(str(entry.get(name, "")) for name in ("eTag", "versionId", "sequencer"))]
    content = hashlib.sha256("\0".join(fields).encode()).hexdigest()
    model = source.fill(source.model, values)
    return Arrival(delivery, model, "", "", f"{source.bucket}@s3", source.alias, content)


def _handoff(source: Source, payload: dict[str, Any]) -> tuple[Arrival, ...]:
    """Return what the payload of `handoff notify --json` would ask for."""
    known = {"model", "repository", "commit", "delivery", "by"}
    if not set(payload) <= known or not all(isinstance(one, str) for one in payload.values()):
        raise PayloadInvalid
    model = payload.get("model", source.model)
    commit = payload.get("commit", "").lower()
    if source.model and model != source.model:
        raise PayloadInvalid
    delivery = payload.get("delivery", "")
    if source.delivery:
        if delivery or ("{commit}" in source.delivery and not _COMMIT.fullmatch(commit)):
            raise PayloadInvalid
        if "{model}" in source.delivery and not model:
            raise PayloadInvalid
        delivery = source.fill(source.delivery, {"commit": commit, "model": model})
    elif not is_below(delivery, source.deliveries):
        raise PayloadInvalid
    by = _printable(payload.get("by", "") or "webhook")
    return (Arrival(delivery, model, payload.get("repository", ""), commit, by, source.alias),)


def is_below(uri: str, beginnings: tuple[str, ...]) -> bool:
    """Return whether a URI begins with one of `beginnings`, and doesn't climb out of it again."""
    path = unquote(uri.partition("#")[0])
    return ".." not in path and any(uri.startswith(beginning) for beginning in beginnings)


def _table(payload: dict[str, Any], name: str) -> dict[str, Any]:
    value = payload.get(name)
    if not isinstance(value, dict):
        raise PayloadInvalid
    return value


def _text(payload: dict[str, Any], name: str) -> str:
    value = payload.get(name)
    if not isinstance(value, str):
        raise PayloadInvalid
    return value


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:200]
