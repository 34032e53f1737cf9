"""Fetching out of a commit: its files as they are in it, and nothing of the repository runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from handoff.artifacts.errors import DeliveryUnreachable, DeliveryUnreadable
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.fetch import git as fetching_git
from handoff.tasks.fetch import step as fetch
from handoff.tasks.fetch.messages import FetchJob, FetchLimits

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git isn't installed")

FILES = {
    "delivery.toml": b"format = 1\n",
    "module.py": b"x = '$Format:%H$'\n",
    "state_dict.pt": b"\0" * 9999,
}
LIMITS = FetchLimits(size_bytes=1 << 20, files=20, seconds=60)


@dataclass(frozen=True)
class Repository:
    """A repository that somebody works in; `traces` is a file that whatever is executed writes."""

    folder: Path
    traces: Path

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, **files: bytes) -> str:
        for name, data in files.items():
            path = self.folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "A delivery")
        return self.git("rev-parse", "HEAD")

    def uri(self, commit: str, folder: str = "out/delivery") -> str:
        return f"git+file://{self.folder}@{commit}#subdirectory={folder}"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    traces = tmp_path / "traces"
    configuration = tmp_path / "gitconfig"
    configuration.write_text(
        "[user]\n name = T\n email = t@example.org\n[init]\n defaultBranch = main\n"
        f'[filter "evil"]\n smudge = "touch {traces}; cat"\n clean = cat\n required = true\n'
        f"[core]\n hooksPath = {tmp_path / 'hooks'}\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(configuration))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    made = Repository(tmp_path / "repository", traces)
    made.folder.mkdir()
    made.git("init", "-q")
    for name, data in FILES.items():
        path = made.folder / "out" / "delivery" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return made


def assert_fetched(uri: str, to: Path) -> None:
    fetch.run(FetchJob(uri, to, LIMITS))
    assert {path.name: path.read_bytes() for path in to.iterdir()} == FILES
    shutil.rmtree(to)


def assert_refused(
    uri: str, to: Path, match: str, kind: type[Exception] = DeliveryUnreadable,
    limits: FetchLimits = LIMITS,
) -> None:  # fmt: skip
    with pytest.raises(kind, match=match):
        fetch.run(FetchJob(uri, to, limits))
    assert not to.exists()
    assert not list(to.parent.glob(f".{to.name}-*"))


def test_a_folder_of_a_commit_is_fetched_also_when_the_branch_went_on(
    repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit(elsewhere=b"not fetched")
    repository.commit(out__delivery__more=b"later")
    assert_fetched(repository.uri(commit), tmp_path / "new")


def test_no_hook_filter_attribute_or_configuration_of_theirs_is_executed(
    repository: Repository, tmp_path: Path
) -> None:
    hooks = tmp_path / "hooks"
    shutil.copytree(repository.folder / ".git" / "hooks", hooks)
    for folder in (hooks, repository.folder / ".git" / "hooks"):
        for name in ("post-checkout", "reference-transaction", "post-index-change", "pre-receive"):
            (folder / name).write_text(f"#!/bin/sh\ntouch {repository.traces}\n")
            (folder / name).chmod(0o755)
    commit = repository.commit(**{".gitattributes": b"* filter=evil text eol=crlf export-subst\n"})
    for name in ("uploadpack.packObjectsHook", "core.fsmonitor", "core.sshCommand"):
        repository.git("config", name, f"touch {repository.traces}; false")
    repository.traces.unlink(missing_ok=True)
    assert_fetched(repository.uri(commit), tmp_path / "new")
    assert not repository.traces.exists()


def test_the_trap_of_the_test_above_does_spring_where_git_checks_out(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit(**{".gitattributes": b"* filter=evil\n"})
    repository.traces.unlink(missing_ok=True)
    subprocess.run(
        ["git", "clone", "-q", str(repository.folder), str(tmp_path / "clone")], check=True
    )
    assert repository.traces.exists()


def test_links_submodules_and_lfs_pointers_are_refused(
    repository: Repository, tmp_path: Path
) -> None:
    folder = repository.folder / "out" / "delivery"
    (folder / "link").symlink_to("/etc/passwd")
    assert_refused(repository.uri(repository.commit()), tmp_path / "new", "a link")
    (folder / "link").unlink()
    commit = repository.commit()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},out/delivery/module")
    repository.git("commit", "-q", "-m", "A submodule")
    submodule = repository.git("rev-parse", "HEAD")
    assert_refused(repository.uri(submodule), tmp_path / "new", "a submodule")
    repository.git("rm", "-q", "--cached", "out/delivery/module")
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    commit = repository.commit(out__delivery__weights=pointer)
    assert_refused(repository.uri(commit), tmp_path / "new", "only a pointer to 'weights'")


def test_what_isnt_there_is_refused_with_a_sentence(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit()
    to = tmp_path / "new"
    assert_refused(repository.uri("0" * 39 + "1"), to, "doesn't give commit 000000000000")
    assert_refused(repository.uri(commit, "out/other"), to, "has no such folder")
    assert_refused(repository.uri(commit, "out/delivery/module.py"), to, "has no such folder")
    blob = repository.git("rev-parse", f"{commit}:out/delivery/module.py")
    assert_refused(repository.uri(blob), to, "has no such folder|doesn't give commit")
    missing = f"git+file://{tmp_path}/none@{commit}"
    assert_refused(missing, to, "the repository can't be read", DeliveryUnreachable)


def test_limits_hold_for_files_bytes_and_what_git_itself_writes(
    repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit()
    to = tmp_path / "new"
    assert_refused(repository.uri(commit), to, "at most 2 files", limits=FetchLimits(files=2))
    assert_refused(repository.uri(commit), to, "at most 9 bytes", limits=FetchLimits(size_bytes=9))


def test_a_tree_that_unfolds_without_end_is_refused_soon(
    repository: Repository, tmp_path: Path
) -> None:
    # Ten levels of ten equal folders: ten thousand million files in a few kilobytes.
    oid, kind, mode = repository.git("hash-object", "-w", "/etc/hostname"), "blob", "100644"
    for _ in range(10):
        listing = "".join(f"{mode} {kind} {oid}\tx{index}\n" for index in range(10))
        made = subprocess.run(
            ["git", "-C", str(repository.folder), "mktree"],
            input=listing, capture_output=True, text=True, check=True,
        )  # fmt: skip
        oid, kind, mode = made.stdout.strip(), "tree", "040000"
    commit = repository.git("commit-tree", "-m", "A bomb", oid)
    repository.git("update-ref", "refs/heads/bomb", commit)
    began = time.monotonic()
    uri = f"git+file://{repository.folder}@{commit}"
    assert_refused(uri, tmp_path / "new", "at most 20 files")
    assert time.monotonic() - began < 20


def test_a_transport_that_isnt_named_is_not_used_whatever_is_configured(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit()
    for index, (name, value) in enumerate([
        (f"url.ext::touch {repository.traces} .insteadOf", f"file://{repository.folder}"),
        ("protocol.ext.allow", "always"),
    ]):  # fmt: skip
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{index}", name)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{index}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    match = "transport 'ext' not allowed"
    assert_refused(repository.uri(commit), tmp_path / "new", match, DeliveryUnreachable)
    assert not repository.traces.exists()


def test_nobody_is_asked_for_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching_git, "_TRIES", 1)
    commit = "0123456789abcdef0123456789abcdef01234567"
    began = time.monotonic()
    uri = f"git+https://127.0.0.1:9/r.git@{commit}"
    assert_refused(uri, tmp_path / "new", "can't be read", DeliveryUnreachable)
    assert time.monotonic() - began < 20
    assert os.environ.get("GIT_TERMINAL_PROMPT") is None


def test_the_fetching_process_reads_a_commit_with_the_users_own_configuration(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit()
    (tmp_path / "gitconfig").write_text(
        f'[url "file://{repository.folder}"]\n insteadOf = file:///elsewhere/model\n'
    )
    process = StepProcess(ProcessPlan("fetch", sees="sources"), tmp_path / "logs" / "fetch.log")
    try:
        uri = f"git+file:///elsewhere/model@{commit}#subdirectory=out/delivery"
        result = process.run(FetchJob(uri, tmp_path / "new", LIMITS), limit_s=60)
    finally:
        process.close()
    assert result.files == len(FILES)
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == FILES
