"""The stack that compose brings up."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from tests.infra.stack.stack_files import TOOLS
from tests.studies.containers.seen import TrialFailed
from tests.studies.containers.stack import Stack

METRICS = "http://127.0.0.1:9464/metrics"
PROFILES = ("metrics", "tell", "tls")
# What compose marks a container with: its service.
SERVICE = "com.docker.compose.service"


@dataclass(frozen=True)
class ComposedStack(Stack):
    """The files of compose in `folder`, beside its `.env` and keys."""

    def compose(self, *words: str, limit_s: float = 900) -> str:
        """Run compose; return what it printed."""
        program = str(TOOLS / "docker-compose")
        base = [program, "--progress=plain", f"--file={self.folder}/compose.yaml"]
        environment = self.engine.environment
        return self.engine.log.run([*base, *words], environment=environment, limit_s=limit_s)

    def keep_logs(self) -> None:
        """Keep in a file what the containers have said, which goes with them."""
        said = self.compose("--profile=*", "logs", "--no-color", "--timestamps")
        with (self.engine.folder / "services.log").open("a", encoding="utf-8") as stream:
            stream.write(said)

    def in_container(self, service: str, *words: str, limit_s: float = 300) -> str:
        """Run a command in a service's container; return what it printed."""
        return self.compose("exec", "-T", service, *words, limit_s=limit_s)

    def containers(self) -> list[dict[str, Any]]:
        """Return what the engine says of each of the stack's containers, those that ended, too."""
        listed = self.engine.ask("ps", "--all", "--quiet", "--filter", f"label={SERVICE}")
        found: list[dict[str, Any]] = json.loads(self.engine.ask("inspect", *listed.split()))
        return found

    def container(self, service: str) -> dict[str, Any]:
        """Return what the engine says of a service's container."""
        for one in self.containers():
            if one["Config"]["Labels"][SERVICE] == service:
                return one
        raise TrialFailed(f"there is no container of {service}")

    def wait_healthy(self, service: str, limit_s: float = 240) -> float:
        """Return the seconds that it took until the service was healthy."""
        began = time.monotonic()
        while self.container(service)["State"].get("Health", {}).get("Status") != "healthy":
            if time.monotonic() - began > limit_s:
                raise TrialFailed(f"{service} wasn't healthy within {limit_s:.0f} s")
            time.sleep(1)
        return time.monotonic() - began
