"""Docker's engine: this machine's, or Debian 13's packages unpacked, and started where we are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.studies.containers.namespaces import cgroup_of
from tests.studies.containers.seen import Log, TrialFailed

# The default seccomp profile lets Landlock through since this one; compose's `pre_stop` needs it.
_OLDEST = 23
_PACKAGES = ("docker.io", "docker-cli", "containerd")
# Debian 13 lies where this machine's own Debian does.
_SITES = ["apt-get", "indextargets", "--format", "$(COMPONENT) $(SUITE) $(SITE)",
          "Created-By: Packages"]  # fmt: skip
_SOURCE = "{kind} [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {site} {suite} main\n"
_START_LIMIT_S = 60


@dataclass(frozen=True)
class Engine:
    """An engine whose data lie in `folder`; `path` is where its programs are."""

    folder: Path
    path: str
    log: Log

    @property
    def host(self) -> str:
        """Where it listens."""
        return f"unix://{self.folder}/socket"

    @property
    def environment(self) -> dict[str, str]:
        """What its clients need."""
        # Without buildx, which Debian has no recent one of, the engine's own builder is used.
        return {**os.environ, "PATH": self.path, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "0"}

    def docker(self, *words: str, limit_s: float = 120) -> str:
        """Run the client; return what it printed. Raises `TrialFailed` with what it said."""
        return self.log.run(["docker", *words], environment=self.environment, limit_s=limit_s)

    def ask(self, *words: str) -> str:
        """Run the client without a word in the log: some is asked every second, or is secret.

        Raises `TrialFailed` with what it said.
        """
        done = subprocess.run(
            ["docker", *words], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise TrialFailed(f"docker {words[0]}: {' '.join(done.stderr.split())[-300:]}")
        return done.stdout

    def knows(self, image: str) -> bool:
        """Return whether it has an image of that name."""
        done = subprocess.run(
            ["docker", "image", "inspect", image], env=self.environment, capture_output=True,
            check=False,
        )  # fmt: skip
        return done.returncode == 0

    @contextmanager
    def running(self, *, with_networks: bool, runtime: Path | None = None) -> Iterator[None]:
        """Have it run; with networks only where it has a network namespace of its own.

        Without them it changes nothing of this machine's network, and what it builds uses that.
        `runtime` starts containers in runc's place.
        """
        words = ["--iptables=false", "--ip-forward=false", "--bridge=none"]
        if with_networks:
            words = ["--bip=10.210.0.1/24", "--default-address-pool=base=10.211.0.0/16,size=24"]
        if runtime:
            words += [f"--add-runtime=here={runtime}", "--default-runtime=here"]
        (self.folder / "pid").unlink(missing_ok=True)
        command = [
            "dockerd", f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec",
            f"--pidfile={self.folder}/pid", f"--host={self.host}", "--storage-driver=overlay2",
            "--ip6tables=false", "--exec-opt=native.cgroupdriver=cgroupfs",
            f"--cgroup-parent=/{cgroup_of(self.folder)}",
            f"--default-ulimit=nofile={_most_files()}", *words,
        ]  # fmt: skip
        with (self.folder / "engine.log").open("ab") as stream:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=stream, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait(process)
            self._remove_left_overs()
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        command = ["docker", "version", "--format", "{{.Server.Version}}"]
        while subprocess.run(
            command, env=self.environment, capture_output=True, check=False
        ).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the engine didn't start: {self.folder}/engine.log says why")
            time.sleep(0.5)

    def _remove_left_overs(self) -> None:
        """Remove what a run that was killed has left in the engine's data: all but images."""
        if old := self.docker("ps", "--all", "--quiet").split():
            self.docker("rm", "--force", "--volumes", *old)
        self.docker("volume", "prune", "--all", "--force")
        self.docker("network", "prune", "--force")


def find_engine(folder: Path, log: Log) -> Engine:
    """Return this machine's engine where it is new enough, else one unpacked in the folder."""
    unpacked = folder / "debian13"
    path = f"{unpacked}/usr/bin:{unpacked}/usr/sbin:{os.environ['PATH']}:/usr/sbin:/sbin"
    if _version_of(shutil.which("dockerd")) >= _OLDEST:
        return Engine(folder, os.environ["PATH"], log)
    if not (unpacked / "usr/sbin/dockerd").exists():
        _unpack(unpacked, folder / "apt", log)
    return Engine(folder, path, log)


def _version_of(program: str | None) -> int:
    if program is None:
        return 0
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"version (\d+)", said.stdout)
    return int(found[1]) if found else 0


def debian_site(sources: str) -> str:
    """Return where Debian's releases lie, by apt's list of its sources: `main oldstable SITE`.

    Raises `TrialFailed` where none is listed, as before `apt-get update`.
    """
    for line in sources.splitlines():
        component, suite, address = [*line.split(), "", "", ""][:3]
        if component == "main" and address and "-" not in suite:
            return address
    raise TrialFailed(
        f"expected Debian's own source among apt's, got {sources[:200]!r}: apt-get update"
    )


def apt_apart(apt: Path, kind: str, suite: str, log: Log) -> list[str]:
    """Return the words of an apt-get that knows one suite of Debian's, and nothing of this machine.

    `kind` is deb or deb-src. Its files are in the folder `apt`, which has one, `got`, for what it
    fetches; signatures are checked.
    """
    for name in ("lists/partial", "cache/archives/partial", "parts", "got"):
        (apt / name).mkdir(parents=True, exist_ok=True)
    line = _SOURCE.format(kind=kind, site=debian_site(log.run(_SITES)), suite=suite)
    (apt / "sources.list").write_text(line)
    places = {
        "Dir::Etc::sourcelist": apt / "sources.list", "Dir::Etc::sourceparts": apt / "parts",
        "Dir::State::lists": apt / "lists", "Dir::Cache": apt / "cache",
        "Dir::State::status": "/dev/null", "APT::Sandbox::User": "root",
    }  # fmt: skip
    options = [word for name, value in places.items() for word in ("-o", f"{name}={value}")]
    get = ["apt-get", *options, "--quiet"]
    log.run([*get, "update"], limit_s=300)
    return get


def _unpack(to: Path, apt: Path, log: Log) -> None:
    """Fetch Debian 13's packages, signatures checked, and unpack them; nothing is installed."""
    log.run([*apt_apart(apt, "deb", "trixie", log), "download", *_PACKAGES], folder=apt / "got")
    for package in (apt / "got").glob("*.deb"):
        log.run(["dpkg", "-x", str(package), str(to)])
    shutil.rmtree(apt)


def _most_files() -> str:
    """Return this process' own limits: root may lack the right to raise them."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 1_048_576 if hard == resource.RLIM_INFINITY else min(hard, 1_048_576)
    return f"{most}:{most}"
