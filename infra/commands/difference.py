"""`handoff diff`: what differs between two versions."""

from __future__ import annotations

from handoff.artifacts.record import to_plain
from handoff.artifacts.release.difference import differences
from handoff.infra.commands.registry import parse_reference, releases_of
from handoff.infra.settings import read_settings
from handoff.infra.terminal.console import print_json, print_table
from handoff.infra.terminal.echoing import echo


def show_difference(before: str, after: str, *, as_json: bool) -> None:
    """Print what differs between the versions that `before` and `after` name."""
    releases = releases_of(read_settings())
    pointers = []
    for reference in (before, after):
        name, wanted = parse_reference(reference)
        pointers.append((name, releases.find(name, wanted)))
    old, new = (releases.read(name, pointer).manifest for name, pointer in pointers)
    found = differences(old, new)
    names = [f"{name}@{pointer.version}" for name, pointer in pointers]
    if as_json:
        print_json({"before": names[0], "after": names[1], "changes": to_plain(found)})
        return
    if not found:
        echo(f"{names[0]} and {names[1]} differ in nothing but when they were made")
        return
    rows = [(one.section, one.name, one.before or "-", one.after or "-") for one in found]
    print_table("", ("", "", *names), rows)
