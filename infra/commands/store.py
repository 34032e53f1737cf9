"""`handoff store`: a store as a whole, copied to another place, or verified."""

from __future__ import annotations

from handoff.artifacts.errors import RegistryFailed, UsageProblem
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.interval import size
from handoff.artifacts.release.releases import Releases, open_releases
from handoff.infra.home import resolve_store
from handoff.infra.settings import Settings, read_settings
from handoff.infra.terminal.console import print_json, show_transfer
from handoff.infra.terminal.output import echo
from handoff.tasks.registry.upkeep.copy_store import CopyResult, copy_store
from handoff.tasks.registry.upkeep.verify_store import CheckResult, StoreDefect, verify_store

_MOST_SHOWN = 20


def copy(source: str, target: str, *, replaces: bool, pretend: bool, as_json: bool) -> None:
    """Copy what the ledgers of one store keep into another one, and print what that was."""
    settings = read_settings()
    locations = [resolve_store(name, what) for name, what in ((source, "FROM"), (target, "TO"))]
    if locations[0].rstrip("/") == locations[1].rstrip("/"):
        raise UsageProblem(
            "a store isn't copied into itself", expected="two places", got=locations[0],
            remedy="Name another place for TO",
        )  # fmt: skip
    with show_transfer() as progress:
        copied = copy_store(
            _open_releases(settings, locations[0], remembers=True),
            _open_releases(settings, locations[1]),
            replaces=replaces, pretend=pretend, progress=progress,
        )  # fmt: skip
    if as_json:
        print_json(
            {"from": locations[0], "to": locations[1], "pretended": pretend, **to_plain(copied)}
        )
        return
    _print_copy(copied, *locations, pretend=pretend)


def _print_copy(copied: CopyResult, source: str, target: str, *, pretend: bool) -> None:
    would = "would be copied" if pretend else "copied"
    echo(f"{copied.objects} objects {would} ({size(copied.bytes)}), {copied.there} are there")
    written = "would be written" if pretend else "written"
    echo(f"{copied.entries} entries of ledgers and {copied.records} records {written}")
    for model in copied.ahead:
        echo(f"{model} has gone on in {target}, and stays as it is there")
    for key in copied.differing[:_MOST_SHOWN]:
        echo(f"{key} is another one in {target}, and stays as it is there")
    if not pretend:
        echo(f"{target} holds {', '.join(copied.models)} as {source} does")
        echo("Next: 'handoff store verify' with it, HANDOFF_STORE set to it, 'handoff sync'")


def verify(name: str, *, quick: bool, as_json: bool) -> int:
    """Verify a store, by default this machine's; return 0 where nothing lacks."""
    settings = read_settings()
    location = resolve_store(name, "STORE") if name else settings.stores.objects
    with show_transfer() as progress:
        checked = verify_store(_open_releases(settings, location), quick=quick, progress=progress)
    if as_json:
        print_json({"store": location, "quick": quick, **to_plain(checked)})
    else:
        _print_check(checked, location, quick=quick)
    return RegistryFailed.exit_code if checked.lacking else 0


def _print_check(checked: CheckResult, location: str, *, quick: bool) -> None:
    how = "as the store says of them" if quick else "read"
    echo(
        f"{location}: {checked.models} models, {checked.versions} versions, "
        f"{checked.objects} objects ({size(checked.bytes)}), {how}"
    )
    for missing in checked.lacking[:_MOST_SHOWN]:
        echo(_format_missing(missing))
    if len(checked.lacking) > _MOST_SHOWN:
        echo(f"... and {len(checked.lacking) - _MOST_SHOWN} more; --json lists all of them")
    if checked.lacking:
        echo("Restore what is missing ('handoff store copy COPY STORE'), or release again")
    else:
        echo("Nothing lacks")


def _format_missing(missing: StoreDefect) -> str:
    who = ", ".join(missing.versions[:5]) + (", ..." if len(missing.versions) > 5 else "")
    return f"{who}: {missing.object} {missing.what}" if missing.object else f"{who}: {missing.what}"


def _open_releases(settings: Settings, location: str, *, remembers: bool = False) -> Releases:
    """Open a store; what is only looked at or copied to isn't remembered as seen."""
    stores = settings.stores
    return open_releases(location, stores.trusted, stores.seen if remembers else None)
