"""Work in a child process that shares no thread with this one: it may be killed."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from handoff.artifacts.errors import EnvironmentLacking, HandoffError

_LIMIT_S = 300.0
# Children are forks of one process that has imported these, which takes longer than their work,
# and that has no threads. Pytest's own process has those of other tests' servers, and a lock that
# one of them holds during a fork is never let go in the child.
_IMPORTED = [
    "boto3", "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.hazmat.primitives.serialization", "securesystemslib.dsse",
    "securesystemslib.signer", "sqlalchemy", "mlflow", "mlflow.store.db.utils",
    "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store",
    *(f"handoff.tasks.registry.{name}"
      for name in ("upload", "draft", "sign", "commit", "look_up", "catalogue")),
    "handoff.tasks.report.page", "tests.studies.outages.kills",
    "tests.studies.outages.served.survivals",
]  # fmt: skip


@dataclass(frozen=True)
class ChildResult:
    """How a child ended: with a value, with a refusal, or by a signal (then neither)."""

    value: Any = None
    refusal: HandoffError | None = None
    signal: int = 0


def run_in_child(work: Callable[[], Any]) -> ChildResult:
    """Run `work` in a child process; raise `RuntimeError` with the trace of a defect.

    `work` may be any function that `cloudpickle` can write, and what it answers is pickled. The
    child has this process' environment, and nothing else that was set here.
    """
    return start_child(work).wait()


@dataclass(frozen=True)
class Child:
    """A child under way, and the file into which it tells where it stands if it is late."""

    process: Any
    answers: Connection
    trace: Path

    def wait(self) -> ChildResult:
        """Wait for the end."""
        is_answered = self.answers.poll(_LIMIT_S)
        try:
            kind, value = self.answers.recv() if is_answered else ("late", self.trace.read_text())
        except EOFError:
            kind, value = "killed", None
        if kind == "late":
            self.process.kill()
        self.process.join()
        self.trace.unlink()
        if kind in ("defect", "late"):
            raise RuntimeError(
                f"no answer in {_LIMIT_S:.0f} s: {value}" if kind == "late" else value
            )
        if kind == "refused":
            assert isinstance(value, HandoffError)
            return ChildResult(refusal=value)
        if kind == "killed":
            return ChildResult(signal=-self.process.exitcode)
        return ChildResult(value)


def start_child(work: Callable[[], Any]) -> Child:
    """Start `work` in a child process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    reading, writing = context.Pipe(duplex=False)
    descriptor, trace = tempfile.mkstemp(prefix="child-", suffix=".trace")
    os.close(descriptor)
    process = context.Process(
        target=_work, args=(cloudpickle.dumps(work), dict(os.environ), trace, writing)
    )
    process.start()
    writing.close()
    return Child(process, reading, Path(trace))


def _work(pickled: bytes, environment: Mapping[str, str], trace: str, answers: Connection) -> None:
    os.environ.clear()
    os.environ.update(environment)
    # MLflow's client tells each run's address there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open(trace, "w") as file:  # noqa: PTH123 - what faulthandler writes to needs a descriptor
        faulthandler.dump_traceback_later(_LIMIT_S - 10, file=file)
        answers.send(_answer(cloudpickle.loads(pickled)))
        faulthandler.cancel_dump_traceback_later()
    answers.close()
    # No handlers of libraries: they would take time, and the parent has its answer.
    os._exit(0)


def _answer(work: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "done", work()
    except HandoffError as error:
        return "refused", error
    except OSError as error:
        # As a step's process tells it (`infra.engine.worker`).
        lacking = EnvironmentLacking(
            "a file could not be read or written", expected="room", got=str(error), remedy="Mend it"
        )
        return "refused", lacking
    except BaseException:  # noqa: BLE001 - whatever it is, the parent has to know
        return "defect", traceback.format_exc()
