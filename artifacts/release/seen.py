"""How far each ledger went when this machine last looked: one that goes back is noticed.

A store that hides the newest entries shows an older version as the one in production, with valid
signatures (a rollback or freeze attack, as The Update Framework calls it).
"""

from __future__ import annotations

import json
from pathlib import Path

from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.files.locks import held
from handoff.artifacts.files.strict_json import parse_json
from handoff.artifacts.files.whole_file import write_whole


class SeenLedgers:
    """A file that keeps the newest entry seen of each ledger."""

    def __init__(self, file: Path) -> None:
        """Use `file`, which is made when something was seen."""
        self.file = file

    def newest(self, location: str, model: str) -> tuple[int, str]:
        """Return the number and the digest of the newest entry seen; 0 and '' for none."""
        return self._read().get(f"{location} {model}", (0, ""))

    def note(
        self, location: str, model: str, newest: tuple[int, str], *, since: tuple[int, str]
    ) -> None:
        """Note a ledger's newest entry, its number and digest.

        Raises `PackageRefused` where it is before the one that was seen `since`, or another one.
        """
        before, known = since
        sequence, digest = newest
        if sequence < before or (sequence == before and digest != known):
            raise PackageRefused(
                f"{model}'s ledger went back",
                expected=f"entry {before}, which was there before, or a later one",
                got=f"entry {sequence}" if sequence < before else f"another entry {sequence}",
                remedy=f"Ask who keeps the store {location}. If that is as it should be (a store "
                f"made anew), remove {self.file}",
            )
        if sequence > before:
            self._write(f"{location} {model}", sequence, digest)

    def _read(self) -> dict[str, tuple[int, str]]:
        try:
            plain = parse_json(self.file.read_bytes())
            return {
                str(place): (int(number), str(digest)) for place, (number, digest) in plain.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise PackageRefused(
                f"{self.file} can't be read", expected="what was seen of each ledger",
                got=str(error)[:100], remedy="Remove it: it is written anew",
            ) from error  # fmt: skip

    def _write(self, place: str, sequence: int, digest: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # Of two that note at once neither undoes what the other one noted.
        with held(self.file.parent):
            seen = self._read()
            if sequence <= seen.get(place, (0, ""))[0]:
                return
            seen[place] = (sequence, digest)
            text = json.dumps(seen, sort_keys=True) + "\n"
            write_whole(self.file, text, mode=0o666, is_synced=True)
