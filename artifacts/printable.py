r"""Text of others, made printable: nothing in it moves a cursor, turns a line round, or hides.

A delivery, a ledger, a store and a server say what they like. What a terminal, a log, a page or
MLflow is given went through here: characters that aren't printed as themselves are written out
(`\x1b`, `\u202e`): controls, escapes, marks of direction, characters without width, halves of
surrogate pairs, and those that Unicode doesn't know.
"""

from __future__ import annotations

import json
import re
import unicodedata

_LINES = frozenset("\n\t")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~&])")


def printable(text: str) -> str:
    """Return the text with its lines and tabs, and all else that isn't printed written out."""
    if text.isprintable():
        return text
    return "".join(c if c in _LINES or _is_shown(c) else _escape(c) for c in text)


def one_line(text: str) -> str:
    """Return the text as one line: ends of lines and tabs are written out, too."""
    if text.isprintable():
        return text
    return "".join(c if _is_shown(c) else _escape(c) for c in text)


def printable_json(text: str) -> str:
    """Return JSON that says the same, with what isn't printed as escapes of JSON's own."""
    shown = (c if c == "\n" or _is_shown(c) else json.dumps(c)[1:-1] for c in text)
    return text if text.isprintable() else "".join(shown).replace("\x7f", "\\u007f")


def markdown_text(text: str) -> str:
    """Return text that Markdown takes as it is, in one line: what others say stays text."""
    return _MARKDOWN.sub(r"\\\1", one_line(" ".join(text.split())))


def _is_shown(character: str) -> bool:
    # Wide and narrow spaces can be seen; Python counts them among what isn't printable.
    return character.isprintable() or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    if character in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
