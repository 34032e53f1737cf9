"""Draft: a model's next ledger entry, from the state that the ledger has now."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import PromotionRefused, RegistryFailed, UsageProblem, did_you_mean
from handoff.artifacts.release.copies import publish
from handoff.artifacts.release.difference import refused_requests
from handoff.artifacts.release.ledger import PRODUCTION, Action, LedgerEntry, Pointer
from handoff.artifacts.release.manifest import MANIFEST_LIMIT_BYTES, Manifest, parse_manifest
from handoff.artifacts.release.releases import LedgerHead, Releases, open_releases
from handoff.tasks.registry.changes import (
    TRIAL_ALIAS,
    TRIAL_ALIASES,
    Draft,
    DraftJob,
    PromoteRequest,
    ReleaseRequest,
    RetireRequest,
    RollBackRequest,
)
from handoff.tasks.registry.promotion import broken_rules, describe_hardware_not_run

_UNSIGNED = Digest("sha256:" + "0" * 64)


@dataclass(frozen=True)
class _Version:
    """The version that an entry is about: where it stands, its record, what it was made from."""

    pointer: Pointer
    manifest: Digest
    fingerprint: Digest


def run(job: DraftJob) -> Draft:
    """Return the entry that does what is asked for, or none where it is so already.

    Raises `PromotionRefused` for a version that may not be promoted, `RegistryFailed` for one that
    isn't there and where another has moved the alias since the first draft, `UsageProblem` for
    what can't be asked for, `PackageRefused` for what isn't signed as it should be, and
    `StoreUnreachable` for a store that has lost all that this machine has seen in it.
    """
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    # A ledger that is begun in a folder that isn't mounted would be gone as soon as it is.
    releases.require_ledgers()
    match job.request:
        case ReleaseRequest():
            return _release(releases, job, job.request)
        case PromoteRequest():
            return _promote(releases, job, job.request)
        case RollBackRequest():
            return _roll_back(releases, job, job.request)
        case RetireRequest():
            return _retire(releases, job, job.request)


def require_free_alias(head: LedgerEntry | None, alias: str) -> None:
    """Raise `UsageProblem` where a release may not move `alias`: it is for whoever promotes."""
    current = head.aliases.get(alias) if head else None
    is_moved_by_hand = current is not None and current.action != "release"
    if alias in TRIAL_ALIASES or not (alias == PRODUCTION or is_moved_by_hand):
        return
    raise UsageProblem(
        f"a release can't move the alias {alias}",
        expected="an alias that only releases move, such as candidate", got=alias,
        remedy=f"Leave --alias out, and 'handoff promote NAME@candidate --to {alias}' afterwards",
    )  # fmt: skip


def _release(releases: Releases, job: DraftJob, request: ReleaseRequest) -> Draft:
    data = releases.objects.read_bytes(request.manifest, MANIFEST_LIMIT_BYTES)
    _require_trial_alias(parse_manifest(data), request.alias)
    head, known = _find_earlier_version(releases, request)
    require_free_alias(head.entry if head else None, request.alias)
    if known is None or head is None or not releases.is_complete(request.model, known):
        # The signer puts in the digest of what it signs.
        pointer = Pointer(head.entry.newest + 1 if head else 1, _UNSIGNED, "release", 0)
        new_version = _Version(pointer, request.manifest, request.fingerprint)
        return Draft(_next_entry(head, job, "release", new_version, request.alias))
    current = head.entry.aliases.get(request.alias)
    if current is not None and current.version == known.version:
        return _no_change(head, known.version)
    version = _released_version(releases, request.model, known)
    return Draft(_next_entry(head, job, "release", version, request.alias), known.version)


def _find_earlier_version(
    releases: Releases, request: ReleaseRequest
) -> tuple[LedgerHead | None, Pointer | None]:
    """Return the ledger's newest entry, and which version up to it was made from the same.

    What another appends after the copies were published isn't found by them: looked for again, or
    one delivery that two release at once would become two versions.
    """
    while True:
        published = publish(releases, request.model)
        known = (
            None
            if request.rebuild
            else releases.find_by_fingerprint(request.model, request.fingerprint)
        )
        head = releases.head(request.model)
        if head == published:
            return head, known


def _promote(releases: Releases, job: DraftJob, request: PromoteRequest) -> Draft:
    head = releases.require_head(request.model)
    target = releases.find(request.model, request.reference)
    current = head.entry.aliases.get(request.alias)
    _require_unmoved(releases, job, request.alias, head)
    if current is not None and current.version == target.version:
        return _no_change(head, current.version)
    manifest = releases.read(request.model, target).manifest
    _require_trial_alias(manifest, request.alias)
    replaced = releases.read(request.model, current).manifest if current else None
    broken = broken_rules(manifest, replaced, request.measured)
    if broken and not request.override:
        raise PromotionRefused(
            f"{request.model} version {target.version} is not promoted to {request.alias}",
            expected="a version as accurate and as fast as the one it replaces",
            got="; ".join(broken),
            remedy="Nothing was moved. --override with a --reason promotes it anyway, and the "
            "ledger keeps both",
        )
    lost = refused_requests(replaced.signature, manifest.signature) if replaced else ()
    if lost and not request.narrower:
        raise PromotionRefused(
            f"{request.model} version {target.version} is not promoted to {request.alias}",
            expected="a version that accepts every request that the one it replaces accepts",
            got=f"one that refuses {'; '.join(lost)}",
            remedy="Nothing was moved. --narrower promotes it anyway; if the narrower range wasn't "
            "meant, declare the right one in the delivery and release it again",
        )
    version = _released_version(releases, request.model, target)
    entry = _next_entry(head, job, "promote", version, request.alias)
    measured = (*map(str, request.measured), *describe_hardware_not_run(manifest))
    overrides = (*broken, *(f"narrower: it refuses {phrase}" for phrase in lost))
    return Draft(replace(entry, overrides=overrides, measured=measured), target.version)


def _roll_back(releases: Releases, job: DraftJob, request: RollBackRequest) -> Draft:
    entries = releases.entries(request.model)
    head = releases.require_head(request.model)
    _require_unmoved(releases, job, request.alias, head)
    if request.alias not in head.entry.aliases:
        raise releases.not_registered_error(request.model, request.alias)
    stack = [v for v in alias_history(entries, request.alias) if v not in head.entry.retired]
    earlier = [version for version in stack[:-1] if version != (stack[-1] if stack else 0)]
    number = request.version or (earlier[-1] if earlier else None)
    if number is None or number not in stack:
        known = ", ".join(map(str, earlier)) or "none"
        raise RegistryFailed(
            f"{request.alias} of {request.model} can't be rolled back"
            + (f" to {number}" if number else ""),
            expected="a version that it pointed to before the one it points to now", got=known,
            remedy=f"'handoff promote {request.model}@VERSION --to {request.alias}' moves it to "
            f"any other, a later one too; 'handoff history {request.model}' lists them",
        )  # fmt: skip
    if stack[-1] == number:
        return _no_change(head, number)
    pointer = releases.find(request.model, number)
    # What is served next has to be there, and signed, before the alias goes to it.
    releases.read(request.model, pointer)
    version = _released_version(releases, request.model, pointer)
    return Draft(_next_entry(head, job, "rollback", version, request.alias), number)


def _retire(releases: Releases, job: DraftJob, request: RetireRequest) -> Draft:
    head = releases.require_head(request.model)
    if request.version in head.entry.retired:
        return _no_change(head, request.version)
    target = releases.find(request.model, request.version)
    aliases = head.entry.aliases_of(target.version)
    if aliases:
        raise UsageProblem(
            f"{request.model} version {request.version} can't be retired",
            expected="a version that no alias points to", got=", ".join(aliases),
            remedy="Move that alias first, with 'handoff promote' or 'handoff rollback'",
        )  # fmt: skip
    entry = _next_entry(head, job, "retire", _released_version(releases, request.model, target), "")
    retired = tuple(sorted({*entry.retired, target.version}))
    return Draft(replace(entry, retired=retired), target.version)


def alias_history(entries: Sequence[LedgerEntry], alias: str) -> list[int]:
    """Return the versions that an alias pointed to and could go back to, the present one last.

    A roll back takes away what it went back over, as an undo does.
    """
    versions: list[int] = []
    for entry in entries:
        if entry.alias != alias:
            continue
        if entry.action == "rollback" and entry.version in versions:
            while versions[-1] != entry.version:
                versions.pop()
        else:
            versions.append(entry.version)
    return versions


def _no_change(head: LedgerHead, version: int) -> Draft:
    """Return the answer where all is as it was asked for."""
    return Draft(None, version, head.entry.aliases_of(version))


# What a model's first aliases are called.
_USUAL_ALIASES = ("production", "candidate")


def require_intended_alias(
    model: str, alias: str, aliases: Collection[str], otherwise: str
) -> None:
    """Raise `UsageProblem` for an alias that isn't there, where one like it is, or is usual.

    `production-eu` beside `production` is an alias of its own; `prod` may well be a mistake.
    `otherwise` says how to have it where it isn't one.
    """
    known = sorted({*aliases, *_USUAL_ALIASES})
    if alias in known or any(alias.startswith(f"{one}-") for one in known):
        return
    shortened = [f"Did you mean {one}?" for one in known if one.startswith(alias)]
    meant = did_you_mean(alias, known, next(iter(shortened), ""))
    if meant:
        raise UsageProblem(
            f"{model} has no alias {alias}, and one that is like it",
            expected=f"an alias that is there ({', '.join(aliases) or 'none yet'}), or a new one "
            "on purpose",
            got=alias, remedy=f"{meant} {otherwise}",
        )  # fmt: skip


def _require_trial_alias(manifest: Manifest, alias: str) -> None:
    unverified = [target.slug for target in manifest.targets if target.unverified]
    if unverified and alias not in TRIAL_ALIASES:
        raise PromotionRefused(
            f"the alias {alias} can't be set on this release",
            expected=f"{TRIAL_ALIAS}, as long as {', '.join(unverified)} is not yet verified",
            got=alias, remedy="Verify the package on its GPU before it gets another alias",
        )  # fmt: skip


def _require_unmoved(releases: Releases, job: DraftJob, alias: str, head: LedgerHead) -> None:
    """Raise `RegistryFailed` where the alias isn't any more what it was expected to be."""
    current = head.entry.aliases.get(alias)
    current_version = current.version if current else None
    if not (job.attempt or job.is_conditional) or current_version == job.expected:
        return
    model = head.entry.model
    mover = releases.entry(model, current.entry) if current else head.entry
    raise RegistryFailed(
        f"{alias} of {model} was moved by another meanwhile",
        expected=f"{alias} at {_format_version(job.expected)}",
        got=f"{_format_version(current_version)}, put there by {mover.by} at {mover.at}",
        remedy=f"Nothing was moved by this command. Look at 'handoff history {model}', then decide",
    )


def _format_version(version: int | None) -> str:
    return f"version {version}" if version else "no version"


def _released_version(releases: Releases, model: str, pointer: Pointer) -> _Version:
    entry = releases.release_entry(model, pointer.version)
    return _Version(pointer, entry.manifest, entry.fingerprint)


def _next_entry(
    head: LedgerHead | None, job: DraftJob, action: Action, version: _Version, alias: str
) -> LedgerEntry:
    before = head.entry if head else None
    sequence = before.sequence + 1 if before else 1
    number, release = version.pointer.version, version.pointer.release
    aliases = dict(before.aliases) if before else {}
    current = aliases.get(alias)
    if alias:
        aliases[alias] = Pointer(number, release, action, sequence)
    return LedgerEntry(
        model=job.request.model,
        sequence=sequence,
        previous=head.digest if head else "",
        action=action,
        version=number,
        release=release,
        manifest=version.manifest,
        fingerprint=version.fingerprint,
        alias=alias,
        replaced=current.version if current else None,
        aliases=aliases,
        newest=max(number, before.newest if before else 0),
        by=job.author.by,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        nonce=uuid.uuid4().hex,
        reason=job.author.reason,
        run=job.author.run,
        retired=before.retired if before else (),
    )
