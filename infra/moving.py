"""What changes the registry without a release: promote, rollback, retire, sync, gc."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import click

from artifacts.changes import Author, PromoteRequest, Request, RetireRequest, RollBackRequest
from artifacts.errors import UsageProblem
from artifacts.ledger import LedgerEntry
from artifacts.record import to_plain
from artifacts.registering import CatalogueJob, CollectJob, CollectResult, KeyJob
from infra.console import print_json, size
from infra.racing import race_with_served
from infra.registry import parse_reference, releases_of, require_alias
from infra.settings import Settings, author_name, read_settings, require_writable_home
from infra.workspaces import scratch_workspace
from tasks.appending import Appended, Change, append, told_as_done
from tasks.child import ProcessPlan, StepProcess

KEY_LIMIT_S = 120.0
_CATALOGUE_LIMIT_S = 3600.0
_COLLECT_LIMIT_S = 3600.0
REGISTRAR = ProcessPlan("register", preload=("tasks.draft",), sees="stores")
SIGNER = ProcessPlan("sign", preload=("tasks.sign",), sees="keys")


def promote(
    reference: str,
    alias: str,
    *,
    reason: str,
    override: bool,
    expected: int | None,
    as_json: bool,
) -> None:
    """Make `alias` stand for a version, where the rules of a promotion let it.

    `expected` is the version that it has to stand for now, 0 for none; None asks for nothing.
    """
    name, wanted = parse_reference(reference)
    require_alias(alias)
    if override and not reason.strip():
        raise UsageProblem(
            "an override needs a reason", expected="--reason TEXT", got="none",
            remedy="Say why the rules are set aside: the ledger keeps it",
        )  # fmt: skip
    measured, served = race_with_served(read_settings(), name, wanted, alias)
    if expected is None:
        # What was measured, and what the caller has seen, is about this one.
        expected = served or 0
    request = PromoteRequest(name, wanted, alias, override, measured)
    appended = _change(request, reason, expected)
    _tell(name, appended, f"{alias} stands for version {appended.version}", as_json=as_json)


def roll_back(
    reference: str, alias: str, version: int | None, reason: str, *, as_json: bool
) -> None:
    """Make `alias` stand for what it stood for before."""
    name, _ = parse_reference(reference)
    appended = _change(RollBackRequest(name, alias, version), reason)
    _tell(name, appended, f"{alias} stands for version {appended.version}", as_json=as_json)


def retire(reference: str, reason: str, *, as_json: bool) -> None:
    """Give up a version, so that the garbage collector may remove its packages."""
    name, version = parse_reference(reference)
    if not isinstance(version, int):
        raise UsageProblem(
            "a version is retired by its number", expected="NAME@VERSION", got=reference[:80],
            remedy="See 'handoff history NAME'",
        )  # fmt: skip
    appended = _change(RetireRequest(name, version), reason)
    _tell(name, appended, f"version {version} is retired", as_json=as_json)


def sync(reference: str, *, as_json: bool) -> None:
    """Show in MLflow, and in the store's copies for people, what the ledgers say."""
    settings = read_settings()
    require_writable_home(settings)
    if reference:
        models: tuple[str, ...] = (parse_reference(reference)[0],)
    else:
        models = releases_of(settings).models()
    with _registrar(settings) as (registrar, _):
        for model in models:
            registrar.run(CatalogueJob(settings.stores, model), limit_s=_CATALOGUE_LIMIT_S)
    if as_json:
        print_json({"models": list(models)})
        return
    click.echo(f"MLflow and the store's copies show what the ledgers say: {', '.join(models)}")


def collect_garbage(grace_h: float, *, pretend: bool, as_json: bool) -> None:
    """Remove what no version needs from the store."""
    settings = read_settings()
    with _registrar(settings) as (registrar, _):
        job = CollectJob(settings.stores, grace_h, pretend)
        found = cast(CollectResult, registrar.run(job, limit_s=_COLLECT_LIMIT_S))
    if as_json:
        print_json(to_plain(found))
        return
    would = "would be removed" if pretend else "removed"
    click.echo(f"{found.removed} objects {would} ({size(found.removed_bytes)})")
    click.echo(f"{found.kept} are needed ({size(found.kept_bytes)}), {found.spared} are too new")
    if found.abandoned:
        click.echo(f"{found.abandoned} uploads that never ended were given up")


def _change(request: Request, reason: str, expected: int | None = None) -> Appended:
    """Append what is asked for to the ledger, then show it in MLflow and in the store's copies."""
    settings = read_settings()
    require_writable_home(settings)
    with (
        _registrar(settings) as (registrar, scratch),
        closing(StepProcess(SIGNER, scratch / "sign.log")) as signer,
    ):
        signer.run(KeyJob(settings.signing_key, settings.stores.trusted), limit_s=KEY_LIMIT_S)
        appended = append(registrar, signer, _asked(settings, request, reason, expected))
        job = CatalogueJob(settings.stores, request.model)
        with told_as_done(request.model, appended):
            registrar.run(job, limit_s=_CATALOGUE_LIMIT_S)
    return appended


@contextmanager
def _registrar(settings: Settings) -> Iterator[tuple[StepProcess, Path]]:
    """Give the process that reaches the stores, and the folder of its files."""
    with scratch_workspace(settings.home / "builds") as scratch:
        # What it fetches and writes for MLflow goes with the folder, also when it is killed.
        plan = replace(REGISTRAR, environment={"TMPDIR": str(scratch)})
        with closing(StepProcess(plan, scratch / "register.log")) as registrar:
            yield registrar, scratch


def _asked(settings: Settings, request: Request, reason: str, expected: int | None) -> Change:
    return Change(
        request,
        Author(author_name(), reason.strip()),
        settings.stores,
        settings.signing_key,
        expected=expected or None,
        is_conditional=expected is not None,
    )


def _tell(name: str, appended: Appended, what: str, *, as_json: bool) -> None:
    entry: LedgerEntry | None = appended.entry
    if as_json:
        print_json({"model": name, "version": appended.version, "entry": to_plain(entry)})
        return
    if entry is None:
        click.echo(f"{name}: {what} already")
        return
    was = f", and was {entry.replaced}" if entry.replaced else ""
    click.echo(f"{name}: {what}{was} (entry {entry.sequence} of its ledger)")
    for measured in entry.measured:
        click.echo(f"  {measured}")
    for rule in entry.overrides:
        click.echo(f"  set aside, for the reason given: {rule}")
