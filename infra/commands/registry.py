"""What the commands do that read the registry: list, show, history, diff, pull; and their pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from handoff.artifacts.delivery.contract import require_alias_name, require_model_name
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.night import read_nights
from handoff.artifacts.recipe.compatibility import installed_torch
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.difference import (
    compare_deliveries,
    delivery_digests,
    differences,
)
from handoff.artifacts.release.ledger import LedgerEntry, Pointer
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.releases import Releases, SignedRelease, open_releases
from handoff.infra.cli.group import is_quiet
from handoff.infra.home import absolute_path
from handoff.infra.settings import Settings, read_settings
from handoff.infra.terminal.console import format_time, print_json, print_table, show_transfer
from handoff.infra.terminal.output import echo
from handoff.infra.terminal.release_view import print_release, release_object
from handoff.tasks.registry.messages import Layout, PullJob, RestoreJob

_BEGINS = "<!doctype html>"
# A version by its name, with its record and its delivery's digests.
_Version = tuple[str, Manifest, Mapping[str, str]]
# A page of more is neither read nor fetched in a moment.
_VERSIONS_SHOWN = 60
_NIGHTS_SHOWN = 60


def write_difference(page: Path, before: _Version, after: _Version) -> None:
    """Write a page of what differs between two versions, each with its name and its delivery."""
    from handoff.tasks.report.versions_page import NamedVersion, render_difference

    _write_page(page, render_difference(NamedVersion(*before), NamedVersion(*after)))


def write_history(page: Path, releases: Releases, entries: tuple[LedgerEntry, ...]) -> None:
    """Write a page of a model over time; `entries` are its ledger's, oldest first."""
    from handoff.tasks.report.versions_page import render_history

    model, kept = entries[-1].model, entries[-1].kept[-_VERSIONS_SHOWN:]
    versions = {
        version: releases.read(model, releases.find(model, version)).manifest for version in kept
    }
    nights = read_nights(releases.store, _NIGHTS_SHOWN)
    _write_page(page, render_history(model, entries, versions, nights))


def _write_page(page: Path, text: str) -> None:
    path = absolute_path(page)
    try:
        is_another = path.exists() and not path.read_bytes()[:100].startswith(_BEGINS.encode())
        if not is_another:
            write_atomically(path, text, mode=0o644)
    except OSError as error:
        raise UsageProblem(
            f"the page can't be written to {page}", expected="a file in a folder that is there",
            got=error.strerror or str(error), remedy="Name another file with --html",
        ) from error  # fmt: skip
    if is_another:
        raise UsageProblem(
            f"{page} is there already", expected="a new file, or an earlier page",
            got="a file that is no page", remedy="Name another file with --html; it was left alone",
        )  # fmt: skip
    echo(f"The page is in {page}")


def releases_of(settings: Settings, *, patience_s: float = 60.0) -> Releases:
    """Return the releases in the store that the settings name.

    A request to S3 is tried again for `patience_s` seconds when what is wrong may pass.
    """
    stores = settings.stores
    return open_releases(stores.objects, stores.trusted, stores.seen, patience_s=patience_s)


def list_registered(*, as_json: bool) -> None:
    """Print the newest version of every model, and what its aliases point to."""
    releases = releases_of(read_settings())
    models = []
    for model in releases.models():
        head = releases.require_head(model).entry
        newest = releases.read(model, releases.find(model, None)) if head.kept else None
        models.append((head, newest))
    if as_json:
        print_json({"models": [_model_object(head, release) for head, release in models]})
        return
    if not models:
        location = releases.store.location
        echo(f"Nothing is registered in {location} yet. 'handoff release DELIVERY' does it")
        return
    columns = ("model", "newest", "delivery", "targets", "released", "aliases")
    rows = [(head.model, *_row(release), _format_aliases(head)) for head, release in models]
    print_table("", columns, rows)


def _format_aliases(head: LedgerEntry) -> str:
    return " ".join(
        f"@{alias} {pointer.version}" for alias, pointer in sorted(head.aliases.items())
    )


def _row(newest: SignedRelease | None) -> tuple[str, ...]:
    if newest is None:
        return ("all retired", "-", "-", "-")
    manifest = newest.manifest
    targets = " ".join(target.slug for target in manifest.targets)
    return (str(newest.claim.version), manifest.verdict, targets, format_time(manifest.created))


def _model_object(head: LedgerEntry, newest: SignedRelease | None) -> dict[str, object]:
    """Return a model as JSON: `aliases` of its newest version, `pointers` of all its aliases."""
    common: dict[str, object] = {
        "name": head.model,
        "pointers": {alias: pointer.version for alias, pointer in head.aliases.items()},
    }
    if newest is None:
        return {**common, "version": None, "aliases": []}
    return {
        **common,
        "version": newest.claim.version,
        "aliases": list(head.aliases_of(newest.claim.version)),
        "verdict": newest.manifest.verdict,
        "targets": [target.slug for target in newest.manifest.targets],
        "created": newest.manifest.created,
        "manifest": str(newest.claim.manifest),
    }


def show_version(reference: str, *, as_json: bool) -> None:
    """Print one version of a model."""
    releases = releases_of(read_settings())
    name, selector = parse_reference(reference)
    pointer = resolve_pointer(releases, name, selector)
    release = releases.read(name, pointer)
    aliases = releases.require_head(name).entry.aliases_of(pointer.version)
    version, report = pointer.version, releases.report(name, pointer.version)
    if not as_json:
        print_release(release.manifest, version=version, aliases=aliases, report=report)
        return
    print_json(release_object(release.manifest, version=version, aliases=aliases, report=report))


def show_history(name: str, page: Path | None, *, as_json: bool) -> None:
    """Print a model's ledger, whose every entry is verified, newest first; or write its `page`."""
    releases = releases_of(read_settings())
    model, _ = parse_reference(name)
    entries = releases.entries(model)
    if not entries:
        raise releases.not_registered_error(model, None)
    if page:
        write_history(page, releases, tuple(entries))
        return
    if as_json:
        print_json({"model": model, "entries": [to_plain(entry) for entry in entries]})
        return
    columns = ("entry", "when", "who", "what", "why")
    rows = [
        (
            str(entry.sequence),
            format_time(entry.at),
            entry.by,
            _describe_entry(entry),
            "; ".join(filter(None, [entry.reason, *(f"set aside: {o}" for o in entry.overrides)])),
        )
        for entry in reversed(entries)
    ]
    print_table(f"{model}: {len(entries)} entries, each signed, none missing", columns, rows)


def _describe_entry(entry: LedgerEntry) -> str:
    if entry.action == "retire":
        return f"version {entry.version} retired"
    was = f" (was {entry.replaced})" if entry.replaced else ""
    if entry.action == "rollback":
        return f"rolled back to version {entry.version}: @{entry.alias}{was}"
    what = {"release": "released", "promote": "promoted"}
    return f"version {entry.version} {what[entry.action]}: @{entry.alias}{was}"


def pull_release(
    reference: str, folder: Path | None, target: str, layout: Layout, *, as_json: bool
) -> None:
    """Fetch the package of a release that fits this machine into `folder`; only verify without."""
    from handoff.tasks.registry.pull import run as pull

    settings = read_settings()
    name, selector = parse_reference(reference)
    to = absolute_path(folder) if folder else None
    job = PullJob(name, selector, to, target, settings.stores, installed_torch(), layout)
    with show_transfer() as progress:
        result = pull(job, progress)
    _print_choice(result.chosen)
    if as_json:
        print_json(to_plain(result))
        return
    if is_quiet():
        echo(f"{result.model}@{result.version}")
        return
    released = f"{result.model} version {result.version}: {result.target}"
    where = f"in {result.folder}" if result.folder else "verified in the store, nothing was kept"
    echo(f"{released} {where}")


def pull_delivery(reference: str, folder: Path, *, as_json: bool) -> None:
    """Fetch the delivery that a version was made from into `folder`."""
    from handoff.tasks.registry.pull import restore

    settings = read_settings()
    name, selector = parse_reference(reference)
    version = resolve_pointer(releases_of(settings), name, selector).version
    result = restore(RestoreJob(settings.stores, name, version, absolute_path(folder)))
    if as_json:
        print_json({"model": name, "version": version, **to_plain(result)})
        return
    echo(f"{name} version {version}: its delivery {result.digest.short} in {result.folder}")


def resolve_pointer(releases: Releases, name: str, selector: str | int | None) -> Pointer:
    """Return the version that is wanted; of a name alone say which one it is, and why."""
    pointer, why = releases.choose(name, selector)
    _print_choice(why)
    return pointer


def _print_choice(why: str) -> None:
    # On standard error, so that JSON stays JSON.
    if why and not is_quiet():
        echo(f"handoff: {why}", err=True)


def parse_reference(text: str) -> tuple[str, str | int | None]:
    """Return the name and the alias or version in `NAME`, `NAME@ALIAS` or `NAME@VERSION`.

    What stands for an alias may be the beginning of a record's digest, as reports name a version.
    """
    name, separator, reference = text.partition("@")
    if not name or (separator and not reference):
        raise UsageProblem(
            "that names no version of a model", expected="NAME, NAME@ALIAS or NAME@VERSION",
            got=text[:80], remedy="See 'handoff list' for what there is",
        )  # fmt: skip
    try:
        require_model_name(name)
    except ValueError as error:
        raise UsageProblem(
            "that is no model's name", expected="a name as 'handoff list' shows it",
            got=name[:80], remedy=str(error).capitalize(),
        ) from error  # fmt: skip
    if not separator:
        return name, None
    return name, int(reference) if re.fullmatch(r"[0-9]{1,9}", reference) else reference


def parse_version(text: str) -> tuple[str, str | int]:
    """Return the name and the alias or version in `NAME@ALIAS` or `NAME@VERSION`.

    Raises `UsageProblem` for a name alone: what changes something is about one that was chosen.
    """
    name, selector = parse_reference(text)
    if selector is None:
        raise UsageProblem(
            f"that doesn't say which version of {name} is to be promoted",
            expected="NAME@VERSION or NAME@ALIAS", got=text[:80],
            remedy=f"Name one that somebody has looked at, such as {name}@candidate; "
            f"'handoff history {name}' shows what there is",
        )  # fmt: skip
    return name, selector


def require_alias(alias: str) -> None:
    """Raise `UsageProblem` unless `alias` can be one."""
    try:
        require_alias_name(alias)
    except ValueError as error:
        raise UsageProblem(
            "that alias can't be set", expected="a name such as candidate or production",
            got=alias[:60], remedy=str(error).capitalize(),
        ) from error  # fmt: skip


def show_difference(before: str, after: str, page: Path | None, *, as_json: bool) -> None:
    """Print what differs between the versions that `before` and `after` name, or write a page."""
    releases = releases_of(read_settings())
    pointers = []
    for reference in (before, after):
        name, selector = parse_reference(reference)
        pointers.append((name, resolve_pointer(releases, name, selector)))
    signed = [releases.read(name, pointer) for name, pointer in pointers]
    manifests = [release.manifest for release in signed]
    deliveries = [
        delivery_digests(releases.delivery_parts(release.claim), releases.objects.read_bytes)
        for release in signed
    ]
    names = [f"{name}@{pointer.version}" for name, pointer in pointers]
    if page:
        write_difference(page, *zip(names, manifests, deliveries, strict=True))
        return
    changes = (*compare_deliveries(*deliveries), *differences(*manifests))
    if as_json:
        print_json({"before": names[0], "after": names[1], "changes": to_plain(changes)})
        return
    if not changes:
        echo(f"{names[0]} and {names[1]} differ in nothing but when they were made")
        return
    rows = [
        (change.section, change.name, change.before or "-", change.after or "-")
        for change in changes
    ]
    print_table("", ("", "", *names), rows)


def parse_alias(text: str) -> tuple[str, str]:
    """Return the name and the alias in `NAME@ALIAS`; raise `UsageProblem` for anything else."""
    name, selector = parse_reference(text)
    if not isinstance(selector, str):
        raise UsageProblem(
            "that names no alias that could be followed", expected="NAME@ALIAS", got=text[:80],
            remedy=f"Name one, such as {name}@production; a version stays what it is: "
            "handoff.load opens one that was pulled",
        )  # fmt: skip
    require_alias(selector)
    return name, selector
