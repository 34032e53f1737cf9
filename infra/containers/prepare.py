"""What a served stack needs besides its processes: databases, a bucket, a user, health, draining.

    python prepare.py databases           roles and databases of Prefect and MLflow, as PG* says
    python prepare.py bucket NAME         the bucket, as AWS_* says
    python prepare.py mlflow-user         the workers' user on the MLflow server
    python prepare.py pool NAME           is the work pool there, and may this machine ask for work?
    python prepare.py told SECONDS        has `handoff tell` looked within so many seconds?
    python prepare.py podtemplates FILE   the PodTemplates of this namespace, for `handoff deploy`
    python prepare.py drained SECONDS     wait until no flow run is under way in this container

It runs in the servers' image too, which holds nothing of Handoff: so it imports nothing of it and
reads its own settings. Each command may be repeated, and ends with 1 and one sentence if it failed.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# How long a server that is starting is waited for.
START_LIMIT_S = 120.0
# What this program reads, besides what libpq (PG*) and boto3 (AWS_*) read for themselves.
DATABASE_PASSWORDS = {"prefect": "PREFECT_DATABASE_PASSWORD", "mlflow": "MLFLOW_DATABASE_PASSWORD"}
SETTINGS = frozenset(
    {
        *DATABASE_PASSWORDS.values(),
        "PREFECT_API_URL", "PREFECT_API_AUTH_STRING",
        "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_AUTH_ADMIN_USERNAME", "MLFLOW_AUTH_ADMIN_PASSWORD", "HANDOFF_HOME",
    }
)  # fmt: skip
_DATABASES = {"prefect": "prefect", "mlflow": "mlflow", "mlflow_auth": "mlflow"}
# Where Kubernetes puts the token of a pod's account.
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_FLOW_RUN = b"handoff.infra.prefect.flow_run"

_Result = TypeVar("_Result")


class PreparationFailed(Exception):
    """Something couldn't be set up; the message says what."""


def main(arguments: list[str]) -> int:
    """Carry out one command; return the exit code."""
    commands: dict[tuple[str, int], Callable[..., str]] = {
        ("databases", 0): prepare_databases,
        ("bucket", 1): prepare_bucket,
        ("mlflow-user", 0): prepare_mlflow_user,
        ("pool", 1): require_pool,
        ("told", 1): require_recent_look,
        ("podtemplates", 1): keep_pod_templates,
        ("drained", 1): wait_until_drained,
    }
    command = commands.get((arguments[0], len(arguments) - 1)) if arguments else None
    if command is None:
        sys.stderr.write(f"{__doc__}\n")
        return 64
    try:
        sys.stdout.write(f"{command(*arguments[1:])}\n")
    except (PreparationFailed, OSError) as error:
        sys.stderr.write(f"prepare {arguments[0]}: {error}\n")
        return 1
    return 0


def prepare_databases() -> str:
    """Make the roles with the passwords that are set, and the databases, each its role's own."""
    import psycopg2
    from psycopg2 import sql

    passwords = {role: _require(name) for role, name in DATABASE_PASSWORDS.items()}
    connection = _retry(lambda: psycopg2.connect(""), psycopg2.OperationalError)
    connection.autocommit = True  # no database is made within a transaction
    with connection.cursor() as cursor:
        for role, password in passwords.items():
            name = sql.Identifier(role)
            cursor.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,))
            if cursor.fetchone() is None:
                cursor.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
            cursor.execute(sql.SQL("ALTER ROLE {} PASSWORD %s").format(name), (password,))
            # An administrator who is no superuser (a cloud's) may give to roles that it is in.
            cursor.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(name))
        for database, role in _DATABASES.items():
            name = sql.Identifier(database)
            cursor.execute("SELECT FROM pg_database WHERE datname = %s", (database,))
            if cursor.fetchone() is None:
                create = sql.SQL("CREATE DATABASE {} OWNER {}")
                cursor.execute(create.format(name, sql.Identifier(role)))
            cursor.execute(sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(name))
    connection.close()
    return f"databases: {', '.join(_DATABASES)}"


def prepare_bucket(bucket: str) -> str:
    """Make the bucket where it isn't there; nothing else of it is touched."""
    import boto3
    from botocore.exceptions import ClientError, EndpointConnectionError

    client = boto3.client("s3")

    def make() -> None:
        try:
            client.head_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] not in {"404", "NoSuchBucket"}:
                raise PreparationFailed(
                    f"the bucket {bucket} can't be looked at: {error}"
                ) from error
            _create_bucket(client, bucket)

    _retry(make, EndpointConnectionError)
    return f"bucket: {bucket}"


def _create_bucket(client: S3Client, bucket: str) -> None:
    region = client.meta.region_name
    if region == "us-east-1":  # which S3 refuses to be told
        client.create_bucket(Bucket=bucket)
        return
    configuration: Any = {"LocationConstraint": region}
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration=configuration)


def prepare_mlflow_user() -> str:
    """Make the workers' user: no administrator, it may change what it has made itself."""
    server = _require("MLFLOW_TRACKING_URI").rstrip("/")
    user, password = _require("MLFLOW_TRACKING_USERNAME"), _require("MLFLOW_TRACKING_PASSWORD")
    admin = f"{_require('MLFLOW_AUTH_ADMIN_USERNAME')}:{_require('MLFLOW_AUTH_ADMIN_PASSWORD')}"
    body = {"username": user, "password": password}
    _retry(lambda: _ask(f"{server}/health", ""), urllib.error.URLError)
    try:
        _ask(f"{server}/api/2.0/mlflow/users/create", admin, body)
    except urllib.error.HTTPError as error:
        text = error.read().decode("utf-8", "replace")
        if "RESOURCE_ALREADY_EXISTS" not in text:
            raise PreparationFailed(
                f"MLflow refused to make {user}: {error.code} {text[:300]}"
            ) from None
    try:
        _ask(f"{server}/api/2.0/mlflow/users/get?username={quote(user)}", f"{user}:{password}")
    except urllib.error.HTTPError as error:
        raise PreparationFailed(
            f"{user} is there, and MLflow doesn't take its password ({error.code}): change it by "
            "the administrator's update-password"
        ) from None
    return f"MLflow user: {user}"


def require_pool(name: str) -> str:
    """Ask the Prefect server for the pool, with this machine's credentials."""
    address = f"{_require('PREFECT_API_URL').rstrip('/')}/work_pools/{quote(name)}"
    try:
        _ask(address, os.environ.get("PREFECT_API_AUTH_STRING", ""))
    except urllib.error.HTTPError as error:
        remedy = {401: "PREFECT_API_AUTH_STRING is wrong", 404: "'handoff deploy' makes it"}
        raise PreparationFailed(
            f"work pool {name}: {error.code}. {remedy.get(error.code, error.reason)}"
        ) from None
    return f"work pool: {name}"


def require_recent_look(limit_s: str) -> str:
    """Return a sentence if `handoff tell` has looked lately; raise `PreparationFailed` otherwise.

    It is asked in that container, by the file in which it remembers its last look.
    """
    file = Path(_require("HANDOFF_HOME")) / "telling" / "memory.json"
    try:
        ago = time.time() - float(json.loads(file.read_text("utf-8"))["looked"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PreparationFailed(f"it has not looked yet: {error}") from error
    if ago > float(limit_s):
        raise PreparationFailed(f"it looked {ago:.0f} s ago, expected {limit_s} at most")
    return f"it looked {ago:.0f} s ago"


def keep_pod_templates(file: str) -> str:
    """Write the PodTemplates of this pod's namespace into a file, as the pod's account reads them.

    They are applied together with what runs this: it waits until there are some.
    """
    # Not what Prefect and MLflow are served by: it is in the image for Prefect's Kubernetes worker.
    import asyncio

    from kubernetes_asyncio import client, config

    namespace = Path(_ACCOUNT, "namespace").read_text("utf-8").strip()

    async def read() -> dict[str, Any]:
        config.load_incluster_config()
        async with client.ApiClient() as api:
            templates = await client.CoreV1Api(api).list_namespaced_pod_template(namespace)
            content: dict[str, Any] = api.sanitize_for_serialization(templates)
            return content

    def look() -> dict[str, Any]:
        try:
            content = asyncio.run(read())
        except client.ApiException as error:
            raise PreparationFailed(f"the PodTemplates can't be read: {error.status}") from error
        if not content["items"]:
            raise LookupError(f"no PodTemplate is in the namespace {namespace}")
        return content

    content = _retry(look, LookupError)
    Path(file).write_text(json.dumps({**content, "kind": "PodTemplateList"}), "utf-8")
    return f"PodTemplates: {', '.join(item['metadata']['name'] for item in content['items'])}"


def wait_until_drained(limit_s: str) -> str:
    """Wait until no process of a flow run is left here; pause the work pool before."""
    deadline = time.monotonic() + float(limit_s)
    while left := _flow_runs_here():
        if time.monotonic() > deadline:
            raise PreparationFailed(f"after {limit_s} s flow runs are still under way: {left}")
        time.sleep(1.0)
    return "drained"


def _flow_runs_here() -> list[int]:
    """Return the processes of this container that carry out a flow run."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended since
        if _FLOW_RUN in command:
            processes.append(int(file.parent.name))
    return processes


def _require(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise PreparationFailed(f"{name} is not set")
    return value


def _ask(address: str, login: str, body: dict[str, str] | None = None) -> bytes:
    """Send a GET, or a POST of `body`, with `login` (`user:password`) where there is one."""
    headers = {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    data = None if body is None else json.dumps(body).encode()
    if not address.startswith(("http://", "https://")):
        raise PreparationFailed(f"expected an address with http:// or https://, got {address}")
    request = urllib.request.Request(address, data=data, headers=headers)  # noqa: S310 - see above
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
        return bytes(answer.read())


def _retry(attempt: Callable[[], _Result], absent: type[Exception]) -> _Result:
    """Return what the attempt gives; repeat it while the server isn't up yet."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            return attempt()
        except absent as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                raise PreparationFailed(
                    f"no answer within {START_LIMIT_S:.0f} s: {error}"
                ) from error
            time.sleep(1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
