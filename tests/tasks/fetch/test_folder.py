"""Fetching: what arrives is what lies there, whole or not at all, and nothing of it is executed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_folder
from handoff.artifacts.errors import DeliveryUnreachable, UsageProblem
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.fetch import step as fetch
from handoff.tasks.fetch.messages import FetchJob, FetchLimits, FetchResult
from tests.tasks.fetch.samples import ARCHIVES, SMALL, assert_fetched, assert_refused


def test_a_folder_is_copied_without_what_python_left_in_it(delivery: Path, to: Path) -> None:
    (delivery / "__pycache__").mkdir()
    (delivery / "__pycache__" / "module.pyc").write_bytes(b"x")
    assert_fetched(str(delivery), to)
    assert stat.S_IMODE((to / "module.py").stat().st_mode) & 0o111 == 0


def test_a_folder_that_is_there_is_left_alone(delivery: Path, to: Path) -> None:
    to.mkdir()
    (to / "mine").touch()
    with pytest.raises(UsageProblem, match="is there already"):
        fetch.run(FetchJob(str(delivery), to))
    assert [path.name for path in to.iterdir()] == ["mine"]


def test_nothing_and_an_empty_folder_are_refused(tmp_path: Path, to: Path) -> None:
    assert_refused(str(tmp_path / "none"), to, "there is no delivery at", DeliveryUnreachable)
    (tmp_path / "empty").mkdir()
    assert_refused(str(tmp_path / "empty"), to, "the delivery is empty")


def link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")


def folder_link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize("add", [link, folder_link, pipe])
def test_a_folder_with_anything_but_files_is_refused(
    add: Callable[[Path], None], delivery: Path, to: Path
) -> None:
    add(delivery)
    assert_refused(str(delivery), to, "which is not a plain file")


@pytest.mark.parametrize(
    ("limits", "match"),
    [
        (FetchLimits(size_bytes=200_000), "at most 200000 bytes"),
        (FetchLimits(files=3), "at most 3 files"),
    ],
)
@pytest.mark.parametrize("form", ["folder", "tar.gz", "zip"])
def test_what_is_too_large_is_refused(
    form: str, limits: FetchLimits, match: str, delivery: Path, to: Path
) -> None:
    if form != "folder":
        delivery = delivery.with_name("archive")
        delivery.write_bytes(ARCHIVES[form])
    assert_refused(str(delivery), to, match, limits=limits)


def test_what_takes_too_long_is_given_up(delivery: Path, to: Path) -> None:
    late = FetchLimits(seconds=-1)
    assert_refused(str(delivery), to, "took too long", kind=DeliveryUnreachable, limits=late)


def test_the_fetching_process_sees_the_credentials_for_it_and_no_others(
    delivery: Path, tmp_path: Path, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"AWS_SECRET_ACCESS_KEY", "GIT_ASKPASS", "SSH_AUTH_SOCK", "SSL_CERT_FILE"}
    unseen = {"HANDOFF_SIGNING_KEY", "MLFLOW_TRACKING_PASSWORD", "PREFECT_API_AUTH_STRING"}
    for name in seen | unseen:
        monkeypatch.setenv(name, "value")
    process = StepProcess(ProcessPlan("fetch", sees="sources"), tmp_path / "logs" / "fetch.log")
    try:
        result = process.run(FetchJob(str(delivery), to, SMALL), limit_s=60)
        assert isinstance(result, FetchResult)
        assert result.digest == digest_folder(to)
        raw = Path(f"/proc/{process._process.pid}/environ").read_bytes()
    finally:
        process.close()
    names = {entry.partition(b"=")[0].decode() for entry in raw.split(b"\0")}
    assert names & (seen | unseen) == seen
