"""Servers: whether a port is free, what one answers, and what it said last.

A login is `user:password`, or a `Key`: the key or token of a managed service.
"""

from __future__ import annotations

import base64
import re
import socket
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from handoff.artifacts.errors import UsageProblem
from handoff.infra.settings import Key

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def require_free_port(host: str, port: int, name: str, option: str = "--port") -> None:
    """Raise `UsageProblem` where something else listens on the port that is meant for `name`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageProblem(
                f"Port {port}, for {name}, can't be used", expected="a free port",
                got=error.strerror or str(error), remedy=f"Name another with {option}, or end "
                "what listens there. Nothing was started",
            ) from error  # fmt: skip


def get_status(address: str, login: str = "") -> int:
    """Return the HTTP status that an address answers with; 0 for no answer."""
    try:
        with _open(address, login) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


def prefect_status(api: str, login: str) -> int:
    """Return how a Prefect server answers the cheapest question that needs a login; 0: not at all.

    Prefect Cloud, whose logins are keys, has no such question: there it is a pool that isn't there.
    """
    if not isinstance(login, Key):
        return get_status(f"{api.rstrip('/')}/admin/version", login)
    status = get_status(f"{api.rstrip('/')}/work_pools/none-of-this-name", login)
    return 200 if status == 404 else status


def is_loopback(address: str) -> bool:
    """Return whether an address is this machine's own: no proxy is between."""
    return urlsplit(address).hostname in LOOPBACK


def mlflow_probe_url(address: str) -> str:
    """Return the address of the cheapest question that an MLflow server needs a login for."""
    return f"{address.rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"


def clock_ahead_s(address: str, login: str = "") -> float | None:
    """Return how many seconds this clock is ahead of a server's; None where that doesn't say."""
    asked_at = time.time()
    try:
        with _open(address, login) as response:
            date = response.headers.get("Date", "")
        server_time = parsedate_to_datetime(date).timestamp()
    except (OSError, ValueError, TypeError):
        return None
    # The header has whole seconds, and was written between the question and the answer.
    low, high = asked_at - server_time - 1, time.time() - server_time
    return low if low > 0 else high if high < 0 else 0.0


def _open(address: str, login: str) -> HTTPResponse:
    request = urllib.request.Request(address)  # noqa: S310 - an http address of a setting
    if isinstance(login, Key):
        request.add_header("Authorization", f"Bearer {login}")
    elif login:
        token = base64.b64encode(login.encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    proxies = urllib.request.ProxyHandler({} if is_loopback(address) else None)
    opener = urllib.request.build_opener(proxies)
    response: HTTPResponse = opener.open(request, timeout=5)
    return response


def last_error_line(log: Path) -> str:
    """Return the last line of a log that names an error, else the last one; shortened."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if re.search(r"\w(Error|Exception)\b.*:", line)]
    return (errors or lines or [""])[-1].strip()[:300].rstrip(".")
