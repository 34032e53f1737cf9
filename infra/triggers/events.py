"""What a verified request says: the arrivals that GitHub, GitLab, S3 or our own payload tell of."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, unquote_plus

from handoff.artifacts.delivery.contract import CONTRACT_FILE
from handoff.artifacts.delivery.uri import is_plain_path
from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.hooks import Source

_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_RECORDS = 100


class NotUnderstood(Exception):
    """A payload that isn't of the form that its sender documents."""


def arrivals_of(
    source: Source, headers: Mapping[str, str], payload: Any  # noqa: ANN401 - JSON
) -> tuple[Arrival, ...]:  # fmt: skip
    """Return what the request tells of that `source` is for; nothing for other events.

    Raises `NotUnderstood`, and `UsageProblem` for what can't be released.
    """
    if not isinstance(payload, dict):
        raise NotUnderstood
    if source.kind == "github":
        return _github(source, headers.get("x-github-event", ""), payload)
    if source.kind == "gitlab":
        return _gitlab(source, payload)
    if source.kind == "s3":
        return _s3(source, payload)
    return _own(source, payload)


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
        raise NotUnderstood
    if not int(commit, 16):
        return ()
    delivery = source.fill(source.delivery, {"commit": commit})
    return (Arrival(delivery, source.model, address, commit, _shown(by), source.alias),)


def _s3(source: Source, payload: dict[str, Any]) -> tuple[Arrival, ...]:
    """Return the deliveries whose contract was written, which is uploaded last."""
    records = payload.get("Records")
    if not isinstance(records, list) or len(records) > _MOST_RECORDS:
        raise NotUnderstood
    found: dict[str, Arrival] = {}
    for record in records:
        if not isinstance(record, dict):
            raise NotUnderstood
        if "ObjectCreated:" not in str(record.get("eventName", "")):
            continue
        s3 = _table(record, "s3")
        written = _table(s3, "object")
        if _table(s3, "bucket").get("name") != source.bucket:
            continue
        # S3 and MinIO write keys as a form's values.
        folder, _, name = unquote_plus(_text(written, "key")).rpartition("/")
        begins = f"{folder}/".startswith(f"{source.prefix.strip('/')}/".lstrip("/"))
        if name != CONTRACT_FILE or not begins or not is_plain_path(folder):
            continue
        arrival = _written(source, folder, written)
        found[arrival.key] = arrival
    return tuple(found.values())


def _written(source: Source, folder: str, written: dict[str, Any]) -> Arrival:
    values = {"folder": folder, "name": folder.rpartition("/")[2]}
    delivery = source.fill(source.delivery or f"s3://{source.bucket}/{{folder}}", values)
    # One writing of one object: an event that comes twice has the same.
    told = [folder, *(str(written.get(name, "")) for name in ("eTag", "versionId", "sequencer"))]
    content = hashlib.sha256("\0".join(told).encode()).hexdigest()
    model = source.fill(source.model, values)
    return Arrival(delivery, model, "", "", f"{source.bucket}@s3", source.alias, content)


def _own(source: Source, payload: dict[str, Any]) -> tuple[Arrival, ...]:
    """Return what the payload of `handoff notify --json` would ask for."""
    known = {"model", "repository", "commit", "delivery", "by"}
    if not set(payload) <= known or not all(isinstance(one, str) for one in payload.values()):
        raise NotUnderstood
    model = payload.get("model", source.model)
    commit = payload.get("commit", "").lower()
    if source.model and model != source.model:
        raise NotUnderstood
    delivery = payload.get("delivery", "")
    if source.delivery:
        if delivery or ("{commit}" in source.delivery and not _COMMIT.fullmatch(commit)):
            raise NotUnderstood
        if "{model}" in source.delivery and not model:
            raise NotUnderstood
        delivery = source.fill(source.delivery, {"commit": commit, "model": model})
    elif not is_below(delivery, source.deliveries):
        raise NotUnderstood
    by = _shown(payload.get("by", "") or "webhook")
    return (Arrival(delivery, model, payload.get("repository", ""), commit, by, source.alias),)


def is_below(uri: str, beginnings: tuple[str, ...]) -> bool:
    """Tell whether a URI begins with one of `beginnings`, and doesn't climb out of it again."""
    path = unquote(uri.partition("#")[0])
    return ".." not in path and any(uri.startswith(beginning) for beginning in beginnings)


def _table(payload: dict[str, Any], name: str) -> dict[str, Any]:
    found = payload.get(name)
    if not isinstance(found, dict):
        raise NotUnderstood
    return found


def _text(payload: dict[str, Any], name: str) -> str:
    found = payload.get(name)
    if not isinstance(found, str):
        raise NotUnderstood
    return found


def _shown(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:200]
