"""A served stack in the middle of a release and of a night, and what it makes of each fault."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.night import Night
from tests.studies.outages.served.checks import (
    nights_of,
    see_left,
    see_night,
    see_registry,
    see_twice,
    versions_of,
)
from tests.studies.outages.served.faults import FAULTS, Fault, Scene, compilers_of
from tests.studies.outages.served.runs import ObservedRun, Runs, format_states
from tests.studies.outages.served.stack import ServedStack, open_stack, suspended, wait
from tests.studies.outages.served.survivals import Survival

_WIDTHS = {"calm": 3, "first": 4, "second": 5, "released": 6}
# Those with a recipe of their own, which is changed for each night.
_DUE = ("first", "second")
_SERVED = ("calm", *_DUE)
_START_LIMIT_S = 300.0
_COMPILED_LIMIT_S = 120.0
_BUILT = ("replaced", "kept")


def strike_everywhere(root: Path, every: int, only: str = "") -> Iterator[Survival]:
    """Bring a stack up and let each fault befall a release and a night that go on at once.

    With `only`, each whose name holds that text.
    """
    faults = [fault for fault in FAULTS[::every] if only in fault.name]
    builds = str(min(2, len(os.sched_getaffinity(0))))
    with open_stack(root, "--builds", builds) as stack:
        stack.deliver(_WIDTHS)
        release_nightly(stack, _SERVED)
        for number, fault in enumerate(faults, 1):
            case = Case(stack, fault, number)
            try:
                yield from case.run()
            except TimeoutError as error:
                yield Survival(fault.name, "both", "", 0.0, "", wrong=(str(error),))
                # What goes on for ever would be in the way of what follows.
                return


def release_nightly(stack: ServedStack, models: Sequence[str]) -> None:
    """Release the models of the nights, and let production serve them."""
    runs = Runs(stack)
    for model in models:
        notify(stack, model, f"{0:040x}")
    wrong = [one for one in runs.wait_until_still() if one.state != "Completed"]
    if wrong:
        raise RuntimeError(f"the first releases: {wrong}")
    for model in models:
        stack.run("promote", f"{model}@1", "--to", "production")


def notify(stack: ServedStack, model: str, commit: str, *more: str) -> str:
    """Notify the stack of a commit, whose delivery has the model's name; return its run."""
    output = stack.run(
        "notify", "--delivery", str(stack.delivery(model)), "--model", model,
        "--commit", commit, "--json", *more,
    )  # fmt: skip
    return str(json.loads(output)["id"])


@dataclass
class Case:
    """A fault, the model that is released meanwhile, and the night."""

    stack: ServedStack
    fault: Fault
    number: int

    @property
    def model(self) -> str:
        """The model that is released for the first time."""
        return f"struck-{self.number}"

    def run(self) -> Iterator[Survival]:
        """Let the fault strike; give what came of the release and of the night."""
        stack = self.stack
        for due in _DUE:
            stack.loosen(due, self.number)
        stack.deliver_again("released", self.model)
        stack.forget_compiled()
        nights = len(nights_of(stack))
        versions = {model: len(versions_of(stack, model)) for model in _SERVED}
        runs = Runs(stack)
        scene = self._begin(runs)
        compiled = stack.compiled()
        struck = _where(scene)
        _say(f"{self.fault.name}: {struck}, compiled by then: {len(compiled)}")
        began = time.monotonic()
        self.fault.strike(scene)
        seen = runs.wait_until_still()
        well_s = time.monotonic() - began
        twice = tuple(see_twice(compiled, stack.compiled()))
        states = {
            flow: format_states(seen, flow) for flow in ("release", "recompile", "recompile-model")
        }
        wrong = see_states(seen)
        expected = {"calm": ("unchanged",), **dict.fromkeys(_DUE, _BUILT)}
        if self.fault.is_refused:
            self._ask_again(seen)
            wrong = []
            struck_nights = nights_of(stack)[nights:][:-1]
            expected |= dict.fromkeys(_built(struck_nights), ("unchanged",))
            nights += len(struck_nights)
        left = tuple(see_left(stack))
        yield Survival(
            self.fault.name, f"a release, {struck[0]}", states["release"], well_s,
            str(len(versions_of(stack, self.model))), twice, left,
            (*wrong, *self._see_release()),
        )  # fmt: skip
        made = {m: len(versions_of(stack, m)) - versions[m] for m in _SERVED}
        off = [f"{m}: {n} versions more" for m, n in made.items() if n != int(m in _DUE)]
        yield Survival(
            self.fault.name, f"a night, {struck[1]}",
            f"night: {states['recompile']}; models: {states['recompile-model']}", well_s,
            ", ".join(str(made[m]) for m in _DUE), twice, left,
            (*wrong, *see_night(stack, nights, expected), *off),
        )  # fmt: skip

    def _begin(self, runs: Runs) -> Scene:
        """Start a night and a release; return them when both build, and one has compiled."""
        stack = self.stack
        # The release first: a night begins with a survey, and has two models for two workers.
        release = notify(stack, self.model, f"{self.number:040x}")
        night = str(runs.start("recompile/handoff", {"parameters": {}}))

        def builds(run: str) -> bool:
            process = stack.flow_processes().get(run)
            return process is not None and bool(compilers_of(process))

        def child() -> str:
            found = [one.id for one in runs.read() or [] if one.flow == "recompile-model"]
            return next((run for run in found if builds(run)), "")

        wait("the release builds", lambda: builds(release), _START_LIMIT_S, 0.1)
        process = stack.flow_processes().get(release)
        # What it compiles waits, while the run itself goes on and tells that it lives: on a quick
        # machine it would be done before the night's model begins.
        with suspended(compilers_of(process) if process else []):
            wait("the night builds", lambda: bool(child()), _START_LIMIT_S)
            struck = child()
        # Where one of both is too quick, the other one is still struck.
        with suppress(TimeoutError):
            wait("something is compiled", lambda: bool(stack.compiled()), _COMPILED_LIMIT_S, 0.1)
        return Scene(stack, runs, release, night, struck)

    def _ask_again(self, seen: list[ObservedRun]) -> None:
        """Ask once more for what was refused: by a person for the release, by the next night."""
        runs = Runs(self.stack)
        if any(one.flow == "release" and one.state == "Failed" for one in seen):
            commit = f"{self.number:040x}"
            notify(self.stack, self.model, commit, "--again")
        runs.start("recompile/handoff", {"parameters": {}})
        runs.wait_until_still()

    def _see_release(self) -> list[str]:
        versions = versions_of(self.stack, self.model)
        if versions != [1]:
            return [f"the ledger has the versions {versions}"]
        return see_registry(self.stack, self.model)


def _built(nights: Sequence[Night]) -> set[str]:
    """Return the models that these nights could build, which the next one leaves alone."""
    return {row.model for night in nights for row in night.rows if row.outcome in _BUILT}


def _where(scene: Scene) -> tuple[str, str]:
    """Return in which step the release and the night's model are, by their newest log."""
    return _step(scene, scene.release), _step(scene, scene.child)


def _step(scene: Scene, run: str) -> str:
    process = scene.process(run)
    if process is None:
        return "which had ended"
    builds = scene.stack.home / "builds"
    jobs = [path for path in builds.glob(f"*-{process.pid}/logs/*-[0-9]*-*.json") if path.exists()]
    newest = max(jobs, key=lambda path: path.stat().st_mtime_ns, default=None)
    return newest.stem.rpartition("-")[2] if newest else "before its first step"


def see_states(seen: list[ObservedRun]) -> list[str]:
    """Return the runs that ended otherwise than well, and that none has taken the place of."""
    repeated = {one.key.removeprefix("resume:") for one in seen if one.key.startswith("resume:")}
    return [
        f"{one.flow} {one.model} attempt {one.attempt}: {one.state}: {one.message[:200]}"
        for one in seen
        if one.state != "Completed" and one.id not in repeated
    ]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
