"""Servers on this machine: whether a port is free, what one answers, and what it said last."""

from __future__ import annotations

import base64
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

from handoff.artifacts.errors import UsageProblem


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
    request = urllib.request.Request(address)  # noqa: S310 - an http address of a setting
    if login:
        token = base64.b64encode(login.encode()).decode()
        request.add_header("Authorization", f"Basic {token}")
    # No proxy is between a machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


def last_words(log: Path) -> str:
    """Return the last line of a log that names an error, else the last one; shortened."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            lines = stream.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    errors = [line for line in lines if re.search(r"\w(Error|Exception)\b.*:", line)]
    return (errors or lines or [""])[-1].strip()[:300].rstrip(".")
