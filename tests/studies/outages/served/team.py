"""A served stack as a team runs it for weeks: what arrives meanwhile, joins it, or is taken away.

Unlike the faults that strike a release and a night (`faults.py`), each of these is a story of its
own: who sent the stack what, what befell it then, and what came of it once nobody did anything more
but wait.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from handoff.artifacts.release.signing import read_trust
from handoff.infra.prefect.pools import online_workers
from tests.infra.triggers.webhooks import of_github, posted, push
from tests.prefect_server import free_port
from tests.studies.outages.served.checks import (
    nights_of,
    see_left,
    see_night,
    see_registry,
    versions_of,
)
from tests.studies.outages.served.runs import Runs, format_states
from tests.studies.outages.served.stack import (
    ServedStack,
    flow_runs_among,
    open_stack,
    suspended,
    wait,
)
from tests.studies.outages.served.striking import notify, release_nightly, see_states
from tests.studies.outages.served.survivals import Survival

_NIGHTLY = ("calm", "due")
_NIGHT = {"calm": ("unchanged",), "due": ("replaced", "kept")}
_POOL = "handoff-build"
_REPOSITORIES = {"team/hung": "hung", "team/down": "down"}
_START_LIMIT_S = 300.0
# What a worker looks at is looked at once a minute, before its next job, and while it is away.
_WORKER_LIMIT_S = 240.0
_AWAY_S = 60.0


def run_stories(root: Path, every: int, only: str = "") -> Iterator[Survival]:
    """Bring a stack up with a webhook and one build at once, and let each story befall it.

    With `only`, each whose name holds that text.
    """
    port = free_port()
    with open_stack(root, *_with_webhook(root, port)) as stack:
        team = Team(stack, port, (root / "hook.secret").read_text())
        stack.deliver({name: width for width, name in enumerate(_NIGHTLY, 3)})
        release_nightly(stack, _NIGHTLY)
        stack.planted["the secret of the webhook"] = team.secret
        for name in [name for name in list(STORIES)[::every] if only in name]:
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                rows = list(STORIES[name](team, name))
            except TimeoutError as error:
                yield Survival(name, "all of it", "", 0.0, "", wrong=(str(error),))
                # What goes on for ever would be in the way of what follows.
                return
            yield from rows[:-1]
            # A worker that had joined is no leftover until its story has ended.
            yield replace(rows[-1], left=(*rows[-1].left, *see_left(stack)))


def _with_webhook(root: Path, port: int) -> tuple[str, ...]:
    """Write the webhook's configuration; return the options of `up` for it."""
    root.mkdir(parents=True, exist_ok=True)
    secret, hooks = root / "hook.secret", root / "hooks.toml"
    secret.touch(mode=0o600)
    secret.write_text("planted-" + os.urandom(16).hex())
    hooks.write_text(
        "\n".join(
            f'[[source]]\nkind = "github"\nsecret_file = "{secret}"\nrepository = "{repository}"\n'
            f'model = "{model}"\ndelivery = "{root / "deliveries"}/{{commit}}"\n'
            for repository, model in _REPOSITORIES.items()
        )
    )
    return ("--webhook", str(hooks), "--webhook-port", str(port))


@dataclass
class Team:
    """A stack, the port and secret of its webhook, and how many deliveries were made of it."""

    stack: ServedStack
    port: int
    secret: str
    made: int = field(default=10)

    def deliver(self, model: str, folder: str = "") -> str:
        """Deliver a linear layer of a width of its own as `model`; return its folder's name."""
        self.made += 1
        self.stack.deliver({f"width_{self.made}": self.made})
        self.stack.deliver_again(f"width_{self.made}", model, folder)
        return folder or model

    def commit(self, model: str) -> str:
        """Deliver `model` as a new commit of its repository; return the commit."""
        return self.deliver(model, f"{self.made:040x}")

    def push(self, repository: str, commit: str) -> None:
        """Post a commit to the webhook as GitHub does; raise `RuntimeError` where it isn't kept."""
        body = push(commit, repository)
        status, answer = posted(self.port, "/github", body, of_github(body, self.secret))
        if status not in (200, 202):
            raise RuntimeError(f"a push was answered by {status}: {answer}")

    def begin_night(self, runs: Runs) -> None:
        """Start a night that has one model to rebuild."""
        self.made += 1
        self.stack.loosen("due", self.made)
        runs.start("recompile/handoff", {"parameters": {}})

    def online(self) -> list[str]:
        """Return the workers of the pool that builds."""
        with Runs(self.stack).client() as client:
            return online_workers(client).get(_POOL, [])


@dataclass(frozen=True)
class _Story:
    """What is known of one story: its name, the runs since it began, and when that was."""

    team: Team
    name: str
    runs: Runs
    began: float

    def conclude(
        self, when: str, versions: Mapping[str, int], commits: Sequence[str] = ()
    ) -> Survival:
        """Wait until all is still, and look at what these models, and commits, have become.

        `versions` is how many each model is to have.
        """
        stack = self.team.stack
        seen = self.runs.wait_until_still()
        well_s = time.monotonic() - self.began
        found = {model: versions_of(stack, model) for model in versions}
        wrong = [
            *see_states(seen),
            *see_posted([one.key for one in seen], commits),
            *(f"{m}: the versions {found[m]}" for m, n in versions.items() if len(found[m]) != n),
            *(one for model in versions for one in see_registry(stack, model)),
        ]
        by_flow = {
            flow: format_states(seen, flow) for flow in ("release", "recompile", "recompile-model")
        }
        states = "; ".join(f"{flow}: {ended}" for flow, ended in by_flow.items() if ended)
        counts = ", ".join(str(len(found[model])) for model in versions)
        return Survival(self.name, when, states, well_s, counts, wrong=tuple(wrong))

    def see_handed_back(self, *flows: str) -> list[str]:
        """Return those of the flows of which no run went back to its pool, to be tried again."""
        tried = {one.flow for one in self.runs.read() or [] if one.tries > 1}
        return [f"no {flow} was given to another worker" for flow in flows if flow not in tried]


def _hung(team: Team, name: str) -> Iterator[Survival]:
    """Commits arrive while Prefect's server hangs; the webhook dies with all of them kept."""
    stack, runs = team.stack, Runs(team.stack)
    commits = [team.commit("hung") for _ in range(3)]
    began = time.monotonic()
    with _hanging(stack, "prefect"):
        for commit in commits[:2]:
            team.push("team/hung", commit)
        os.kill(stack.services()["webhook"], signal.SIGKILL)
        wait("the webhook is back", lambda: _answers(team), _START_LIMIT_S)
        # The sender's own repetition, and one more commit.
        for commit in commits[1:]:
            team.push("team/hung", commit)
    yield _Story(team, name, runs, began).conclude(
        "four pushes of three commits", {"hung": 3}, commits
    )


def _down(team: Team, name: str) -> Iterator[Survival]:
    """Commits arrive while Prefect's server hangs; then the stack goes down, and up again."""
    stack, runs = team.stack, Runs(team.stack)
    commits = [team.commit("down") for _ in range(2)]
    began = time.monotonic()
    with _hanging(stack, "prefect"):
        for commit in commits:
            team.push("team/down", commit)
        stack.run("down", "--now", is_served=False)
    stack.up()
    yield _Story(team, name, runs, began).conclude("pushes of two commits", {"down": 2}, commits)


def _lose_compiler(team: Team, name: str) -> Iterator[Survival]:
    yield from _joined_worker_lacks(team, name, lambda joined: joined.compiler)


def _lose_key(team: Team, name: str) -> Iterator[Survival]:
    yield from _joined_worker_lacks(team, name, lambda joined: joined.key)


def _joined_worker_lacks(
    team: Team, name: str, lacking: Callable[[JoinedWorker], Path]
) -> Iterator[Survival]:
    """Take something from a joined worker in the middle of a release; give it back later."""
    stack = team.stack
    with _joined(team) as joined:
        wait("the worker has joined", lambda: joined.is_online, _WORKER_LIMIT_S)
        for when, is_struck in (("two releases", True), ("two releases, once it is back", False)):
            runs = Runs(stack)
            models = [f"joined-{team.made}-{number}" for number in range(2)]
            for model in models:
                notify(stack, team.deliver(model), f"{team.made:040x}")
            wait("the worker has a job", lambda: bool(joined.jobs()), _START_LIMIT_S, 0.1)
            began = time.monotonic()
            place = lacking(joined)
            away = place.with_name(f"{place.name}.away")
            if is_struck:
                place.rename(away)
            story = _Story(team, f"{name}: {'gone' if is_struck else 'back'}", runs, began)
            survival = story.conclude(when, dict.fromkeys(models, 1))
            if is_struck:
                survival = _and(survival, story.see_handed_back("release"))
                wait("it has left its pool", lambda: not joined.is_online, _WORKER_LIMIT_S)
                away.rename(place)
                wait("it is back in its pool", lambda: joined.is_online, _WORKER_LIMIT_S)
            yield survival


def _second_stack(team: Team, name: str) -> Iterator[Survival]:
    """Bring another stack up on this machine, release there, and take it down at once."""
    runs, nights = Runs(team.stack), len(nights_of(team.stack))
    before = len(versions_of(team.stack, "due"))
    model = f"first-{team.made}"
    notify(team.stack, team.deliver(model), f"{team.made:040x}")
    team.begin_night(runs)
    began = time.monotonic()
    with open_stack(team.stack.root / "other") as other:
        second = Team(other, 0, "", team.made)
        others = Runs(other)
        notify(other, second.deliver("second"), f"{second.made:040x}")
        story = _Story(second, f"{name}: the second", others, began)
        yield _and(story.conclude("a release", {"second": 1}), see_left(other))
    survival = _Story(team, f"{name}: the first", runs, began).conclude(
        "a release, and a night", {model: 1, "due": before + 1}
    )
    yield _and(survival, see_night(team.stack, nights, _NIGHT))


def _missing_store(team: Team, name: str) -> Iterator[Survival]:
    """Take the store's folder away as a night and a release begin; a minute later it is back."""
    stack = team.stack
    runs, nights = Runs(stack), len(nights_of(stack))
    before = len(versions_of(stack, "due"))
    late = team.deliver("late")
    store = stack.home / "store"
    away = store.with_name("store.away")
    began = time.monotonic()
    store.rename(away)
    try:
        team.begin_night(runs)
        notify(stack, late, f"{team.made:040x}")
        time.sleep(_AWAY_S)
        made = [str(path) for path in store.rglob("*") if path.is_file()]
    finally:
        shutil.rmtree(store, ignore_errors=True)
        away.rename(store)
    story = _Story(team, name, runs, began)
    survival = story.conclude("a night, and a release", {"due": before + 1, "late": 1})
    wrong = [f"{path} was written where the store wasn't" for path in made]
    tried = story.see_handed_back("recompile", "release")
    yield _and(survival, [*wrong, *tried, *see_night(stack, nights, _NIGHT)])


STORIES: Mapping[str, Callable[[Team, str], Iterator[Survival]]] = {
    "Prefect hangs while commits arrive, and the webhook is killed": _hung,
    "commits arrive while Prefect hangs, then `down --now` and `up`": _down,
    "the compiler of a joined worker": _lose_compiler,
    "the key of a joined worker": _lose_key,
    "two stacks on one machine": _second_stack,
    "the store isn't there as a night and a release begin, and back after a minute": _missing_store,
}


def see_posted(keys: Sequence[str], commits: Sequence[str]) -> list[str]:
    """Return the commits for which not one run was made, or more, by the runs' keys."""
    counts = {commit: sum(commit in key for key in keys) for commit in commits}
    return [f"{count} runs of the commit {one[-4:]}" for one, count in counts.items() if count != 1]


def _and(survival: Survival, wrong: Sequence[str]) -> Survival:
    return replace(survival, wrong=(*survival.wrong, *wrong))


def _hanging(stack: ServedStack, name: str) -> AbstractContextManager[None]:
    """Let a service and what it started hang meanwhile."""
    process = psutil.Process(stack.services()[name])
    return suspended([process, *process.children(recursive=True)])


def _answers(team: Team) -> bool:
    try:
        return posted(team.port, "/health", b"", {}, method="GET")[0] == 200
    except (OSError, json.JSONDecodeError):
        return False


@dataclass(frozen=True)
class JoinedWorker:
    """A worker of another home that joined the stack, with a compiler and a key of its own."""

    team: Team
    home: Path
    compiler: Path
    key: Path
    worker: subprocess.Popen[bytes]

    @property
    def is_online(self) -> bool:
        """Whether its pool knows it; raises `RuntimeError` with its log where it has ended."""
        if self.worker.poll() is not None:
            raise RuntimeError(self.home.with_suffix(".log").read_text())
        return self.home.name in self.team.online()

    def jobs(self) -> list[psutil.Process]:
        """Return the processes of the flow runs that it has."""
        found = []
        for process in flow_runs_among(psutil.process_iter()).values():
            with suppress(psutil.Error):
                if process.environ().get("HANDOFF_HOME") == str(self.home):
                    found.append(process)
        return found


@contextmanager
def _joined(team: Team) -> Iterator[JoinedWorker]:
    """Let a worker join the stack as its page says, with a copy of the key; end it afterwards."""
    stack = team.stack
    home = stack.root / f"joined-{team.made}"
    compiler, own_key = home.with_suffix(".tools") / "g++", home.with_suffix(".pem")
    compiler.parent.mkdir()
    compiler.symlink_to(shutil.which("g++") or "")
    shutil.copy(stack.home / "keys" / "private" / "signing.pem", own_key)
    (key,) = read_trust(stack.stores.trusted).keys
    settings = {
        "HANDOFF_HOME": str(home), "CXX": str(compiler), "HANDOFF_SIGNING_KEY": str(own_key),
        "PREFECT_API_AUTH_STRING": stack.login,
    }  # fmt: skip
    command = [
        sys.executable, "-m", "handoff", "worker", "--name", home.name,
        "--join", stack.api.removesuffix("/api"), "--trust", key.keyid[:16],
    ]  # fmt: skip
    log = home.with_suffix(".log")
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, env={**stack.environment, **settings}, cwd=stack.root,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            yield JoinedWorker(team, home, compiler, own_key, worker)
        finally:
            worker.terminate()
            worker.wait(60)
