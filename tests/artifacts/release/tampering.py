"""What somebody may do to a pulled release, and what has to come of it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from handoff.artifacts.release.ledger import LedgerEntry, entry_statement
from handoff.artifacts.release.manifest import MANIFEST_FILE
from handoff.artifacts.release.signing import sign_statement
from handoff.artifacts.serve.loader import FileName
from tests.artifacts.mlflow.canaries import BEST, OTHER, Pulled, pull_canaries, write_record
from tests.artifacts.samples import sample_key
from tests.limits import LIMIT_S

Change = Callable[[Pulled, Path], object]
OPENED = "opened"
ACCEPTED = "accepted"


@dataclass(frozen=True)
class Tampering:
    """One change to a pulled release, and the pattern of each reader's message then.

    `OPENED` and `ACCEPTED` stand for a package that is opened and a release that verifies. The
    change gets the release and a folder for libraries. `options` are those of `load`.
    """

    what: str
    change: Change
    load: str
    verify: str = ""
    runner: str = ""
    file: FileName = "model.so"
    target: str = "auto"
    name: str | None = None
    version: int | None = None

    @property
    def verify_pattern(self) -> str:
        """The message of `check_release`; by default what `load` does."""
        return self.verify or self.load

    @property
    def runner_pattern(self) -> str:
        """The C++ runner's message; by default what `load` does."""
        return self.runner or self.load

    @property
    def runner_options(self) -> list[str]:
        """What `load` is asked for, as the C++ runner's command line says it."""
        options = ["--file", self.file, "--target", self.target]
        options += ["--name", self.name] if self.name else []
        return options + (["--version", str(self.version)] if self.version else [])


def call_runner(
    program: Path, folder: Path, *options: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call the model in a pulled folder with the C++ runner."""
    examples, outputs = folder / "examples.safetensors", folder.parent / "outputs.safetensors"
    command = [program, "call", folder, examples, outputs, *options]
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
        env={"LC_ALL": "C", "TMPDIR": str(folder.parent), **environment},
    )  # fmt: skip


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def edit_envelope(pulled: Pulled, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the envelope, without a key."""
    plain = json.loads(pulled.envelope.read_bytes())
    change(plain)
    pulled.envelope.write_text(json.dumps(plain))


def _edit_payload(plain: dict[str, Any]) -> None:
    statement = json.loads(base64.b64decode(plain["payload"]))
    statement["predicate"]["buildDefinition"]["externalParameters"]["version"] += 1
    plain["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()


def _edit_signature(plain: dict[str, Any]) -> None:
    signature = bytearray(base64.b64decode(plain["signatures"][0]["sig"]))
    signature[-1] ^= 1
    plain["signatures"][0]["sig"] = base64.b64encode(signature).decode()


def _sign_as_stranger(pulled: Pulled, _: Path) -> None:
    write_record(pulled.folder, pulled.manifest, pulled.version, sample_key("stranger"))


def _borrow_the_name_of_the_key(pulled: Pulled, _: Path) -> None:
    _sign_as_stranger(pulled, _)
    keyid = sample_key().trust.keys[0].keyid
    edit_envelope(pulled, lambda plain: plain["signatures"][0].update(keyid=keyid))


def _add_strangers_signature(pulled: Pulled, _: Path) -> None:
    good = json.loads(pulled.envelope.read_bytes())["signatures"]
    _sign_as_stranger(pulled, _)
    edit_envelope(pulled, lambda plain: plain["signatures"].extend(good))


def _swap_manifest(pulled: Pulled, _: Path) -> None:
    other = replace(pulled.manifest, created="2027-01-01T00:00:00+00:00")
    (pulled.folder / MANIFEST_FILE).write_bytes(other.to_bytes())


def _replace_release(pulled: Pulled, built: Path, **other: Any) -> None:
    shutil.rmtree(pulled.folder)
    pull_canaries(pulled.folder, built, **other)


def _swap_targets(pulled: Pulled, _: Path) -> None:
    for name in ("model.so", "model.pt2"):
        shutil.copyfile(pulled.best / name, pulled.folder / OTHER / name)


def _remove_packages(pulled: Pulled, _: Path) -> None:
    for slug in (BEST, OTHER):
        shutil.rmtree(pulled.folder / slug)


def _truncate(pulled: Pulled, _: Path) -> None:
    library = pulled.best / "model.so"
    os.truncate(library, library.stat().st_size - 1)


def _link(pulled: Pulled, built: Path) -> None:
    elsewhere = built / f"moved-{os.urandom(4).hex()}.so"
    (pulled.best / "model.so").rename(elsewhere)
    (pulled.best / "model.so").symlink_to(elsewhere)


def _put_pipe(pulled: Pulled, _: Path) -> None:
    (pulled.best / "model.so").unlink()
    os.mkfifo(pulled.best / "model.so")


def _slip(pulled: Pulled, _: Path) -> None:
    package = pulled.best / "model.pt2"
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("model/../../slipped", b"out")
    pulled.release_with("model.pt2", package.read_bytes())


def _call_another(pulled: Pulled, _: Path) -> None:
    package = pulled.best / "model.pt2"
    nodes = {"nodes": [{"name": "n", "node": {"target": "aten::from_file"}}]}
    with zipfile.ZipFile(package, "a") as archive:
        (library,) = [name for name in archive.namelist() if name.endswith(".so")]
        archive.writestr(library.removesuffix(".so") + ".json", json.dumps(nodes))
    pulled.release_with("model.pt2", package.read_bytes())


def _put_ledger_entry(pulled: Pulled, _: Path) -> None:
    digest = pulled.manifest.digest
    entry = LedgerEntry(
        model="toy", sequence=1, previous="", action="release", version=3, release=digest,
        manifest=digest, fingerprint=digest, alias="", replaced=None, aliases={}, newest=3,
        by="A <a@b.c>", at="2026-11-21T03:00:00+00:00", nonce="00",
    )  # fmt: skip
    signed = sign_statement(entry_statement(entry), sample_key().signer)
    pulled.envelope.write_bytes(signed)


def _repeat_key(pulled: Pulled, _: Path) -> None:
    text = pulled.envelope.read_text().rstrip()
    pulled.envelope.write_text(text[:-1] + ', "payloadType": "application/vnd.in-toto+json"}')


def _set(key: str, value: object) -> Change:
    return lambda pulled, _: pulled.change_statement(lambda plain: plain.update({key: value}))


_NO_ENVELOPE = "expected a DSSE envelope, got something else"
_DIGEST = r"model.* is not the file that was released: expected the digest \w+, got \w+"
_OTHER_TYPE = r"expected .*slsa\.dev/provenance/v1"

TAMPERINGS = (
    Tampering("nothing", lambda p, _: None, OPENED, ACCEPTED),
    Tampering("nothing, loaded as .pt2", lambda p, _: None, OPENED, ACCEPTED, file="model.pt2"),
    Tampering("two signatures, one of them good", _add_strangers_signature, OPENED, ACCEPTED),
    Tampering("the signature removed", lambda p, _: p.envelope.unlink(), "is not signed"),
    Tampering(
        "the list of signatures emptied",
        lambda p, _: edit_envelope(p, lambda plain: plain.update(signatures=[])),
        "got no signature",
    ),
    Tampering("signed with another key", _sign_as_stranger, r"a trusted key .*got one by"),
    Tampering(
        "signed with another key under the trusted key's id", _borrow_the_name_of_the_key,
        "expected a signature that matches, got one of other bytes",
    ),
    Tampering(
        "the signed statement edited", lambda p, _: edit_envelope(p, _edit_payload),
        "expected a signature that matches",
    ),
    Tampering(
        "one bit of the signature", lambda p, _: edit_envelope(p, _edit_signature),
        "expected a signature that matches",
    ),
    Tampering("another manifest", _swap_manifest, "is not the one that was signed"),
    Tampering("one bit of the .so", lambda p, _: flip(p.best / "model.so"), _DIGEST),
    Tampering(
        "one bit of the .pt2", lambda p, _: flip(p.best / "model.pt2"), _DIGEST, file="model.pt2"
    ),
    Tampering(
        "one bit of the examples (not read to serve)",
        lambda p, _: flip(p.folder / "examples.safetensors"), OPENED,
        verify="examples.safetensors is not the file that was released", runner=OPENED,
    ),
    Tampering(
        "another model's signed release in its place, the name pinned",
        lambda p, built: _replace_release(p, built, model="other"),
        "expected toy version of any number, got other version 3", name="toy",
    ),
    Tampering(
        "an older signed version in its place, the version pinned",
        lambda p, built: _replace_release(p, built, version=2),
        "expected toy version 3, got toy version 2", version=3,
    ),
    Tampering(
        "one target's files in the folder of another", _swap_targets,
        "is not the file that was released", target=OTHER,
    ),
    Tampering(
        "a file added (never opened)", lambda p, _: (p.best / "libx.so").write_bytes(b"x"),
        OPENED, verify="holds a file that its manifest doesn't name", runner=OPENED,
    ),
    Tampering("the .so cut by a byte", _truncate, r"expected \d+ bytes, got \d+ bytes"),
    Tampering(
        "a link in place of the .so", _link, "expected a file, got something else",
        runner="expected a file, got nothing, or something else",
    ),
    Tampering(
        "a pipe in place of the .so", _put_pipe, "expected a file, got something else",
        runner="expected a file, got nothing, or something else",
    ),
    Tampering(
        "a .pt2 that unpacks beside its folder, signed", _slip,
        "expected members with plain names below one folder, got .model/../../slipped",
        file="model.pt2",
    ),
    Tampering(
        "a .pt2 that has an operator called which opens files, signed", _call_another,
        "expected operators of libtorch alone, none that opens files, got .aten::from_file",
        file="model.pt2",
    ),
    Tampering(
        "a file left out of the signed statement",
        lambda p, _: p.change_statement(lambda plain: plain["subject"].pop()),
        "is about other files",
    ),
    Tampering(
        "a signed statement of another type", _set("predicateType", "https://example.org/v1"),
        _OTHER_TYPE,
    ),
    Tampering("a signed entry of the ledger in its place", _put_ledger_entry, _OTHER_TYPE),
    Tampering(
        "100 MB of envelope", lambda p, _: p.envelope.write_bytes(b" " * (100 << 20)),
        "expected at most 2097152 bytes",
    ),
    Tampering(
        "an envelope of 100 000 levels",
        lambda p, _: p.envelope.write_text("[" * 100_000), _NO_ENVELOPE,
        runner="this is not JSON: expected fewer levels",
    ),
    Tampering(
        "a key twice in the envelope", _repeat_key, _NO_ENVELOPE,
        runner="this is not JSON: expected keys that differ",
    ),
    Tampering(
        "the best target's folder removed, and another one there",
        lambda p, _: shutil.rmtree(p.best), OPENED, ACCEPTED,
    ),
    Tampering(
        "no package at all", _remove_packages, "holds no package", runner="none in the folder",
    ),
)  # fmt: skip
