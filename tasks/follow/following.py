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
from handoff.tasks.follow.serving import Alias, FollowOptions, Serving, require_compatible

if TYPE_CHECKING:
    import torch


# Compiled code runs there: no store's credentials, no key, no network.
_TRY_RELEASE_PLAN = ProcessPlan("try-release", preload=("follow.goldens",))


def write_keys(trust: Trust, folder: Path) -> tuple[str, ...]:
    """Write the trusted public keys into a new folder as PEM; return their paths."""
    folder.mkdir()
    paths = []
    for number, key in enumerate(trust.keys):
        path = folder / f"{number}.pub"
        path.write_text(key.keyval["public"], encoding="ascii")
        paths.append(str(path))
    return tuple(paths)


def try_release(
    job: TryReleaseJob, scratch: Path, on_process: Callable[[StepProcess | None], None]
) -> None:
    """Run the job in a process that reads the pulled folder and the keys alone.

    `on_process` gets the process, so that it can be ended, and None at its end. Raises
    `PackageRefused` for a release that is refused there or ends the process, and `BudgetSpent`
    where it took more time or memory than there is.
    """
    reads = (job.folder, *map(Path, job.keys))
    plan = ProcessPlan(_TRY_RELEASE_PLAN.name, preload=_TRY_RELEASE_PLAN.preload, reads=reads)
    process = StepProcess(plan, scratch / "try-release.log")
    on_process(process)
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
        on_process(None)


LOGGER = logging.getLogger("handoff.follow")
# What failed and may pass is tried again after a pause that doubles, up to so many intervals.
_MAX_PAUSES = 16


@dataclass(frozen=True)
class _ServedVersion:
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

    Any thread may call it. `serves` says what it serves. Made by `handoff.follow`; close it, or
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
        self._look_lock = threading.Lock()
        self._process: StepProcess | None = None
        pointer = alias.look()
        self._served: _ServedVersion | None = self._open(pointer, None)
        self._status = self._build_status(self._served, pointer.version)
        self._thread = threading.Thread(target=self._follow, name="handoff-follow", daemon=True)
        self._thread.start()

    def __call__(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:  # noqa: ANN401
        """Return the outputs of the version that is served when the call begins.

        What is given and returned, the checks, and what is raised are those of `LoadedModel`.
        Raises `UsageProblem` once it was closed.
        """
        return self.model(*inputs, **named)

    def __repr__(self) -> str:
        status = self._status
        return f"<{status.model}@{status.alias}, version {status.version} for {status.target}>"

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
        served = self._served
        if served is None:
            raise UsageProblem(
                "a followed model that was closed can't be called", expected="one that is open",
                got="a closed one", remedy="Close it after the last call",
            )  # fmt: skip
        return served.model

    @property
    def signature(self) -> ModelSignature:
        """What the version that is served now takes and gives."""
        return self.model.signature

    @property
    def serves(self) -> Serving:
        """What is served, since when, and why it isn't what the alias points to, if it isn't."""
        return self._status

    def look(self) -> Serving:
        """Ask the store now, and take over what the alias points to if it can be.

        Returns what is served. Nothing is raised for what fails: `error` says it, and what is
        served stays.
        """
        with self._look_lock:
            if not self._closing.is_set():
                self._look_once()
        return self._status

    def close(self) -> None:
        """End following, and give up the model; calls that have begun end as they would have."""
        self._closing.set()
        process = self._process
        if process is not None:
            process.close()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with self._look_lock:
            self._served = None

    def _follow(self) -> None:
        every_s, jitter = self._options.every_s, self._options.jitter
        while not self._closing.wait(every_s * random.uniform(1.0 - jitter, 1.0 + jitter)):  # noqa: S311
            self.look()

    def _look_once(self) -> None:
        served = self._served
        assert served is not None
        try:
            pointer = self._alias.look()
        except Exception as error:  # noqa: BLE001 - any error is reported, and serving goes on
            self._set_status(replace(self._status, error=str(_to_handoff_error(error))))
            return
        if (pointer.version, pointer.release) == (served.pointer.version, served.pointer.release):
            self._failure = None
            self._set_status(self._build_status(served, pointer.version))
            return
        why = self._take_over(served, pointer)
        if self._closing.is_set():
            return
        assert self._served is not None
        status = self._build_status(self._served, pointer.version)
        self._set_status(replace(status, error=str(why or "")))

    def _take_over(self, served: _ServedVersion, pointer: Pointer) -> HandoffError | None:
        """Let the version take over; return why it didn't, where it didn't."""
        earlier = self._failure
        if earlier is not None and earlier.release == pointer.release:
            if earlier.until is None or time.monotonic() < earlier.until:
                return earlier.error
        else:
            earlier = None
        try:
            self._served = self._open(pointer, served)
        except Exception as error:  # noqa: BLE001 - any error is reported, and serving goes on
            self._failure = self._failure_of(pointer, _to_handoff_error(error), earlier)
            return self._failure.error
        self._failure = None
        return None

    def _failure_of(
        self, pointer: Pointer, error: HandoffError, earlier: _Failure | None
    ) -> _Failure:
        if isinstance(error, PackageRefused):
            return _Failure(pointer.release, error)
        pauses = min(_MAX_PAUSES, 2 * earlier.pauses) if earlier else 1
        until = time.monotonic() + pauses * self._options.every_s
        return _Failure(pointer.release, error, pauses, until)

    def _open(self, pointer: Pointer, served: _ServedVersion | None) -> _ServedVersion:
        """Return the version, verified and warmed up; `served` is what is served meanwhile."""
        options, name, version = self._options, self._alias.model, pointer.version
        folder = options.folder and str(options.folder)
        with tempfile.TemporaryDirectory(
            prefix="handoff-follow-", dir=folder, ignore_cleanup_errors=True
        ) as scratch:
            release = self._alias.read(pointer)
            if served is not None and not options.narrower:
                require_compatible(version, served.model.manifest, release.manifest)
            release_folder = Path(scratch, "release")
            target = self._alias.pull(
                release, options.target, release_folder, self._require_open
            ).slug
            if served is not None:
                # A crash in this process would end what is served; at the start nothing is.
                keys = write_keys(self._trust, Path(scratch, "keys"))
                job = TryReleaseJob(release_folder, keys, name, version, target, options.file)
                try_release(job, Path(scratch), self._set_process)
            model = load(
                release_folder, keys=self._trust, name=name, version=version, target=target,
                file=options.file, runners=options.runners, check_values=options.check_values,
                layouts=options.layouts, known_code=True,
            )  # fmt: skip
            warm_up(model, release_folder)
        return _ServedVersion(pointer, model, datetime.now(UTC))

    def _require_open(self, *_: object) -> None:
        """Let a fetch that is under way end where this was closed meanwhile."""
        if self._closing.is_set():
            raise UsageProblem(
                "the version was not fetched", expected="a followed model that is open",
                got="one that was closed meanwhile", remedy="Follow the alias again",
            )  # fmt: skip

    def _set_process(self, process: StepProcess | None) -> None:
        self._process = process
        if process is not None and self._closing.is_set():
            process.close()

    def _build_status(self, served: _ServedVersion, alias_version: int) -> Serving:
        manifest = served.model.manifest
        return Serving(
            model=self._alias.model,
            alias=self._alias.alias,
            version=served.pointer.version,
            target=served.model.target,
            commit=manifest.lineage.commit,
            digest=served.pointer.release,
            since=served.since,
            looked=datetime.now(UTC),
            wanted=alias_version,
        )

    def _set_status(self, status: Serving) -> None:
        """Let `serves` say so; log what is new, and call `on_change` with it."""
        previous, self._status = self._status, status
        name = f"{status.model}@{status.alias}"
        if status.version != previous.version:
            LOGGER.info(
                "%s: version %d is served, and was %d", name, status.version, previous.version
            )
        elif status.error == previous.error:
            return
        elif status.error:
            LOGGER.warning("%s: version %d is served on: %s", name, status.version, status.error)
        else:
            LOGGER.info("%s: version %d is served, as it points to", name, status.version)
        if self._options.on_change is not None:
            try:
                self._options.on_change(status)
            except Exception:
                LOGGER.exception("%s: the callback for a change failed", name)


def _to_handoff_error(error: Exception) -> HandoffError:
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
