"""`handoff store`: a store as a whole, copied to another place, or verified."""

from __future__ import annotations

from handoff.artifacts.errors import RegistryFailed, UsageProblem
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.interval import size
from handoff.artifacts.release.releases import Releases, open_releases
from handoff.infra.home import named_store
from handoff.infra.settings import Settings, read_settings
from handoff.infra.terminal.console import print_json, shown_transfer
from handoff.infra.terminal.output import echo
from handoff.tasks.registry.upkeep.checking import Checked, Lacking, check_store
from handoff.tasks.registry.upkeep.copying import Copied, copy_store

_MOST_TOLD = 20


def copy(source: str, target: str, *, replaces: bool, pretend: bool, as_json: bool) -> None:
    """Copy what the ledgers of one store keep into another one, and tell what that was."""
    settings = read_settings()
    places = [named_store(place, what) for place, what in ((source, "FROM"), (target, "TO"))]
    if places[0].rstrip("/") == places[1].rstrip("/"):
        raise UsageProblem(
            "a store isn't copied into itself", expected="two places", got=places[0],
            remedy="Name another place for TO",
        )  # fmt: skip
    with shown_transfer() as told:
        copied = copy_store(
            _opened(settings, places[0], remembers=True), _opened(settings, places[1]),
            replaces=replaces, pretend=pretend, told=told,
        )  # fmt: skip
    if as_json:
        print_json({"from": places[0], "to": places[1], "pretended": pretend, **to_plain(copied)})
        return
    _tell_copied(copied, *places, pretend=pretend)


def _tell_copied(copied: Copied, source: str, target: str, *, pretend: bool) -> None:
    would = "would be copied" if pretend else "copied"
    echo(f"{copied.objects} objects {would} ({size(copied.bytes)}), {copied.there} are there")
    written = "would be written" if pretend else "written"
    echo(f"{copied.entries} entries of ledgers and {copied.records} records {written}")
    for model in copied.ahead:
        echo(f"{model} has gone on in {target}, and stays as it is there")
    for key in copied.differing[:_MOST_TOLD]:
        echo(f"{key} is another one in {target}, and stays as it is there")
    if not pretend:
        echo(f"{target} holds {', '.join(copied.models)} as {source} does")
        echo("Next: 'handoff store verify' with it, HANDOFF_STORE set to it, 'handoff sync'")


def verify(place: str, *, quick: bool, as_json: bool) -> int:
    """Verify a store, by default this machine's; return 0 where nothing lacks."""
    settings = read_settings()
    where = named_store(place, "STORE") if place else settings.stores.objects
    with shown_transfer() as told:
        checked = check_store(_opened(settings, where), quick=quick, told=told)
    if as_json:
        print_json({"store": where, "quick": quick, **to_plain(checked)})
    else:
        _tell_checked(checked, where, quick=quick)
    return RegistryFailed.exit_code if checked.lacking else 0


def _tell_checked(checked: Checked, where: str, *, quick: bool) -> None:
    how = "as the store says of them" if quick else "read"
    echo(
        f"{where}: {checked.models} models, {checked.versions} versions, {checked.objects} objects "
        f"({size(checked.bytes)}), {how}"
    )
    for one in checked.lacking[:_MOST_TOLD]:
        echo(_sentence(one))
    if len(checked.lacking) > _MOST_TOLD:
        echo(f"... and {len(checked.lacking) - _MOST_TOLD} more; --json lists all of them")
    if checked.lacking:
        echo("Restore what is missing ('handoff store copy COPY STORE'), or release again")
    else:
        echo("Nothing lacks")


def _sentence(one: Lacking) -> str:
    who = ", ".join(one.versions[:5]) + (", ..." if len(one.versions) > 5 else "")
    return f"{who}: {one.object} {one.what}" if one.object else f"{who}: {one.what}"


def _opened(settings: Settings, location: str, *, remembers: bool = False) -> Releases:
    """Open a store; what is only looked at or copied to isn't remembered as seen."""
    stores = settings.stores
    return open_releases(location, stores.trusted, stores.seen if remembers else None)
