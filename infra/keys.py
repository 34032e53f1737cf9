"""`handoff keys`: whose signatures are trusted here, and the public key that others need."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from artifacts.errors import UsageProblem
from artifacts.signing import public_key_of, read_trust
from infra.console import print_json
from infra.settings import read_settings, trusted_folder


def show_keys(*, as_json: bool) -> None:
    """Print the public key that signs here, as PEM, and the ids of those that are trusted."""
    settings = read_settings()
    public = settings.signing_key.public
    trust = read_trust(settings.stores.trusted, may_lack=True)
    own = public_key_of(public.read_bytes(), str(public)) if public.exists() else None
    if as_json:
        pem = public.read_text(encoding="ascii") if own else ""
        ids = [key.keyid for key in trust.keys]
        print_json({"signing": own.keyid if own else None, "public_key": pem, "trusted": ids})
        return
    if own is None:
        click.echo("No key signs here yet: the first release makes one", err=True)
    else:
        click.echo(f"signs here: {own.keyid[:12]}", err=True)
    click.echo(f"trusted: {', '.join(trust.ids) or 'none'}", err=True)
    if own is not None:
        click.echo(public.read_text(encoding="ascii"), nl=False)


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
    place = folder / f"{key.keyid[:12]}.pub"
    shutil.copyfile(file, place)
    click.echo(f"{key.keyid[:12]} is trusted: {place}")
    click.echo("Compare that id with what 'handoff keys show' prints where the key signs")
