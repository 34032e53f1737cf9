"""Whether a secret lies where it has no business: files, databases, command lines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from tests.studies.outages.served.stack import ServedStack

# What holds secrets, and is closed to others for that.
_CLOSED = (
    "keys/private", "stack/services", "stack/environment", "stack/postgres.password",
    "stack/setup.json",
)  # fmt: skip
_PIECE_BYTES = 1 << 20


def see_secrets(stack: ServedStack) -> list[str]:
    """Return where one of the stack's secrets was found, which is in none of its places."""
    secrets = {name: value.encode() for name, value in _secrets(stack).items()}
    found = list(_in_files(stack, secrets))
    for database in ("prefect", "mlflow"):
        found += _in_database(stack, database, secrets)
    found += _in_command_lines(secrets)
    return found


def _secrets(stack: ServedStack) -> dict[str, str]:
    password = (stack.place.folder / "postgres.password").read_text().strip().split(":")[-1]
    key = (stack.home / "keys" / "private" / "signing.pem").read_text().splitlines()
    # A line of the key's own, not one of those that say it is one.
    body = max((line for line in key if "-----" not in line), key=len)
    return {**stack.planted, "the password of PostgreSQL": password, "the signing key": body}


def _in_files(stack: ServedStack, secrets: Mapping[str, bytes]) -> Iterator[str]:
    closed = [stack.home / name for name in _CLOSED]
    for path in stack.home.rglob("*"):
        if path.is_symlink() or not path.is_file() or {path, *path.parents} & set(closed):
            continue
        for name in secrets_in(path, secrets):
            yield f"{name} is in {path.relative_to(stack.home)}"


def secrets_in(path: Path, secrets: Mapping[str, bytes]) -> set[str]:
    """Return the names of the secrets that a file holds, wherever in it."""
    found: set[str] = set()
    before = b""
    try:
        with path.open("rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                found |= {name for name, value in secrets.items() if value in before + piece}
                before = piece[-200:]
    except OSError:
        return set()  # it is gone: a log that was rotated, a build that has ended
    return found


def _in_database(stack: ServedStack, database: str, secrets: Mapping[str, bytes]) -> Iterator[str]:
    """Look through all that a server keeps: runs, parameters, logs, reports, events, tags."""
    link = stack.link(database)
    try:
        with link.cursor() as cursor:
            cursor.execute("select tablename from pg_tables where schemaname = 'public'")
            for (table,) in cursor.fetchall():
                rows = io.BytesIO()
                cursor.copy_expert(f'copy "{table}" to stdout', rows)
                contents = rows.getvalue()
                yield from (
                    f"{name} is in {database}'s table {table}"
                    for name, value in secrets.items()
                    if value in contents
                )
    finally:
        link.close()


def _in_command_lines(secrets: Mapping[str, bytes]) -> Iterator[str]:
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or []).encode()
        yield from (
            f"{name} is on the command line of process {process.pid}"
            for name, value in secrets.items()
            if value in line
        )
