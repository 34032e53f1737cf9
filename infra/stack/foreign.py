"""A PostgreSQL that the user names: MLflow gets a database beside Prefect's there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.artifacts.errors import UsageProblem

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

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


def mlflow_address(prefect: URL, named: str) -> str:
    """Return MLflow's database: the one that is named, else `mlflow` on Prefect's server."""
    if named:
        return named
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
        async with engine.connect() as link:
            names = {row[0] for row in await link.execute(text("select datname from pg_database"))}
            if makes_mlflow and "mlflow" not in names:
                await link.execute(text('create database "mlflow"'))
    except (SQLAlchemyError, OSError) as error:
        raise UsageProblem(
            "The PostgreSQL that is named can't be used",
            expected="a database for Prefect, and one for MLflow beside it or the right to make it",
            got=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}",
            remedy="Mend that; MLFLOW_BACKEND_STORE_URI may name another for MLflow",
        ) from error
    finally:
        await engine.dispose()
