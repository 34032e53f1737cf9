"""The examples of triggers do what they say, against real servers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from handoff.infra.triggers.spool import Spool
from handoff.tasks.fetch import step as fetch
from handoff.tasks.fetch.messages import FetchJob
from tests.infra.triggers.conftest import Handoff
from tests.infra.triggers.webhooks import SECRET, runs_of, webhook
from tests.served_stack import wait_until

TRIGGERS = Path(__file__).parents[3] / "examples" / "triggers"
with_git = pytest.mark.skipif(shutil.which("git") is None, reason="git isn't installed")


class Pushing:
    """A repository with the hook, and a clone that pushes to it."""

    def __init__(self, folder: Path, api: str, model: str) -> None:
        self.bare, self.clone = folder / "model.git", folder / "clone"
        (folder / "bin").mkdir()
        (folder / "bin" / "handoff").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m handoff "$@"\n'
        )
        (folder / "bin" / "handoff").chmod(0o755)
        (folder / "env").write_text(
            f"PREFECT_API_URL={api}\nHANDOFF_HOME={folder}/home\nPATH={folder}/bin:$PATH\n"
        )
        self.git("init", "-q", "--bare", "-b", "main", str(self.bare), folder=folder)
        self.git("config", "handoff.model", model, folder=self.bare)
        self.git("config", "handoff.env", str(folder / "env"), folder=self.bare)
        shutil.copy(TRIGGERS / "post-receive", self.bare / "hooks" / "post-receive")
        self.git("clone", "-q", str(self.bare), str(self.clone), folder=folder)

    def git(self, *arguments: str, folder: Path | None = None) -> str:
        named = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", "-C", str(folder or self.clone), *named, *arguments],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout + done.stderr

    def push(self, branch: str = "main") -> tuple[str, str]:
        """Commit and push; return the commit and what the pusher reads."""
        delivery = self.clone / "delivery"
        delivery.mkdir(exist_ok=True)
        (delivery / "module.py").write_text(f"# {uuid.uuid4()}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "A model")
        commit = self.git("rev-parse", "HEAD").strip()
        return commit, self.git("push", "-q", "origin", f"HEAD:{branch}")


@pytest.mark.server
@with_git
def test_a_push_with_the_hook_becomes_a_run_whose_delivery_is_that_commits(
    prefect_api: str, client: Any, tmp_path: Path
) -> None:
    model = f"toy-{uuid.uuid4().hex[:8]}"
    pushing = Pushing(tmp_path, prefect_api, model)
    commit, output = pushing.push()
    # A busy server may take longer than a push waits: what is kept is posted behind it.
    posted = rf"posted {model} {commit[:12]}: run release {model} {commit[:12]}, posted \S+, \S+"
    assert re.search(rf"{posted}|kept {model} {commit[:12]}: .* doesn't answer", output), output
    wait_until("it is posted", lambda: len(runs_of(client, model)) == 1, 60)
    (run,) = runs_of(client, model)
    parameters = run.parameters["parameters"]
    assert (parameters["commit"], parameters["model"]) == (commit, model)
    fetch.run(FetchJob(parameters["delivery"], tmp_path / "fetched"))
    pushed = (pushing.clone / "delivery" / "module.py").read_bytes()
    assert (tmp_path / "fetched" / "module.py").read_bytes() == pushed
    assert "posted" not in pushing.push("other")[1]
    assert "posted" not in pushing.git("push", "-q", "origin", ":other")


@pytest.mark.server
@with_git
def test_a_push_goes_through_when_nobody_answers_and_is_made_up_for(
    prefect_api: str, client: Any, handoff: Handoff, tmp_path: Path
) -> None:
    model = f"toy-{uuid.uuid4().hex[:8]}"
    pushing = Pushing(tmp_path, "http://127.0.0.1:9/api", model)
    commits = []
    for _ in range(2):
        commit, output = pushing.push()
        assert f"kept {model} {commit[:12]}: the Prefect server doesn't answer" in output
        assert pushing.git("rev-parse", "main", folder=pushing.bare).strip() == commit
        commits.append(commit)
    # What the hook has left behind goes on trying, where nobody answers.
    for process in psutil.process_iter(["cmdline"]):
        is_waiting = (process.info["cmdline"] or [])[-3:] == ["notify", "--kept", "--wait"]
        if is_waiting and process.environ()["HANDOFF_HOME"] == str(tmp_path / "home"):
            process.kill()
    assert [one.arrival.commit for one in Spool(tmp_path / "home").list_waiting()] == commits
    ended = handoff("notify", "--kept", HANDOFF_HOME=str(tmp_path / "home"))
    assert (ended.returncode, ended.stdout.strip()) == (0, "2 posted, 0 wait"), ended.stderr
    runs = runs_of(client, model)
    assert [run.parameters["parameters"]["commit"] for run in runs] == commits


@pytest.mark.server
@with_git
def test_a_push_goes_through_when_nothing_can_be_kept_either(tmp_path: Path) -> None:
    pushing = Pushing(tmp_path, "http://127.0.0.1:9/api", "toy")
    (tmp_path / "home").write_text("not a folder")
    commit, output = pushing.push()
    assert f"handoff was not told of {commit}: 'handoff notify' makes up for it" in output
    assert pushing.git("rev-parse", "main", folder=pushing.bare).strip() == commit


@pytest.mark.server
def test_tell_signs_what_the_webhook_verifies(prefect_api: str, tmp_path: Path) -> None:
    with webhook(tmp_path, prefect_api) as served:
        command = [
            sys.executable, str(TRIGGERS / "notify.py"), f"http://127.0.0.1:{served.port}/handoff",
            "delivery=s3://models/in/toy", f"commit={uuid.uuid4().hex}", "model=toy",
        ]  # fmt: skip

        def send(secret: str) -> subprocess.CompletedProcess[str]:
            environment = {**os.environ, "HANDOFF_HOOK_SECRET": secret}
            return subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )

        assert json.loads(send(SECRET).stdout)["runs"][0]["new"] is True
        forged = send("x" * 32)
        assert (forged.returncode, "401" in forged.stderr) == (1, True)


@pytest.mark.parametrize("name", ["post-receive", "github-actions.yml", "gitlab-ci.yml"])
def test_what_the_examples_ask_notify_for_is_what_it_takes(name: str) -> None:
    from handoff.infra.triggers.cli import notify

    known = {option for parameter in notify.params for option in parameter.opts}
    text = (TRIGGERS / name).read_text()
    command = text.partition("handoff notify --" if name == "post-receive" else "handoff notify\n")
    used = set(
        re.findall(r"(?<![\w-])--[a-z]+", f"--{command[2]}" if "--" in command[1] else command[2])
    )
    assert {"--delivery", "--commit", "--model"} <= used <= known


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_pipelines_are_yaml_with_a_notify_job(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    parsed = yaml.safe_load((TRIGGERS / name).read_text())
    assert "notify" in (parsed.get("jobs") or parsed)


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell")
@pytest.mark.parametrize("name", ["post-receive", "minio.sh"])
def test_the_scripts_are_shell(name: str) -> None:
    assert os.access(TRIGGERS / name, os.X_OK)
    subprocess.run(["sh", "-n", str(TRIGGERS / name)], check=True)


@pytest.mark.server
def test_notify_without_a_model_still_posts(handoff: Handoff) -> None:
    ended = handoff("notify", "--delivery", "/data/x", "--model", "", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["key"].startswith("release:-:")
