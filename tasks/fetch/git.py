"""Read a folder out of one commit, by git's plumbing: nothing is checked out.

The commit arrives in a bare repository of our own, and its files are read as the bytes that they
are in it. So neither hooks, nor submodules, nor filters and LFS's smudge, nor attributes, nor the
configuration of the fetched repository have a say. What the user of this machine configured is
read: credential helpers, certificates, ssh.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from handoff.artifacts.delivery.uri import GitSource
from handoff.artifacts.errors import (
    DeliveryUnreachable,
    DeliveryUnreadable,
    EnvironmentLacking,
    UsageProblem,
)
from handoff.artifacts.waiting import Backoff
from handoff.tasks.fetch.budget import Budget, refuse_kind

_CHUNK_BYTES = 1 << 20
_TRIES = 3
_FIRST_PAUSE_S = 2.0
_LFS = b"version https://git-lfs.github.com/spec/v1"
# What a repository that somebody works in, or a hook, leaves in the environment.
_UNSET = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE",
          "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH", "GIT_COMMON_DIR",
          "GIT_PROTOCOL_FROM_USER", "GIT_TRACE", "GIT_TRACE_CURL", "GIT_CURL_VERBOSE",
          "GIT_TRACE_PACKET")  # fmt: skip
_CONFIGURATION = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.alternateRefsCommand=true",
    "protocol.version=2", "submodule.recurse=false", "fetch.recurseSubmodules=false",
    "fetch.writeCommitGraph=false", "gc.auto=0", "maintenance.auto=false",
    "http.followRedirects=initial", "http.lowSpeedLimit=1000", "http.lowSpeedTime=60",
    "transfer.bundleURI=false",
)  # fmt: skip
_MISSING_COMMIT = re.compile(
    r"not our ref|unadvertised object|couldn't find remote ref|remote error: upload-pack"
)
_TRANSIENT = re.compile(
    r"timed out|Could not resolve|Connection (reset|refused)|early EOF|hung up|HTTP 5\d\d"
    r"|The requested URL returned error: (5\d\d|429)|RPC failed|kex_exchange|unexpected disconnect"
    r"|Failed to connect|Couldn't connect"
)


@dataclass(frozen=True)
class _Entry:
    """A file of the commit: its object's id, its size, its path below the subdirectory."""

    oid: str
    size_bytes: int
    name: str


def read_commit(source: GitSource, folder: Path, scratch: Path, budget: Budget) -> None:
    """Write the files of the commit's subdirectory into the new `folder`.

    Raises `DeliveryUnreachable`, or `DeliveryUnreadable` for a commit that isn't there, links,
    submodules, and files that git-lfs holds.
    """
    if shutil.which("git") is None:
        raise EnvironmentLacking(
            "no git was found", expected="git on the PATH", got="none",
            remedy="Install it (Debian: apt-get install git)",
        )  # fmt: skip
    git = _Git(scratch / "repository.git", source.scheme, budget)
    git.run("init", "--quiet", "--bare", "--template=", str(git.repository), is_inside=False)
    _fetch(git, source)
    folder.mkdir()
    entries = list(_list_entries(git, source, budget))
    with git.start("cat-file", "--batch") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for entry in entries:
            target = folder / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            process.stdin.write(f"{entry.oid}\n".encode())
            process.stdin.flush()
            _copy_blob(process.stdout, entry, target, budget)


class _Git:
    """git in one bare repository, with one transport and no questions asked."""

    def __init__(self, repository: Path, scheme: str, budget: Budget) -> None:
        self.repository = repository
        self._budget = budget
        # `env` hands the rest of the environment on, which holds the user's credentials.
        environment = ["env", *(part for name in _UNSET for part in ("-u", name))]
        self._environment = [
            *environment, f"GIT_ALLOW_PROTOCOL={scheme}", "GIT_TERMINAL_PROMPT=0",
            "GIT_NO_LAZY_FETCH=1", "GIT_LFS_SKIP_SMUDGE=1", "GIT_ADVICE=0", "LC_ALL=C",
        ]  # fmt: skip
        self._options = [part for setting in _CONFIGURATION for part in ("-c", setting)]

    def command(self, *arguments: str, is_inside: bool = True) -> list[str]:
        """Return the whole command; no file that it writes may outgrow the budget."""
        blocks = (2 * self._budget.limits.size_bytes + (64 << 20)) // 512
        inside = [f"--git-dir={self.repository}"] if is_inside else []
        limited = ["sh", "-c", f'ulimit -f {blocks}; exec "$@"', "git"]
        return [*limited, *self._environment, "git", *self._options, *inside, *arguments]

    def run(self, *arguments: str, is_inside: bool = True) -> bytes:
        """Return what git prints; raise `subprocess.CalledProcessError` with what it said."""
        try:
            return subprocess.run(
                self.command(*arguments, is_inside=is_inside), stdin=subprocess.DEVNULL,
                capture_output=True, check=True, timeout=self._budget.remaining_s(),
            ).stdout  # fmt: skip
        except subprocess.TimeoutExpired:
            self._budget.remaining_s()
            raise

    @contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Start git with pipes to and from it; it ends with the body."""
        process = subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.communicate()


def _fetch(git: _Git, source: GitSource) -> None:
    arguments = (
        "fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules",
        "--no-write-fetch-head", "--no-auto-maintenance", "--end-of-options",
        source.url, source.commit,
    )  # fmt: skip
    pauses = Backoff(_FIRST_PAUSE_S, cut=0.0)
    for attempt in range(1, _TRIES + 1):
        try:
            git.run(*arguments)
        except subprocess.CalledProcessError as error:
            output = _last_lines(error.stderr)
            if _MISSING_COMMIT.search(output):
                raise _missing_commit_error(source, output) from None
            if attempt == _TRIES or not _TRANSIENT.search(output):
                raise _unreachable_error(source, output) from None
            pauses.take()
        else:
            return


def _list_entries(git: _Git, source: GitSource, budget: Budget) -> Iterator[_Entry]:
    """Give the files of the commit's subdirectory, while the budget lasts."""
    tree = f"{source.commit}:{source.subdirectory}"
    try:
        git.run("cat-file", "-e", f"{source.commit}^{{commit}}")
        object_type = git.run("cat-file", "-t", tree)
    except subprocess.CalledProcessError:
        object_type = b""
    if object_type != b"tree\n":
        raise DeliveryUnreadable(
            f"commit {source.commit[:12]} has no such folder", expected="a folder of the commit",
            got=source.subdirectory or "something else than a commit",
            remedy="Name the delivery's folder behind the commit: #subdirectory=path",
        )  # fmt: skip
    with git.start("ls-tree", "-r", "-l", "-z", "--full-tree", tree) as process:
        assert process.stdout is not None
        for record in _split_records(process.stdout):
            head, _, raw = record.partition(b"\t")
            mode, kind, oid, size = head.decode("ascii").split()
            name = raw.decode("utf-8", errors="replace")
            if kind != "blob" or mode == "120000":
                raise refuse_kind(name, "a submodule" if kind == "commit" else "a link")
            budget.take_name(name)
            yield _Entry(oid, int(size), name)


def _split_records(stream: IO[bytes]) -> Iterator[bytes]:
    """Give what stands between zero bytes."""
    partial = b""
    while chunk := stream.read(65536):
        *records, partial = (partial + chunk).split(b"\0")
        yield from records
        if len(partial) > 65536:
            raise refuse_kind("a name", "one of endless length")


def _copy_blob(stream: IO[bytes], entry: _Entry, target: Path, budget: Budget) -> None:
    header = stream.readline().split()
    if header != [entry.oid.encode(), b"blob", str(entry.size_bytes).encode()]:
        raise _incomplete_error(entry)
    budget.require_room(entry.size_bytes)
    remaining, is_first = entry.size_bytes, True
    with target.open("xb") as copy:
        while remaining:
            chunk = stream.read(min(remaining, _CHUNK_BYTES))
            if not chunk:
                raise _incomplete_error(entry)
            if is_first and chunk.startswith(_LFS):
                raise DeliveryUnreadable(
                    f"the commit holds only a pointer to {entry.name[:80]!a}",
                    expected="the file itself",
                    got="what git-lfs writes in its place",
                    remedy="Put the delivery into S3, or behind "
                    "https with its digest, and name that; git-lfs's server isn't asked",
                )
            is_first = False
            remaining -= len(chunk)
            budget.take_bytes(len(chunk))
            copy.write(chunk)
    stream.read(1)


def _incomplete_error(entry: _Entry) -> DeliveryUnreachable:
    return DeliveryUnreachable(
        f"git gave no bytes of {entry.name[:80]!a}", expected=f"{entry.size_bytes} bytes",
        got="less", remedy="Try again",
    )  # fmt: skip


def _missing_commit_error(source: GitSource, output: str) -> DeliveryUnreadable:
    return DeliveryUnreadable(
        f"the repository doesn't give commit {source.commit[:12]}",
        expected="a commit that is there, by a server that gives single commits",
        got=output, remedy="Push it; where the server is one's own, "
        "uploadpack.allowAnySHA1InWant lets it give commits that no branch ends with",
    )  # fmt: skip


def _unreachable_error(source: GitSource, output: str) -> DeliveryUnreachable | UsageProblem:
    return DeliveryUnreachable(
        "the repository can't be read", expected=f"{source.url[:200]}, by git", got=output,
        remedy="Look at the address, and at the credentials that git has where it is fetched "
        "(a credential helper, ~/.netrc, an ssh agent); nothing is asked there",
    )  # fmt: skip


def _last_lines(output: bytes) -> str:
    """Return what git said last, without what may be a secret in a URL."""
    text = re.sub(r"//[^/\s]*@", "//...@", output.decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(c for c in "; ".join(lines[-3:]) if c.isprintable())[-300:] or "no reason"
