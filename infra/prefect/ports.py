"""Ports that a server is going to listen on: asked before anything is started."""

from __future__ import annotations

import socket

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
