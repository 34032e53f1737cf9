"""A stack that an engine runs, and Handoff before it, as people of another machine have it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.infra.stack.stack_files import STACK, example_commands
from tests.infra.stack.stack_processes import status_of
from tests.studies.containers.engine import Engine
from tests.studies.containers.images import copy_files
from tests.studies.containers.seen import TrialFailed

PREFECT, MLFLOW, S3 = (f"http://127.0.0.1:{port}" for port in (4200, 5000, 9000))
BLOCK = "custom-webhook/beside"
_HANDOFF = [sys.executable, "-m", "handoff"]
_MODEL = """
import torch


def build(seed={seed}, width={width}):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)
    )
    return model.eval(), (torch.randn(8, 16),)
"""


@dataclass(frozen=True)
class Stack:
    """A stack whose `.env` and keys, made as `.env.example` says, are in `folder`."""

    engine: Engine
    folder: Path

    @property
    def client_folder(self) -> Path:
        """Where somebody outside works, whose home remembers the ledgers of this stack alone."""
        return self.engine.folder / "desk"

    @cached_property
    def values(self) -> dict[str, str]:
        """What `.env` says."""
        text = (self.folder / ".env").read_text("utf-8")
        return dict(re.findall(r"(?m)^([A-Z0-9_]+)=(.*)$", text))

    def make_files(self, changed: dict[str, str]) -> None:
        """Make `.env`, keys and secrets by the very commands that `.env.example` has."""
        for folder in (self.folder, self.client_folder):
            shutil.rmtree(folder, ignore_errors=True)
        self.client_folder.mkdir()
        copy_files(self.folder)
        example = (STACK / ".env.example").read_text("utf-8")
        script = self.folder / "as-the-example-says.sh"
        script.write_text(example_commands(), "utf-8")
        # Their output, the passwords, is not for the log.
        printed = self.folder / "secrets.txt"
        self.engine.log.run(
            ["bash", "-c", f"umask 077; bash {script.name} > {printed.name}"], folder=self.folder
        )
        made = dict(re.findall(r"(?m)^([A-Z0-9_]+)=(\w+)$", printed.read_text("utf-8")))
        printed.unlink()
        for name, value in {**made, **changed}.items():
            example, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", example)
            if count != 1:
                raise TrialFailed(f".env.example has no line for {name}")
        (self.folder / ".env").touch(mode=0o600)
        (self.folder / ".env").write_text(example, "utf-8")
        token = self.folder / "secrets" / "forge-token"
        token.touch(mode=0o400)
        os.chown(token, 10001, 10001)

    @property
    def outside(self) -> dict[str, str]:
        """What somebody outside of the containers sets, as their README says."""
        values = self.values
        return {
            **{name: value for name, value in os.environ.items() if "HANDOFF" not in name},
            "HANDOFF_HOME": f"{self.client_folder}/home", "DO_NOT_TRACK": "true",
            "HANDOFF_STORE": f"s3://{values['S3_BUCKET']}/store",
            "HANDOFF_TRUSTED_KEYS": f"{self.folder}/secrets/trusted",
            "PREFECT_API_URL": f"{PREFECT}/api",
            "PREFECT_API_AUTH_STRING": f"handoff:{values['PREFECT_PASSWORD']}",
            "PREFECT_HOME": f"{self.client_folder}/home/prefect",
            "AWS_ENDPOINT_URL": S3, "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": values["S3_USER"],
            "AWS_SECRET_ACCESS_KEY": values["S3_PASSWORD"],
        }  # fmt: skip

    def handoff(
        self, *words: str, limit_s: float = 1500, trusted: Path | None = None, expected: int = 0
    ) -> str:
        """Run Handoff outside of the containers; return what it printed.

        `trusted` is a key to trust in place of the stack's.
        """
        trusting = {"HANDOFF_TRUSTED_KEYS": str(trusted)} if trusted else {}
        return self.engine.log.run(
            [*_HANDOFF, *words], environment={**self.outside, **trusting},
            folder=self.client_folder, limit_s=limit_s, expected=expected,
        )  # fmt: skip

    def make_block(self, address: str) -> None:
        """Make the notification block that `.env` names, which posts to that address."""
        code = (
            "import sys\n"
            "from prefect.blocks.notifications import CustomWebhookNotificationBlock as Block\n"
            "block = Block(name='beside', url=sys.argv[1], json_data={'text': '{{subject}}: "
            "{{body}}'}, allow_private_urls=True)\n"
            "block.save(sys.argv[2], overwrite=True)\n"
        )
        self.engine.log.run(
            [sys.executable, "-c", code, address, BLOCK.partition("/")[2]],
            environment=self.outside, folder=self.client_folder,
        )  # fmt: skip

    def deliver(self, prefix: str, *, seed: int, width: int, name: str = "toy") -> str:
        """Write a delivery of that name and put it into the bucket; return its address."""
        import boto3

        module, folder = f"model_{prefix}", self.client_folder / f"delivery-{prefix}"
        code = self.client_folder / f"{module}.py"
        code.write_text(_MODEL.format(seed=seed, width=width), "utf-8")
        factory = f"{module}:build"
        self.handoff("deliver", factory, "--to", str(folder), "--name", name, "--yes")
        client = boto3.client(
            "s3", endpoint_url=S3, region_name="us-east-1",
            aws_access_key_id=self.values["S3_USER"],
            aws_secret_access_key=self.values["S3_PASSWORD"],
        )  # fmt: skip
        for path in folder.rglob("*"):
            if path.is_file():
                key = f"in/{prefix}/{path.relative_to(folder)}"
                client.upload_file(str(path), self.values["S3_BUCKET"], key)
        return f"s3://{self.values['S3_BUCKET']}/in/{prefix}"

    def ask_prefect(self, path: str, body: object = None) -> Any:
        """Ask Prefect's API with the stack's login; return its answer, read."""
        login = f"handoff:{self.values['PREFECT_PASSWORD']}"
        status, answer = status_of(f"{PREFECT}/api/{path}", login, body)
        if status not in (200, 201):
            raise TrialFailed(f"Prefect answered {status} to {path}: {answer[:200]!r}")
        return json.loads(answer)

    def ask_mlflow(self, path: str, user: str = "handoff") -> Any:
        """Ask MLflow's API with the workers' login; return its answer, read."""
        login = f"{user}:{self.values['MLFLOW_PASSWORD']}"
        status, answer = status_of(f"{MLFLOW}/api/2.0/mlflow/{path}", login)
        if status != 200:
            raise TrialFailed(f"MLflow answered {status} to {path}: {answer[:200]!r}")
        return json.loads(answer)

    def release_runs(self) -> list[dict[str, Any]]:
        """Return the flow runs of releases that the server keeps, the newest first."""
        body = {"flows": {"name": {"any_": ["release"]}}, "sort": "START_TIME_DESC"}
        found: list[dict[str, Any]] = self.ask_prefect("flow_runs/filter", body)
        return found

    def versions(self, model: str = "toy") -> int:
        """Return how many versions a model has; 0 for one that the stack doesn't know."""
        listed = json.loads(self.handoff("list", "--json"))["models"]
        return next((int(one["version"]) for one in listed if one["name"] == model), 0)

    def release(self, source: str, commit: str) -> float:
        """Release a delivery and wait for it; return the seconds that it took."""
        began = time.monotonic()
        self.handoff("notify", "--delivery", source, "--commit", commit, "--wait")
        return time.monotonic() - began
