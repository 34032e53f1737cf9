"""The sentence in which a delivery is refused."""

from __future__ import annotations

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.artifacts.printable import one_line

REDELIVER = "Deliver the model again with 'handoff deliver', which writes a folder that can be read"
DAMAGED = "Deliver the model again; the file was damaged or changed after it was written"
_SHOWN_CHARACTERS = 160


def refuse(
    what: str, *, expected: str, got: object, where: str = "", remedy: str = REDELIVER
) -> DeliveryUnreadable:
    """Return the error that says why the delivery can't be read; `got` is shortened.

    Names of the delivery's may be in any part, so that each is kept on one line.
    """
    what, expected, remedy, where = map(one_line, (what, expected, remedy, where))
    return DeliveryUnreadable(what, expected=expected, got=shorten(got), remedy=remedy, where=where)


def shorten(got: object) -> str:
    """Return `got` as one printable line of at most 160 characters.

    Only text and numbers are shown; of anything else its type, since what a delivery holds may be
    nested without end.
    """
    text = str(got) if isinstance(got, (str, int, float)) else type(got).__name__
    text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    if not text:
        return "nothing"
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
