"""Feed hostile inputs to a package in child processes; each gets an outcome of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from handoff.artifacts.release.mechanics import Outcome
from handoff.tasks.probe.child import Ended

Tried = dict[str, tuple[Outcome, str]]

# So many in one command line, which has a limit.
_AT_ONCE = 200


def try_all(hostile: Sequence[str], run: Callable[[Sequence[str]], Ended]) -> Tried:
    """Return what became of each hostile input, by its description, and the words about it.

    `run` gives a number of them to a new process. It announces each before it feeds it, so that a
    crash is the announced one's; the rest goes to another process. What crashed after others is
    fed again alone: where it is refused then, it is what one of those before has broken.
    """
    found: Tried = {}
    left = list(hostile)
    while left:
        ended = run(left[:_AT_ONCE])
        before = len(found)
        announced = _read_outcomes(ended, found)
        if announced is not None:
            found[announced] = _blame(announced, ended, run, alone=len(found) == before)
        elif len(found) == before:
            # It ended before it came to any: none of them can be said to be survived.
            told = ended.told or "the program tried nothing"
            found.update(dict.fromkeys(left[:_AT_ONCE], ("not run", told)))
        left = [name for name in left if name not in found]
    return found


def _read_outcomes(ended: Ended, found: Tried) -> str | None:
    """Note the outcomes that a process printed; return the one that was announced and not told."""
    announced: str | None = None
    for line in ended.lines:
        if line.get("event") == "trying":
            announced = str(line["hostile"])
        elif line.get("event") == "tried":
            found[str(line["hostile"])] = (line["outcome"], str(line["message"])[:300])
            announced = None
    return announced


def _blame(
    name: str, ended: Ended, run: Callable[[Sequence[str]], Ended], *, alone: bool
) -> tuple[Outcome, str]:
    if alone:
        return ended.outcome or "crashed", ended.told or "it ended without an answer"
    repeated: Tried = {}
    again = run([name])
    if _read_outcomes(again, repeated) == name:
        return again.outcome or "crashed", again.told or "it ended without an answer"
    how = f"{ended.outcome or 'crashed'} after others that were refused: {ended.told}"
    return "harmed", f"{how}; alone it is {repeated.get(name, ('not run', ''))[0]}"
