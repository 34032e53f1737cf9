"""Where releases lie in a store, for people with an S3 client as well as for us.

objects/sha256/<hex>                        every byte of every release, once
models/<name>/ledger/00000008.json          the ledger: creating the next entry is the commit
models/<name>/versions/3/                   what a person looks for:
    manifest.json, release.dsse.json        the record, and the signature over it and all files
    SHA256SUMS                              what `sha256sum -c` takes
    PARTS                                   the objects that make up each file, in their order
    DELIVERY                                the same of the delivery that it was made from
    report.html                             the evidence: the report, as a page
    ledger.dsse.json                        the ledger's entry that released it
models/<name>/aliases/production.json       the ledger's entry that moved the alias last
models/<name>/fingerprints/<hex>            the version that was made from the same
nights/20261121T020000Z.json                what a night's run over all models found

PARTS and DELIVERY say which objects make up each file, for whoever has an S3 client and a shell:
one line a part, in the order in which they are put together:

    <64 hexadecimal digits> <bytes> <path>
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.stores.objects import Part

PARTS_FILE = "PARTS"
DELIVERY_FILE = "DELIVERY"
PARTS_LIMIT_BYTES = 16 << 20
_LINE = re.compile(r"([0-9a-f]{64}) ([0-9]{1,18}) (\S.*)")


def write_parts(files: Mapping[str, tuple[Part, ...]]) -> bytes:
    """Return the lines for every file, by path."""
    return "".join(
        f"{part.digest.hex} {part.size_bytes} {path}\n"
        for path in sorted(files)
        for part in files[path]
    ).encode()


def read_parts(data: bytes) -> dict[str, tuple[Part, ...]]:
    """Return each file's parts; raise `PackageRefused` for what is no such list."""
    files: dict[str, tuple[Part, ...]] = {}
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise PackageRefused(
                "the list of a release's parts can't be read",
                expected="lines of a digest, a number of bytes and a path", got=line[:80],
                remedy="Tell who releases",
            )  # fmt: skip
        part = Part(Digest(f"sha256:{match[1]}"), int(match[2]))
        files[match[3]] = (*files.get(match[3], ()), part)
    return files


MODELS = "models/"
NIGHTS = "nights/"
SUMS_FILE = "SHA256SUMS"
ENTRY_FILE = "ledger.dsse.json"
REPORT_FILE = "report.html"


def ledger_key(model: str, sequence: int) -> str:
    """Return where an entry of a model's ledger lies."""
    return f"{MODELS}{model}/ledger/{sequence:08}.json"


def version_key(model: str, version: int, name: str) -> str:
    """Return where a copy of what belongs to a version lies."""
    return f"{MODELS}{model}/versions/{version}/{name}"


def alias_key(model: str, alias: str) -> str:
    """Return where the copy of the entry lies that moved an alias last."""
    return f"{MODELS}{model}/aliases/{alias}.json"


def night_row_key(stamp: str, model: str) -> str:
    """Return where a model's row of a night lies; with no model, where all of them begin."""
    return f"nights/{stamp}/" + (f"{model}.json" if model else "")


def fingerprint_key(model: str, fingerprint: Digest) -> str:
    """Return where the version's number lies that was made from what `fingerprint` stands for."""
    return f"{MODELS}{model}/fingerprints/{fingerprint.hex}"


def night_key(stamp: str) -> str:
    """Return where a night's record lies, by the moment in UTC at which it began."""
    return f"{NIGHTS}{stamp}.json"
