"""`handoff keys`: whose signatures are trusted here, and the public key that others need."""

from __future__ import annotations

import shutil
from pathlib import Path

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.release.signing import public_key_of, read_trust
from handoff.infra.engine.signing_key import ask_signer, will_be_created
from handoff.infra.settings import read_settings, trusted_folder
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo


def show_keys(*, as_json: bool) -> None:
    """Print the public key that signs here, as PEM, and the ids of those that are trusted."""
    settings = read_settings()
    trust = read_trust(settings.stores.trusted, may_lack=True)
    signer = None if will_be_created(settings.signing_key) else ask_signer(settings.signing_key)
    if as_json:
        ids = [key.keyid for key in trust.keys]
        signing, pem = (signer.key_id, signer.public_pem) if signer else (None, "")
        print_json({"signing": signing, "public_key": pem, "trusted": ids})
        return
    if signer is None:
        echo("No key signs here yet: the first release makes one", err=True)
    else:
        echo(f"signs here: {signer.key_id[:12]}", err=True)
    echo(f"trusted: {', '.join(trust.ids) or 'none'}", err=True)
    if signer is not None:
        echo(signer.public_pem.strip())


def trust_key(file: Path) -> None:
    """Trust what the key in `file` has signed, from now on."""
    try:
        key = public_key_of(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageProblem(
            f"{file} can't be read", expected="a file with a public key in PEM",
            got=error.strerror or str(error), remedy="'handoff keys show' prints one there",
        ) from error  # fmt: skip
    folder = trusted_folder(read_settings().home)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    destination = folder / f"{key.keyid[:12]}.pub"
    shutil.copyfile(file, destination)
    echo(f"{key.keyid[:12]} is trusted: {destination}")
    echo("Compare that id with what 'handoff keys show' prints where the key signs")
