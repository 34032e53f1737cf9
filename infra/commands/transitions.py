"""What changes the registry without a release: promote, rollback, retire, sync, gc."""

from __future__ import annotations

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.host import HostSettings
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.interval import size
from handoff.artifacts.release.ledger import LedgerEntry
from handoff.infra.commands.registry import (
    parse_reference,
    parse_version,
    releases_of,
    require_alias,
)
from handoff.infra.settings import (
    author_name,
    read_host_settings,
    read_settings,
    require_writable_home,
)
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo
from handoff.tasks.registry.append import AppendResult
from handoff.tasks.registry.changes import Author, Request, RetireRequest, RollBackRequest
from handoff.tasks.registry.messages import CatalogueJob, CollectJob
from handoff.tasks.registry.transitions import (
    Promotion,
    change_ledger,
    open_registrar,
)
from handoff.tasks.registry.transitions import promote as promote_version


def promote(
    reference: str,
    alias: str,
    *,
    reason: str,
    override: bool,
    narrower: bool,
    new_alias: bool,
    expected: int | None,
    as_json: bool,
) -> None:
    """Make `alias` stand for a version, where the rules of a promotion let it.

    `expected` is the version that it has to stand for now, 0 for none; None asks for nothing.
    Raises `UsageProblem` for a reference that names no version.
    """
    name, selector = parse_version(reference)
    require_alias(alias)
    promotion = Promotion(name, selector, alias, override, expected, narrower, new_alias)
    appended = promote_version(_writable_host(), promotion, _author(reason))
    _print_change(name, appended, f"{alias} points to version {appended.version}", as_json=as_json)


def roll_back(
    reference: str, alias: str, version: int | None, reason: str, *, as_json: bool
) -> None:
    """Make `alias` stand for what it stood for before."""
    name, _ = parse_reference(reference)
    appended = _change(RollBackRequest(name, alias, version), reason)
    _print_change(name, appended, f"{alias} points to version {appended.version}", as_json=as_json)


def retire(reference: str, reason: str, *, as_json: bool) -> None:
    """Give up a version, so that the garbage collector may remove its packages."""
    name, version = parse_reference(reference)
    if not isinstance(version, int):
        raise UsageProblem(
            "a version is retired by its number", expected="NAME@VERSION", got=reference[:80],
            remedy="See 'handoff history NAME'",
        )  # fmt: skip
    appended = _change(RetireRequest(name, version), reason)
    _print_change(name, appended, f"version {version} is retired", as_json=as_json)


def sync(reference: str, *, as_json: bool) -> None:
    """Show in MLflow, and in the store's copies for people, what the ledgers say."""
    host = _writable_host()
    if reference:
        models: tuple[str, ...] = (parse_reference(reference)[0],)
    else:
        models = releases_of(read_settings()).models()
    with open_registrar(host) as (registrar, _):
        results = {
            model: registrar.run(CatalogueJob(host.stores, model, repairs=True))
            for model in models
        }  # fmt: skip
    repaired = {
        model: list(result.repaired) for model, result in results.items() if result.repaired
    }
    if as_json:
        aliases = {
            model: list(result.put_back) for model, result in results.items() if result.put_back
        }
        print_json({"models": list(models), "repaired": repaired, "put_back": aliases})
        return
    for model, versions in repaired.items():
        numbers = ", ".join(map(str, versions))
        echo(f"{model}: MLflow had lost files of version {numbers}, which were uploaded again")
    for model, result in results.items():
        for change in result.put_back:
            echo(f"{model}: {change} in MLflow now, as the ledger says")
        for alias in result.foreign:
            echo(f"{model}: @{alias} is MLflow's alone; the ledger has no such alias")
    echo(f"MLflow and the store's copies show what the ledgers say: {', '.join(models)}")


def collect_garbage(grace_h: float, *, pretend: bool, as_json: bool) -> None:
    """Remove what no version needs from the store."""
    host = read_host_settings(read_settings())
    with open_registrar(host) as (registrar, _):
        job = CollectJob(host.stores, grace_h, pretend)
        collected = registrar.run(job)
    if as_json:
        print_json(to_plain(collected))
        return
    would = "would be removed" if pretend else "removed"
    echo(f"{collected.removed} objects {would} ({size(collected.removed_bytes)})")
    needed = f"{collected.kept} are needed ({size(collected.kept_bytes)})"
    echo(f"{needed}, {collected.spared} are too new")
    if collected.abandoned:
        echo(f"{collected.abandoned} uploads that never ended were given up")


def _format_new_alias(entry: LedgerEntry) -> str:
    """Return that the entry's alias is a new one, and which others there are; '' where none is."""
    if entry.action != "promote":
        return ""
    others = ", ".join(sorted(set(entry.aliases) - {entry.alias}))
    return f" (a new alias; existing: {others})" if others else " (a new alias)"


def _change(request: Request, reason: str) -> AppendResult:
    return change_ledger(_writable_host(), request, _author(reason))


def _writable_host() -> HostSettings:
    settings = read_settings()
    require_writable_home(settings)
    return read_host_settings(settings)


def _author(reason: str) -> Author:
    return Author(author_name(), reason.strip())


def _print_change(name: str, appended: AppendResult, what: str, *, as_json: bool) -> None:
    entry: LedgerEntry | None = appended.entry
    if as_json:
        print_json({"model": name, "version": appended.version, "entry": to_plain(entry)})
        return
    if entry is None:
        echo(f"{name}: {what} already")
        return
    was = f" (was {entry.replaced})" if entry.replaced else _format_new_alias(entry)
    echo(f"{name}: {what}{was}, entry {entry.sequence} of its ledger")
    for measured in entry.measured:
        echo(f"  {measured}")
    for rule in entry.overrides:
        echo(f"  set aside: {rule}")
