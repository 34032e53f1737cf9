"""A real PostgreSQL server for tests, from Debian's package, on a free loopback port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.limits import LIMIT_S
from tests.prefect_server import free_port

_START_LIMIT_S = 60.0


@dataclass(frozen=True)
class Postgres:
    """Where it listens, and its administrator's password."""

    port: int
    password: str

    @property
    def environment(self) -> dict[str, str]:
        """What libpq reads to come in as the administrator."""
        return {
            "PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGUSER": "postgres",
            "PGPASSWORD": self.password, "PGDATABASE": "postgres",
        }  # fmt: skip


def postgres_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest; None where there are none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


@contextmanager
def postgres_server(
    password: str = "administrator", *, durable: bool = False
) -> Iterator[Postgres]:  # fmt: skip
    """Start a server with logins by password, over TCP alone; stop it and remove its data.

    One that is `durable` writes as a real one does, which a test has no use for.
    It refuses to run as root: then it runs as the user `postgres`, whom Debian's package makes.
    """
    programs = postgres_programs()
    if programs is None:
        raise FileNotFoundError("expected PostgreSQL. As root: apt-get install postgresql")
    user = "postgres" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    home = Path(tempfile.mkdtemp(prefix="handoff-postgres-"))
    shutil.chown(home, user)
    secret = home / "password"
    secret.write_text(password)
    shutil.chown(secret, user)
    port = free_port()
    try:
        subprocess.run(
            [programs / "initdb", "--pgdata", home / "data", "--username=postgres",
             "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"],
            check=True, capture_output=True, user=user, cwd=home,
        )  # fmt: skip
        command = [
            str(programs / "postgres"), "-D", str(home / "data"), "-h", "127.0.0.1",
            "-p", str(port), "-k", "", "-c", f"fsync={'on' if durable else 'off'}",
            "-c", "max_connections=200",
        ]  # fmt: skip
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd=home)
        try:
            _wait(programs, server, port, home / "log")
            yield Postgres(port, password)
        finally:
            # Fast: clients that are still there are cut off.
            server.send_signal(2)
            server.wait(timeout=LIMIT_S)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _wait(programs: Path, server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    ready = [str(programs / "pg_isready"), "--quiet", "--host=127.0.0.1", f"--port={port}"]
    while subprocess.run(ready, check=False).returncode != 0:
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL didn't start: {log.read_text()[-2000:]}")
        time.sleep(0.1)
