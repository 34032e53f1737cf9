"""Work in a forked child process: it may be killed, and what it opens is gone with it."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from artifacts.errors import EnvironmentLacking, HandoffError

_LIMIT_S = 300.0
# Each fork would import them anew, which takes longer than its work.
_IMPORTED_LATE = (
    "boto3", "cryptography.hazmat.primitives.asymmetric.ec",
    "cryptography.hazmat.primitives.serialization", "securesystemslib.dsse",
    "securesystemslib.signer", "sqlalchemy", "mlflow", "mlflow.store.db.utils",
    "mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store",
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a child ended: with a value, with a refusal, or by a signal (then neither)."""

    value: Any = None
    refusal: HandoffError | None = None
    signal: int = 0


def run_in_child(work: Callable[[], Any]) -> Ended:
    """Run `work` in a fork of this process; raise `RuntimeError` with the trace of a defect.

    The parent must not have opened what the child opens: a database's connection doesn't survive
    a fork.
    """
    return start_child(work).wait()


@dataclass(frozen=True)
class Child:
    """A child under way."""

    process: Any
    answers: Connection

    def wait(self) -> Ended:
        """Wait for the end."""
        is_answered = self.answers.poll(_LIMIT_S)
        try:
            kind, value = self.answers.recv() if is_answered else ("late", "no answer in time")
        except EOFError:
            kind, value = "killed", None
        if kind == "late":
            self.process.kill()
        self.process.join()
        if kind in ("defect", "late"):
            raise RuntimeError(value)
        if kind == "refused":
            assert isinstance(value, HandoffError)
            return Ended(refusal=value)
        if kind == "killed":
            return Ended(signal=-self.process.exitcode)
        return Ended(value)


def start_child(work: Callable[[], Any]) -> Child:
    """Start `work` in a fork of this process."""
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    context = multiprocessing.get_context("fork")
    reading, writing = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(work, writing))
    process.start()
    writing.close()
    return Child(process, reading)


def _work(work: Callable[[], Any], answers: Connection) -> None:
    # MLflow's client tells each run's address there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    try:
        answers.send(("done", work()))
    except HandoffError as error:
        answers.send(("refused", error))
    except OSError as error:
        # As a step's process tells it (`tasks.worker`).
        lacking = EnvironmentLacking(
            "a file could not be read or written", expected="room", got=str(error), remedy="Mend it"
        )
        answers.send(("refused", lacking))
    except BaseException:  # noqa: BLE001 - whatever it is, the parent has to know
        answers.send(("defect", traceback.format_exc()))
    answers.close()
    # Not by way of pytest's own handlers, which would report as if this were the parent.
    os._exit(0)
