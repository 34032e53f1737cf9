"""A model that goes along with an alias: promotions and rollbacks reach it while it is called.

A thread asks the store at intervals. What the alias points to then is pulled beside what is
served, verified, tried in a process of its own, opened here, warmed up on its examples and compared
with what the original model gave; and only then one reference is exchanged. A call takes the
reference once, so that it is answered by one version from its checks to its outputs; the old
version is closed when the last call that took it has returned. Where anything fails, what is
served stays, and says why.
"""

from __future__ import annotations

import logging
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import (
    BudgetSpent,
    EnvironmentLacking,
    HandoffError,
    PackageRefused,
    StepCrashed,
    UsageProblem,
    first_line,
)
from handoff.artifacts.release.ledger import Pointer
from handoff.artifacts.release.signing import Trust
from handoff.artifacts.serve.loader import LoadedModel, load
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.follow.goldens import warm_up
from handoff.tasks.follow.messages import TryReleaseJob
from handoff.tasks.follow.serving import Alias, FollowOptions, Serving, require_as_wide

if TYPE_CHECKING:
    import torch


# Compiled code runs there: no store's credentials, no key, no network.
_TRIER = ProcessPlan("try-release", preload=("follow.goldens",))


def write_keys(trust: Trust, folder: Path) -> tuple[str, ...]:
    """Write the trusted public keys into a new folder as PEM; return their places."""
    folder.mkdir()
    places = []
    for number, key in enumerate(trust.keys):
        place = folder / f"{number}.pub"
        place.write_text(key.keyval["public"], encoding="ascii")
        places.append(str(place))
    return tuple(places)


def try_release(
    job: TryReleaseJob, scratch: Path, started: Callable[[StepProcess | None], None]
) -> None:
    """Run the job in a process that reads the pulled folder and the keys alone.

    `started` is told of the process, so that it can be ended, and of its end (None). Raises
    `PackageRefused` for a release that is refused there or ends the process, and `BudgetSpent`
    where it took more time or memory than there is.
    """
    reads = (job.folder, *map(Path, job.keys))
    plan = ProcessPlan(_TRIER.name, preload=_TRIER.preload, reads=reads)
    process = StepProcess(plan, scratch / "try-release.log")
    started(process)
    try:
        process.run(job)
    except BudgetSpent:
        raise
    except StepCrashed as error:
        raise PackageRefused(
            f"{job.model} version {job.version} ends the process that opens or calls it",
            expected="a package that answers", got=error.got.partition("; its last output")[0],
            remedy="Roll back, and run 'handoff verify' on the pulled folder to see it again",
        ) from error  # fmt: skip
    finally:
        process.close()
        started(None)


LOGGER = logging.getLogger("handoff.follow")
# What failed and may pass is tried again after a pause that doubles, up to so many intervals.
_MOST_PAUSES = 16


@dataclass(frozen=True)
class _Held:
    """What is served, exchanged as one: no reader sees one version's model and another's number."""

    pointer: Pointer
    model: LoadedModel
    since: datetime


@dataclass(frozen=True)
class _Failure:
    """What came of a version that could not take over; `until` is when it is tried again.

    None for one that is refused for what it is: it is not tried again while the alias points to
    it.
    """

    release: Digest
    error: HandoffError
    pauses: int = 1
    until: float | None = None


class FollowedModel:
    """A model that is called like the one that `load` returns, and follows an alias meanwhile.

    Any thread may call it. `serves` tells what it serves. Made by `handoff.follow`; close it, or
    use it as a context manager.
    """

    def __init__(self, alias: Alias, trust: Trust, options: FollowOptions) -> None:
        """Open what the alias points to, and begin to follow it.

        Raises as `look`, `pull` and `load` do: what never was served can't be kept.
        """
        self._alias = alias
        self._trust = trust
        self._options = options
        self._failure: _Failure | None = None
        self._closing = threading.Event()
        self._looking = threading.Lock()
        self._process: StepProcess | None = None
        pointer = alias.look()
        self._held: _Held | None = self._open(pointer, None)
        self._told = self._serving(self._held, pointer.version)
        self._thread = threading.Thread(target=self._follow, name="handoff-follow", daemon=True)
        self._thread.start()

    def __call__(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:  # noqa: ANN401
        """Return the outputs of the version that is served when the call begins.

        What is given and returned, the checks, and what is raised are those of `LoadedModel`.
        Raises `UsageProblem` once it was closed.
        """
        return self.model(*inputs, **named)

    def __repr__(self) -> str:
        told = self._told
        return f"<{told.model}@{told.alias}, version {told.version} for {told.target}>"

    def __enter__(self) -> FollowedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    @property
    def model(self) -> LoadedModel:
        """The version that is served now; who keeps it calls that one, whatever is promoted."""
        held = self._held
        if held is None:
            raise UsageProblem(
                "a followed model that was closed can't be called", expected="one that is open",
                got="a closed one", remedy="Close it after the last call",
            )  # fmt: skip
        return held.model

    @property
    def signature(self) -> ModelSignature:
        """What the version that is served now takes and gives."""
        return self.model.signature

    @property
    def serves(self) -> Serving:
        """What is served, since when, and why it isn't what the alias points to, if it isn't."""
        return self._told

    def look(self) -> Serving:
        """Ask the store now, take over what the alias points to if it can be, and tell.

        Nothing is raised for what fails: it is told in `error`, and what is served stays.
        """
        with self._looking:
            if not self._closing.is_set():
                self._look()
        return self._told

    def close(self) -> None:
        """End following, and give up the model; calls that have begun end as they would have."""
        self._closing.set()
        process = self._process
        if process is not None:
            process.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with self._looking:
            self._held = None

    def _follow(self) -> None:
        while not self._closing.wait(self._pause()):
            self.look()

    def _pause(self) -> float:
        jitter = self._options.jitter
        return self._options.every_s * random.uniform(1.0 - jitter, 1.0 + jitter)  # noqa: S311

    def _look(self) -> None:
        held = self._held
        assert held is not None
        try:
            pointer = self._alias.look()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and serving goes on
            self._tell(replace(self._told, error=str(_as_told(error))))
            return
        if (pointer.version, pointer.release) == (held.pointer.version, held.pointer.release):
            self._failure = None
            self._tell(self._serving(held, pointer.version))
            return
        why = self._take_over(held, pointer)
        if self._closing.is_set():
            return
        assert self._held is not None
        told = self._serving(self._held, pointer.version)
        self._tell(replace(told, error=str(why or "")))

    def _take_over(self, held: _Held, pointer: Pointer) -> HandoffError | None:
        """Let the version take over; return why it didn't, where it didn't."""
        known = self._failure
        if known is not None and known.release == pointer.release:
            if known.until is None or time.monotonic() < known.until:
                return known.error
        else:
            known = None
        try:
            self._held = self._open(pointer, held)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and serving goes on
            self._failure = self._failed(pointer, _as_told(error), known)
            return self._failure.error
        self._failure = None
        return None

    def _failed(self, pointer: Pointer, error: HandoffError, known: _Failure | None) -> _Failure:
        if isinstance(error, PackageRefused):
            return _Failure(pointer.release, error)
        pauses = min(_MOST_PAUSES, 2 * known.pauses) if known else 1
        until = time.monotonic() + pauses * self._options.every_s
        return _Failure(pointer.release, error, pauses, until)

    def _open(self, pointer: Pointer, held: _Held | None) -> _Held:
        """Return the version, verified and warmed up; `held` is what is served meanwhile."""
        options, name, version = self._options, self._alias.model, pointer.version
        folder = options.folder and str(options.folder)
        with tempfile.TemporaryDirectory(
            prefix="handoff-follow-", dir=folder, ignore_cleanup_errors=True
        ) as scratch:
            release = self._alias.read(pointer)
            if held is not None and not options.narrower:
                require_as_wide(version, held.model.manifest, release.manifest)
            place = Path(scratch, "release")
            target = self._alias.pull(release, options.target, place, self._require_open).slug
            if held is not None:
                # A crash in this process would end what is served; at the start nothing is.
                keys = write_keys(self._trust, Path(scratch, "keys"))
                job = TryReleaseJob(place, keys, name, version, target, options.file)
                try_release(job, Path(scratch), self._started)
            model = load(
                place, keys=self._trust, name=name, version=version, target=target,
                file=options.file, runners=options.runners, check_values=options.check_values,
                layouts=options.layouts, known_code=True,
            )  # fmt: skip
            warm_up(model, place)
        return _Held(pointer, model, datetime.now(UTC))

    def _require_open(self, *_: object) -> None:
        """Let a fetch that is under way end where this was closed meanwhile."""
        if self._closing.is_set():
            raise UsageProblem(
                "the version was not fetched", expected="a followed model that is open",
                got="one that was closed meanwhile", remedy="Follow the alias again",
            )  # fmt: skip

    def _started(self, process: StepProcess | None) -> None:
        self._process = process
        if process is not None and self._closing.is_set():
            process.close()

    def _serving(self, held: _Held, wanted: int) -> Serving:
        manifest = held.model.manifest
        return Serving(
            model=self._alias.model,
            alias=self._alias.alias,
            version=held.pointer.version,
            target=held.model.target,
            commit=manifest.lineage.commit,
            digest=held.pointer.release,
            since=held.since,
            looked=datetime.now(UTC),
            wanted=wanted,
        )

    def _tell(self, now: Serving) -> None:
        """Let `serves` say so; log what is new, and tell who asked to be told of it."""
        before, self._told = self._told, now
        name = f"{now.model}@{now.alias}"
        if now.version != before.version:
            LOGGER.info("%s: version %d is served, and was %d", name, now.version, before.version)
        elif now.error == before.error:
            return
        elif now.error:
            LOGGER.warning("%s: version %d is served on: %s", name, now.version, now.error)
        else:
            LOGGER.info("%s: version %d is served, as it points to", name, now.version)
        if self._options.on_change is not None:
            try:
                self._options.on_change(now)
            except Exception:
                LOGGER.exception("%s: the callback for a change failed", name)


def _as_told(error: Exception) -> HandoffError:
    """Return the error as a sentence; what isn't one yet may be the disk, or a fault of ours."""
    if isinstance(error, HandoffError):
        return error
    if isinstance(error, OSError):
        return EnvironmentLacking(
            "the version that the alias points to can't be fetched and opened here",
            expected="a folder for temporary files with room in it", got=str(error),
            remedy="Make room, or name another folder; it is tried again",
        )  # fmt: skip
    LOGGER.error("following failed", exc_info=error)
    return HandoffError(
        "following the alias failed", expected="a version that takes over, or a refusal",
        got=f"{type(error).__name__}: {first_line(error)}", remedy="Report it, with the log",
    )  # fmt: skip
