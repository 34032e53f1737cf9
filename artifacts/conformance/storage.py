"""Where conformance tables are kept: signed in the store, and those of the locked toolchain here.

conformance/<hex of the toolchain's digest>.json        the table
conformance/<hex of the toolchain's digest>.dsse.json   the signature over it
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from handoff.artifacts.conformance.table import Conformance, parse_conformance
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.release.signing import STATEMENT_TYPE, Trust, open_envelope
from handoff.artifacts.stores.store import Store

CONFORMANCE = "conformance/"
PREDICATE_TYPE = "urn:handoff:conformance:1"
# Some 5000 rows of some hundred bytes, and the inputs of what is wrong.
TABLE_LIMIT_BYTES = 8 << 20
_SHIPPED_FOLDER = Path(__file__).parent / "locked"


def table_key(toolchain: Digest) -> str:
    """Return where the table of a toolchain lies."""
    return f"{CONFORMANCE}{toolchain.hex}.json"


def signature_key(toolchain: Digest, table: Digest) -> str:
    """Return where the signature over one state of a toolchain's table lies."""
    return f"{CONFORMANCE}{toolchain.hex}.{table.short}.dsse.json"


def conformance_statement(table: Conformance) -> dict[str, Any]:
    """Return the in-toto statement that is signed: about the table's bytes, by its toolchain."""
    digest = digest_bytes(table.to_bytes())
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": table_key(table.digest), "digest": {"sha256": digest.hex}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "toolchain": table.toolchain, "made": table.made, "counts": dict(table.counts),
        },
    }  # fmt: skip


def keep_table(store: Store, table: Conformance, envelope: bytes) -> str:
    """Keep a table and the signature over it; return its key. A newer one takes its place."""
    data = table.to_bytes()
    key = table_key(table.digest)
    # The signature first: a table is never there without its own.
    store.create(signature_key(table.digest, digest_bytes(data)), envelope)
    store.replace(key, data)
    return key


def read_table(store: Store, trust: Trust, toolchain: Digest) -> Conformance | None:
    """Return the table of a toolchain that the store keeps; None where there is none.

    Raises `PackageRefused` for one that no trusted key has signed, `StoreFailed` for one that can't
    be read.
    """
    key = table_key(toolchain)
    data = store.read(key, TABLE_LIMIT_BYTES)
    if data is None:
        return None
    digest = digest_bytes(data)
    envelope = store.read(signature_key(toolchain, digest), TABLE_LIMIT_BYTES)
    if envelope is None:
        raise StoreFailed(
            f"{key} is not signed", expected="its signature next to it", got="none",
            remedy="Make it again with 'handoff conformance --again'",
        )  # fmt: skip
    statement = open_envelope(envelope, trust, key)
    subject = statement.get("subject")
    if statement.get("predicateType") != PREDICATE_TYPE or subject != [
        {"name": key, "digest": {"sha256": digest.hex}}
    ]:
        raise StoreFailed(
            f"the signature next to {key} is about something else", expected=digest.short,
            got=str(subject)[:200], remedy="Make it again with 'handoff conformance --again'",
        )  # fmt: skip
    return parse_conformance(data, key)


def list_toolchains(store: Store) -> list[Digest]:
    """Return the toolchains of which the store keeps a table."""
    names = (one.key.removeprefix(CONFORMANCE) for one in store.keys(CONFORMANCE))
    return sorted(
        Digest(f"sha256:{name.removesuffix('.json')}") for name in names if name.count(".") == 1
    )


@cache
def _read_shipped_tables() -> tuple[Conformance, ...]:
    return tuple(
        parse_conformance(path.read_bytes(), path.name)
        for path in sorted(_SHIPPED_FOLDER.glob("*.json"))
    )


def shipped_tables() -> Iterator[Conformance]:
    """Give the tables of the locked toolchain, which come with the code."""
    yield from _read_shipped_tables()


def shipped_table(toolchain: Digest) -> Conformance | None:
    """Return the table of a toolchain that comes with the code; None for another toolchain."""
    return next((table for table in _read_shipped_tables() if table.digest == toolchain), None)
