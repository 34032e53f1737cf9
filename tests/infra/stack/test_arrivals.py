"""Webhook, watched places and metrics as services of the stack: kept, killed, left out again."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from handoff.artifacts.errors import UsageProblem
from handoff.infra.stack.arrivals import resolve_watched, resolve_webhook
from handoff.infra.stack.layout import Choices, StackLayout
from handoff.infra.stack.setup import Setup, describe_setup, read_setup, write_setup
from tests.infra.triggers.webhooks import SECRET
from tests.prefect_server import free_port
from tests.served_stack import handoff_home, wait_until

_HOOKS = """
[[source]]
kind = "github"
{secret}
repository = "team/toy"
model = "toy"
delivery = "git+https://host/team/toy.git@{{commit}}#subdirectory=delivery"
"""


def write_hooks(folder: Path, secret: str = 'secret_file = "{folder}/secret"') -> Path:
    (folder / "secret").write_text(SECRET)
    path = folder / "hooks.toml"
    path.write_text(_HOOKS.format(secret=secret.format(folder=folder)))
    return path


def test_a_secret_that_ends_with_the_shell_is_refused_and_one_in_a_file_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    path = write_hooks(tmp_path)
    assert resolve_webhook(Choices(webhook="hooks.toml")) == str(path)
    write_hooks(tmp_path, 'secret_env = "HOOK_SECRET"')
    with pytest.raises(UsageProblem, match="outlives this shell"):
        resolve_webhook(Choices(webhook=str(path)))
    with pytest.raises(UsageProblem, match="no webhook configuration"):
        resolve_webhook(Choices(webhook="none.toml"))
    assert resolve_webhook(Choices(webhook="off")) == resolve_webhook(Choices()) == ""


def test_places_are_told_by_their_whole_path_and_have_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    wanted = Choices(watch=("in", "s3://models/in"))
    assert resolve_watched(wanted) == (str(tmp_path / "in"), "s3://models/in")
    with pytest.raises(UsageProblem, match="can't be watched"):
        resolve_watched(Choices(watch=("nowhere",)))
    assert resolve_watched(Choices(watch=("off",))) == resolve_watched(Choices()) == ()


def test_they_are_kept_with_what_a_stack_was_set_up_with(tmp_path: Path) -> None:
    place = StackLayout(tmp_path)
    place.folder.mkdir()
    setup = Setup(Choices(webhook="/etc/hooks.toml", watch=("/srv/a", "s3://models/in")))
    write_setup(place, setup)
    assert read_setup(place) == setup
    assert describe_setup(setup) == (
        "--webhook /etc/hooks.toml, --watch /srv/a, --watch s3://models/in"
    )  # fmt: skip


@pytest.mark.server
@pytest.mark.long
def test_they_run_with_the_stack_come_back_when_killed_and_are_left_out_when_switched_off(
    tmp_path: Path,
) -> None:
    hooks, port, figures = write_hooks(tmp_path), free_port(), free_port()
    (tmp_path / "in").mkdir()
    with handoff_home({}) as home:
        up = home.up(
            "--sqlite", "--webhook", str(hooks), "--webhook-port", str(port),
            "--watch", str(tmp_path / "in"), "--metrics", "--metrics-port", str(figures), "--json",
        )  # fmt: skip
        assert up.returncode == 0, up.stderr
        services = {one["service"]: one for one in json.loads(up.stdout)["services"]}
        restarted = ("webhook", "watch-1", "metrics")
        assert {services[name]["state"] for name in restarted} == {"healthy"}
        for name in restarted:
            os.kill(services[name]["process"], signal.SIGKILL)
        wait_until("all healthy again", lambda: home.run("status").returncode == 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{figures}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        for source in ("prefect", "store", "store_use", "home"):
            assert f'handoff_source_up{{source="{source}"}} 1.0' in text
        assert 'handoff_workers_online{pool="handoff-build"} 1.0' in text
        own = services["prefect"]["address"] + "/api/metrics"
        with urllib.request.urlopen(own, timeout=30) as answer:
            assert b"# HELP" in answer.read()
        with urllib.request.urlopen(services["mlflow"]["address"] + "/metrics", timeout=30) as one:
            assert b"mlflow_http_request_total" in one.read()
        assert home.run("down").returncode == 0
        assert home.left() == []
        up = home.up("--webhook", "off", "--watch", "off", "--no-metrics", "--json")
        assert up.returncode == 0, up.stderr
        names = {one["service"] for one in json.loads(up.stdout)["services"]}
        assert names == {"prefect", "mlflow", "control", "build"}
