"""`handoff watch`: post a run for each delivery that appears in a place.

A delivery is complete when its contract is there and nothing has changed since the look before.
What was posted is kept in memory alone: after a restart everything is posted again, and the key
finds the runs that there are.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from handoff.artifacts.delivery.contract import DeliveryContract, parse_contract
from handoff.artifacts.errors import (
    DeliveryUnreachable,
    DeliveryUnreadable,
    EnvironmentLacking,
    HandoffError,
)
from handoff.artifacts.record import RecordInvalid
from handoff.infra.settings import read_settings
from handoff.infra.terminal.output import echo
from handoff.infra.triggers.arrival import Arrival, Policy
from handoff.infra.triggers.locations import Listing, Location, open_location
from handoff.infra.triggers.poster import Poster, open_poster

_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def watch(text: str, every_s: float, policy: Policy, *, once: bool) -> int:
    """Look at the place every `every_s` seconds until Ctrl-C, or twice with `once`.

    Returns the exit code: that of what failed at last with `once`, else 0.
    """
    location = open_location(text)
    with open_poster(read_settings()) as poster:
        watcher = Watcher(location, poster, policy)
        echo(f"watching {text}: a delivery is posted when it hasn't changed for a look")
        while True:
            watcher.look()
            if once and watcher.looks == 2:
                return watcher.exit_code
            time.sleep(every_s)


@dataclass
class Watcher:
    """Looks at a place, and posts what is complete; reports a trouble once until it is over."""

    location: Location
    poster: Poster
    policy: Policy = "queue"
    looks: int = 0
    exit_code: int = 0
    _previous: dict[str, str] = field(default_factory=dict)
    _handled: dict[str, str] = field(default_factory=dict)
    _last_error: str = ""

    def look(self) -> None:
        """Look once; what can't be looked at or posted is tried at the next look again."""
        self.looks += 1
        self.exit_code = 0
        try:
            listings = self.location.look()
        except HandoffError as error:
            self._report(error)
            return
        for listing in listings:
            is_same = self._previous.get(listing.name) == listing.content
            is_handled = self._handled.get(listing.name) == listing.content
            if not listing.has_contract or not is_same or is_handled:
                continue
            try:
                self._post(listing)
            except (EnvironmentLacking, DeliveryUnreachable) as error:
                # The others would fail like it.
                self._report(error)
                break
            except HandoffError as error:
                # It is this delivery's, and stays so until it changes.
                self.exit_code = error.exit_code
                echo(f"{listing.name}: {error}", err=True)
            self._handled[listing.name] = listing.content
        else:
            self._last_error = ""
        self._previous = {listing.name: listing.content for listing in listings}

    def _post(self, listing: Listing) -> None:
        arrival = read_arrival(listing, self.location)
        posted = self.poster.post(arrival, policy=self.policy, once=True)
        if posted.is_new:
            echo(f"posted {arrival.label} from {listing.uri}: run {posted.name}")
            for name in posted.superseded:
                echo(f"cancelled {name}, which is older")

    def _report(self, error: HandoffError) -> None:
        self.exit_code = error.exit_code
        if self._last_error != type(error).__name__:
            echo(f"handoff: {error}", err=True)
            echo("it is tried again at every look", err=True)
        self._last_error = type(error).__name__


def read_arrival(listing: Listing, location: Location) -> Arrival:
    """Return the arrival that a delivery's contract describes.

    Raises `DeliveryUnreadable` for a contract that can't be read.
    """
    contract = _read_contract(listing, location)
    source = contract.source
    commit = source.commit.lower()
    by = source.author if source.author.isprintable() else ""
    repository = source.repository if source.repository.isprintable() else ""
    return Arrival(
        listing.uri, contract.model.name, repository[:500],
        commit if _COMMIT.fullmatch(commit) else "", by[:200] or "watcher",
        content=listing.content,
    )  # fmt: skip


def _read_contract(listing: Listing, location: Location) -> DeliveryContract:
    try:
        return parse_contract(location.read_contract(listing))
    except (OSError, UnicodeError, RecordInvalid) as error:
        raise DeliveryUnreadable(
            f"{listing.uri} isn't posted: its delivery.toml can't be read",
            expected="a contract, as 'handoff deliver' writes it", got=str(error)[:300],
            remedy="Fix it, and it is looked at again",
        ) from error  # fmt: skip
