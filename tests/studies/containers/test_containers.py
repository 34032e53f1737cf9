"""What `make stack-run` says before it begins, what it notes, and what it leaves: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.studies.containers import machine, namespaces
from tests.studies.containers.cluster import programs
from tests.studies.containers.cluster.node import write_runtime
from tests.studies.containers.engine import debian_site
from tests.studies.containers.images import STANDINS, foreign_images, own_images
from tests.studies.containers.receiver import receiving
from tests.studies.containers.seen import Log, ResultLog, Row, TrialFailed, table

_DEBIAN = {"ID": "debian", "VERSION_ID": "12"}
_APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "true"]


def test_a_machine_is_told_in_a_sentence_what_it_lacks(tmp_path: Path) -> None:
    lacks = machine.missing(
        tmp_path, tmp_path / "docker-compose", user=1000,
        release={"ID": "fedora", "VERSION_ID": "43"}, path=str(tmp_path),
    )  # fmt: skip
    assert lacks[0] == "expected root, who may make namespaces and mounts: sudo make stack-run"
    assert lacks[1].endswith("got fedora 43")
    assert "apt-get install --no-install-recommends apt dpkg" in lacks[2]
    assert "mmdebstrap" in lacks[2]
    assert lacks[3].endswith("make stack-ready installs it")


def test_a_machine_that_has_all_of_it_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mmdebstrap", "runc", "iptables", "ip", "nsenter", "dpkg", "apt-get", "openssl"):
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "docker-compose").touch()
    monkeypatch.setattr(machine, "_KEYRING", tmp_path / "docker-compose")
    monkeypatch.setattr(machine, "DISK_GB", 0)
    monkeypatch.setattr(machine, "MEMORY_GB", 0)
    compose = tmp_path / "docker-compose"
    assert not machine.missing(tmp_path, compose, user=0, release=_DEBIAN, path=str(tmp_path))
    monkeypatch.setattr(machine, "DISK_GB", 10**9)
    lacks = machine.missing(tmp_path, compose, user=0, release=_DEBIAN, path=str(tmp_path))
    assert ["STACK_RUN_FOLDER=" in lack for lack in lacks] == [True]


def test_a_failure_is_a_row_and_goes_on_to_whoever_asked(tmp_path: Path) -> None:
    seen = ResultLog(tmp_path / "seen", Log(tmp_path / "log"))
    with seen.trying("good") as row:
        row.note("as it should be")
    with pytest.raises(TrialFailed, match="exit code 1, expected 0: oh"), seen.trying("bad") as row:
        seen.log.run(["sh", "-c", "echo oh >&2; exit 1"])
    rows = seen.rows()
    assert [(row.what, row.is_ok) for row in rows] == [("good", True), ("bad", False)]
    assert table(rows)[2:] == [
        "| good | ok | 0 | as it should be |",
        f"| bad | FAILED | 0 | {rows[1].seen[0]} |",
    ]


def test_a_row_that_holds_a_bar_stays_one_cell() -> None:
    assert table([Row("a", True, ["x | y"])])[2] == "| a | ok | 0 | x \\| y |"


def test_every_image_of_others_has_a_stand_in_and_ours_a_dockerfile() -> None:
    assert len(foreign_images()) == 3
    assert set(own_images()) == {"handoff-server:0.2.0", "handoff-worker:0.2.0"}
    assert {path.stem for path in STANDINS.glob("*.Dockerfile")} == {"postgres", "s3", "caddy"}


def test_what_a_part_started_ends_with_it(tmp_path: Path) -> None:
    if subprocess.run(_APART, capture_output=True, check=False).returncode:
        pytest.skip("this user may make no namespaces")
    here = str(tmp_path / "here")
    leaving = (
        "import subprocess, sys\n"
        "subprocess.Popen(['sleep', '611'], start_new_session=True)\n"
        f"subprocess.run(['mount', '-t', 'tmpfs', 'none', {here!r}], check=True)\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "here").mkdir()
    assert namespaces.run_apart([sys.executable, "-c", leaving], tmp_path, with_network=True) == 7
    assert not namespaces.left_of(tmp_path)
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "sleep 611" not in running.stdout.splitlines()


def test_a_part_that_is_asked_to_end_may_take_down_what_it_started(tmp_path: Path) -> None:
    if subprocess.run(_APART, capture_output=True, check=False).returncode:
        pytest.skip("this user may make no namespaces")
    inner = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        f"    pathlib.Path({str(tmp_path / 'ended')!r}).touch()\n"
        "    sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(tmp_path / 'began')!r}).touch()\n"
        "time.sleep(60)\n"
    )
    outer = (
        "import sys\nfrom tests.studies.containers.namespaces import run_apart\n"
        f"import pathlib\nroom = pathlib.Path({str(tmp_path)!r})\n"
        f"sys.exit(run_apart([sys.executable, '-c', {inner!r}], room, with_network=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", outer], cwd=Path(__file__).parents[3])
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    assert process.wait(timeout=30) == 130
    assert (tmp_path / "ended").exists()


def test_what_is_posted_is_remembered() -> None:
    import httpx

    with receiving("127.0.0.1") as receiver:
        assert httpx.post(receiver.address, json={"text": "refused"}).status_code == 204
    assert receiver.taken == ['{"text":"refused"}']


def test_debian_13_is_fetched_from_where_this_machines_own_debian_is() -> None:
    sources = (
        "main oldstable-security http://mirror.example/security\n"
        "main oldstable-updates http://mirror.example/debian\n"
        "contrib oldstable http://other.example/debian\n"
        "main oldstable http://mirror.example/debian\n"
    )
    assert debian_site(sources) == "http://mirror.example/debian"
    with pytest.raises(TrialFailed, match="apt-get update"):
        debian_site("")


def test_a_cluster_names_the_packages_that_it_needs_besides(tmp_path: Path) -> None:
    def lacking() -> set[str]:
        lacks = machine.missing(
            tmp_path, tmp_path, user=0, release=_DEBIAN, path=str(tmp_path), also=programs.PACKAGES
        )
        return {name for lack in lacks if "apt-get" in lack for name in lack.split()}

    assert {"golang-go", "etcd-server", "dnsmasq-base", "socat"} <= lacking()
    for name in programs.PACKAGES:
        (tmp_path / name).touch(mode=0o755)
    assert not set(programs.PACKAGES.values()) & lacking()


def test_a_container_may_not_lower_its_score_and_everything_else_stays(tmp_path: Path) -> None:
    runc, bundle = tmp_path / "runc", tmp_path / "bundle"
    runc.write_text('#!/bin/sh\necho "$@"\n')
    runc.chmod(0o755)
    bundle.mkdir()
    config = bundle / "config.json"
    config.write_text(json.dumps({"process": {"oomScoreAdj": -998, "args": ["a"]}, "root": {}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        runtime = write_runtime(tmp_path)
    command = [str(runtime), "create", "--bundle", str(bundle), "id"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    assert said.stdout.split() == command[1:]
    assert json.loads(config.read_text()) == {
        "process": {"oomScoreAdj": 0, "args": ["a"]}, "root": {},
    }  # fmt: skip
