"""The stack's PostgreSQL: its own, on a Unix socket, or one that the user names.

Its own listens on no port: only who can open the socket's folder gets to ask for the password
(scram). The password lies in two places, both closed to others: in libpq's password file below the
stack's folder, which Prefect's and MLflow's drivers read, and in the cluster, as a scram verifier.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.files.writing import write_atomically
from handoff.infra.stack.layout import StackLayout
from handoff.infra.stack.supervision import Service

if TYPE_CHECKING:
    from sqlalchemy.engine import URL


_PROGRAMS = ("initdb", "postgres")
_INSTALLED = "/usr/lib/postgresql"
_OWNER = "handoff"
_SYSTEM_USER = "postgres"
DATABASES = ("prefect", "mlflow", "mlflow_auth")


def find_programs(configured: str) -> Path:
    """Return the folder of `initdb` and `postgres`: the named one, the PATH's, or the newest.

    Raise `EnvironmentLacking` where there is none, or where root has no user to run it as.
    """
    if configured:
        folders = [Path(configured)]
    else:
        on_path = shutil.which("initdb")
        # Debian keeps them off the PATH, in a folder for each version.
        installed = sorted(Path(_INSTALLED).glob("*/bin"), key=_version, reverse=True)
        folders = [*([Path(on_path).resolve().parent] if on_path else []), *installed]
    complete = [
        folder for folder in folders if all((folder / name).exists() for name in _PROGRAMS)
    ]  # fmt: skip
    if not complete:
        raise EnvironmentLacking(
            "There is no PostgreSQL for Prefect and MLflow",
            expected="the programs initdb and postgres",
            got=f"none in {configured}" if configured else f"none on the PATH or in {_INSTALLED}",
            remedy="Install it (Debian: apt-get install postgresql; Fedora: dnf install "
            "postgresql-server), name one that runs by PREFECT_SERVER_DATABASE_CONNECTION_URL, or "
            "add --sqlite to try the stack out",
        )
    if os.geteuid() == 0 and _system_user() is None:
        raise EnvironmentLacking(
            "PostgreSQL refuses to run as root", expected=f"a system user {_SYSTEM_USER}",
            got="none", remedy=f"Make one (useradd --system {_SYSTEM_USER}), or run Handoff as "
            "another user than root",
        )  # fmt: skip
    return complete[0]


def prepare_cluster(layout: StackLayout, programs: Path) -> None:
    """Initialise the cluster, unless it is there; its password is kept below the stack's folder."""
    data, owner = layout.database / "data", _system_user()
    layout.database.mkdir(mode=0o700, parents=True, exist_ok=True)
    if owner:
        # The folder above is on the way of the other user: it may pass, and list nothing.
        layout.database.parent.chmod(0o711)
    for folder in (layout.database, layout.database / "socket"):
        folder.mkdir(mode=0o700, exist_ok=True)
        _chown(folder, owner)
    if data.exists():
        if not _password_file(layout).exists():
            raise EnvironmentLacking(
                "The database's password is lost", expected=str(_password_file(layout)),
                got="no such file", remedy=f"Put it back, or remove {layout.database} with all "
                "that Prefect and MLflow have recorded",
            )  # fmt: skip
        return
    staging, password_file = layout.database / "data.new", layout.database / "password"
    shutil.rmtree(staging, ignore_errors=True)
    password = secrets.token_urlsafe(32)
    write_atomically(_password_file(layout), f"*:*:*:{_OWNER}:{password}\n")
    write_atomically(password_file, password)
    _chown(password_file, owner)
    try:
        _initialise(programs, staging, password_file, owner)
    finally:
        password_file.unlink()
    staging.rename(data)


def _initialise(
    programs: Path, data: Path, password_file: Path, owner: pwd.struct_passwd | None
) -> None:
    answer = subprocess.run(
        [
            str(programs / "initdb"), "--pgdata", str(data), "--username", _OWNER,
            "--pwfile", str(password_file), "--auth=scram-sha-256", "--encoding=UTF8",
            "--locale=C.UTF-8",
        ],
        capture_output=True, text=True, check=False, cwd="/",
        user=owner.pw_uid if owner else None, group=owner.pw_gid if owner else None,
        extra_groups=[] if owner else None,
    )  # fmt: skip
    if answer.returncode:
        raise EnvironmentLacking(
            "PostgreSQL can't make its database", expected="initdb to succeed",
            got=answer.stderr.strip()[-400:], remedy="Fix that, and run it again",
        )  # fmt: skip


def postgres_service(layout: StackLayout, programs: Path) -> Service:
    """Return the service: a socket, and no port."""
    owner = _system_user()
    return Service(
        name="postgres",
        command=(
            str(programs / "postgres"), "-D", str(layout.database / "data"),
            "-c", "listen_addresses=", "-c", f"unix_socket_directories={_socket_folder(layout)}",
            "-c", "unix_socket_permissions=0700", "-c", "max_connections=200",
        ),
        user=owner.pw_name if owner else "",
        stage=1,
        # A fast shutdown: it waits for no client. Only the first process is to be asked.
        stop_signal="INT", stops_group=False, stop_limit_s=60,
        address=str(_socket_folder(layout)),
    )  # fmt: skip


def database_url(layout: StackLayout, driver: str, database: str) -> str:
    """Return a database's address. The password is not in it: see `password_environment`."""
    return f"{driver}://{_OWNER}@/{database}?host={quote(str(_socket_folder(layout)), safe='/')}"


def password_environment(layout: StackLayout) -> dict[str, str]:
    """Return what tells libpq and asyncpg where the password is."""
    return {"PGPASSFILE": str(_password_file(layout))}


def is_ready(layout: StackLayout) -> bool:
    """Return whether the cluster accepts a connection and a query."""
    import psycopg2

    try:
        with open_cursor(layout) as cursor:
            cursor.execute("select 1")
            return bool(cursor.fetchone() == (1,))
    except psycopg2.OperationalError:
        return False


def make_databases(layout: StackLayout) -> None:
    """Make the databases that are missing."""
    with open_cursor(layout) as cursor:
        cursor.execute("select datname from pg_database")
        existing = {row[0] for row in cursor.fetchall()}
        for name in DATABASES:
            if name not in existing:
                cursor.execute(f'create database "{name}"')


def main_process(layout: StackLayout) -> int:
    """Return the process of a cluster that runs, though nobody may supervise it; 0 for none."""
    data = layout.database / "data"
    with contextlib.suppress(OSError, ValueError, IndexError):
        process = int((data / "postmaster.pid").read_text().splitlines()[0])
        # The number may be another process's by now; PostgreSQL works in its data's folder.
        if Path(f"/proc/{process}/cwd").readlink() == data.resolve():
            return process
    return 0


@contextlib.contextmanager
def open_cursor(layout: StackLayout) -> Iterator[Any]:
    """Give a cursor on the cluster, outside any transaction."""
    import psycopg2

    connection = psycopg2.connect(
        host=str(_socket_folder(layout)), user=_OWNER, dbname="postgres",
        passfile=str(_password_file(layout)), connect_timeout=5,
    )  # fmt: skip
    # A database can't be made within one.
    connection.autocommit = True
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def _socket_folder(layout: StackLayout) -> Path:
    return layout.database / "socket"


def _password_file(layout: StackLayout) -> Path:
    return layout.folder / "postgres.password"


def _system_user() -> pwd.struct_passwd | None:
    """Return the user that PostgreSQL runs as in root's place; None for anyone but root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        return None


def _chown(path: Path, owner: pwd.struct_passwd | None) -> None:
    if owner:
        os.chown(path, owner.pw_uid, owner.pw_gid)


def _version(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdigit() else 0


_DRIVER, _MLFLOW_DRIVER = "postgresql+asyncpg", "postgresql+psycopg2"


def read_address(address: str, variable: str) -> URL:
    """Return a PostgreSQL's address; raise `UsageProblem` for another kind of one."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except ArgumentError:
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        # An address may hold a password: it isn't shown.
        kind = url.get_backend_name() if url else "no address of a database"
        raise UsageProblem(
            f"{variable} names no PostgreSQL", expected="postgresql+asyncpg://user@host/database",
            got=kind, remedy="Name one, or unset it and add --sqlite to try the stack out",
        )  # fmt: skip
    return url


def mlflow_address(prefect: URL, configured: str) -> str:
    """Return MLflow's database: the one that is named, else `mlflow` on Prefect's server."""
    if configured:
        return configured
    url = prefect.set(drivername=_MLFLOW_DRIVER, database="mlflow")
    # The drivers name the one option that most addresses have differently.
    if "ssl" in url.query:
        query = {k: v for k, v in url.query.items() if k != "ssl"}
        url = url.set(query={**query, "sslmode": url.query["ssl"]})
    return url.render_as_string(hide_password=False)


async def require_database(prefect: URL, *, makes_mlflow: bool) -> None:
    """Connect, and make the database `mlflow` where it is missing; raise `UsageProblem`."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(prefect.set(drivername=_DRIVER), isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            names = {
                row[0] for row in await connection.execute(text("select datname from pg_database"))
            }
            if makes_mlflow and "mlflow" not in names:
                await connection.execute(text('create database "mlflow"'))
    except (SQLAlchemyError, OSError) as error:
        raise UsageProblem(
            "The PostgreSQL that is named can't be used",
            expected="a database for Prefect, and one for MLflow, or the right to make it",
            got=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}",
            remedy="Fix that; MLFLOW_BACKEND_STORE_URI may name another for MLflow",
        ) from error
    finally:
        await engine.dispose()
