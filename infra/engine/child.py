"""Child processes that run steps: started early, given jobs, their end never ours.

A `StepProcess` is one Python process that runs steps one after another. It may be started before
its first job is known, so that importing torch and Inductor runs beside something else; those that
can are forked from one that has imported them (`infra.engine.forking`).
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Generic, Literal, TypeVar

from handoff.artifacts.errors import HandoffError, StepCrashed, error_from_record
from handoff.artifacts.isolation import isolated_command
from handoff.artifacts.record import Job, absolute, from_plain, to_plain
from handoff.infra.engine import import_paths
from handoff.infra.engine.budget import (
    disk_full_error,
    failed_on_full_disk,
    step_killed_error,
    time_factor,
    timeout_error,
    too_many_processes_error,
)
from handoff.infra.engine.forking import FORK_SERVERS, ForkRequest, ProcessHandle, ProgramProcess
from handoff.infra.engine.process_groups import MAX_THREADS, PROCESS_GROUPS
from handoff.infra.engine.sandbox import settings_arguments
from handoff.infra.settings import has_gpu
from handoff.tasks.steps import step_of

# What the flow announces its steps by, too.
LOGGER = logging.getLogger("handoff.progress")
_LOG_TAIL_CHARACTERS = 1500
R = TypeVar("R")
_POLL_S = 1.0


@dataclass(frozen=True)
class ProcessPlan:
    """How a step process is started.

    `preload` names modules below `tasks` to import before the first job, `later` those to import
    after it, and `extensions` those of the recipe. `environment` is added to what the launcher lets
    through: `bare` is what a compiler needs, `stores` adds the stores' credentials, `sources` those
    that deliveries are fetched with, `keys` what signing needs, `whole` is everything. Only the
    last two can read this machine's signing key, where the kernel has Landlock.

    A bare one is confined (`infra.engine.confinement`): beside the system it reads what `reads`
    names, runs programs of `runs`, and writes to the folders that `writes` names, where nothing can
    be run, and to a scratch folder of its own.
    """

    name: str
    preload: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    sees: Literal["bare", "stores", "sources", "keys", "whole"] = "bare"
    reads: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    later: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimedResult(Generic[R]):
    """What a step returned, and how many seconds it took in its process."""

    result: R
    seconds: float


def begin_servers() -> None:
    """Let what step processes are forked from import, beside what is done before there is any."""
    FORK_SERVERS.begin(_python_options({}))


class StepProcess:
    """One child process for steps, in which a crash is a result."""

    def __init__(self, plan: ProcessPlan, log: Path, *, after: Sequence[Future[Any]] = ()) -> None:
        """Start the process; its output goes to the file `log`.

        Its first job waits for what comes before it, however that ends (`after`).
        """
        self.plan = plan
        self.log = log.absolute()
        self._queue = ThreadPoolExecutor(max_workers=1, thread_name_prefix=plan.name)
        self._lifecycle = threading.Lock()
        self._closed = False
        self._jobs = 0
        self._group: int | None = None
        self._out_of_time_s: float | None = None
        # From the queue's own thread: the kernel ends a child together with the thread that
        # started it (PR_SET_PDEATHSIG), and this one lives as long as we do.
        self._process, self._answers = self._queue.submit(self._start).result()
        if after:
            self._queue.submit(wait, after)

    def submit(self, job: Job[R], *, limit_s: float | None = None) -> Future[TimedResult[R]]:
        """Queue `job` behind those before it and return its future.

        The step is ended after `limit_s` seconds, or after those of its row.
        """
        limit_s = step_of(job).limit_s if limit_s is None else limit_s
        return self._queue.submit(self._run, job, limit_s)

    def run(self, job: Job[R], *, limit_s: float | None = None) -> R:
        """Return the result of `job`; raise what the step raised, or `StepCrashed`."""
        return self.submit(job, limit_s=limit_s).result().result

    def renew(self) -> None:
        """End the process when its jobs are done, to free its memory; the next job starts another.

        An opened library stays with a process until its end, and so does its copy of the weights.
        """
        self._queue.submit(self._end)

    def close(self) -> None:
        """End the process and everything it started; running jobs end as crashed."""
        with self._lifecycle:
            self._closed = True
            self._kill()
        self._queue.shutdown(wait=True, cancel_futures=True)

    def _end(self) -> None:
        with self._lifecycle:
            if not self._closed:
                self._kill()

    def _start(self) -> tuple[ProcessHandle, IO[bytes]]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        plan = self.plan
        modules = (*plan.preload, *(f"extension:{name}" for name in plan.extensions))
        has_user_code = bool(plan.extensions) or plan.sees == "whole"
        search_path = import_paths.search_path_for_children() if has_user_code else ()
        launcher, look_options = (
            self._launcher_arguments(search_path),
            _repeat_option("--look", search_path),
        )
        layer = None
        if plan.sees == "bare":
            layer = FORK_SERVERS.layer_for(plan.preload, plan.environment)
        if layer is not None:
            # A fork server has none of these settings, which a launcher of its own reads.
            launcher += settings_arguments(launcher)
        options = _python_options(plan.environment)
        reading, writing = os.pipe()
        process: ProcessHandle
        with self.log.open("ab") as output:
            if layer is None:
                process = _start_program(
                    launcher, [*look_options, *_repeat_option("--later", plan.later), *modules],
                    output, writing, options,
                )  # fmt: skip
            else:
                request = ForkRequest(plan.name, tuple(launcher), (*look_options, *modules))
                process = FORK_SERVERS.fork(layer, request, output.fileno(), writing, options)
        os.close(writing)
        self._watch(process.pid)
        return process, os.fdopen(reading, "rb", buffering=0)

    def _launcher_arguments(self, search_path: Sequence[str]) -> list[str]:
        """Return the arguments of the launcher; an extension is looked for in the `search_path`."""
        plan = self.plan
        environment = dict(plan.environment)
        # The training side's own code reads its files from where it was started.
        arguments = [] if plan.sees == "whole" else ["--in", str(self.log.parent)]
        if plan.sees == "bare":
            scratch = Path(environment.setdefault("TMPDIR", str(self.log.parent / "scratch")))
            # Libraries keep caches and settings there; the user's own is out of sight.
            environment.setdefault("HOME", str(scratch))
            code = import_paths.extension_files(plan.extensions, search_path)
            arguments += [
                "--confined",
                *(["--gpu"] if has_gpu() else []),
                *_repeat_option("--read", [*plan.reads, *code]),
                *_repeat_option("--run", plan.runs),
            ]
            arguments += [
                *_repeat_option("--write", plan.writes), *_repeat_option("--link", [scratch]),
                *_repeat_option("--list", search_path),
            ]  # fmt: skip
        else:
            arguments.append(f"--{plan.sees}")
        return [*arguments, *_repeat_option("--set", [f"{k}={v}" for k, v in environment.items()])]

    def _run(self, job: Job[R], limit_s: float) -> TimedResult[R]:
        with self._lifecycle:
            # Not after `close`, which has ended what there was and waits for this.
            if self._process.poll() is not None and not self._closed:
                self._answers.close()
                self._process, self._answers = self._start()
        log_start, limit_s, self._out_of_time_s = (
            self.log.stat().st_size,
            limit_s * time_factor(),
            None,
        )
        request = self._write_job(job)
        if self._group is None:
            self._watch(self._process.begin(limit_s))
            if self._group is None and self._process.poll() is None:
                self._out_of_time_s = limit_s
                raise self._end_failed_job(job, log_start)
        try:
            self._process.stdin.write(request.encode() + b"\n")
            self._process.stdin.flush()
            record = self._read_result(step_of(job).name, limit_s)
        except BrokenPipeError:
            record = None
        if record is None:
            raise self._end_failed_job(job, log_start)
        if "error" in record:
            raise error_from_record(record["error"])
        return TimedResult(from_plain(step_of(job).result, record["result"]), record["seconds"])

    def _end_failed_job(self, job: Job[Any], log_start: int) -> HandoffError:
        """End the process; return the error of its job, which has no result."""
        was_killed = False
        if self._out_of_time_s is None and not self._closed:
            was_killed = self._process.wait(_POLL_S) == -signal.SIGKILL
        was_too_large = self._unwatch()
        self._kill()
        if was_too_large:
            return too_many_processes_error(step_of(job).name, MAX_THREADS)
        if self._out_of_time_s is not None:
            return timeout_error(step_of(job).name, self._out_of_time_s)
        if was_killed and not self._closed:
            return step_killed_error(step_of(job).name, self.log)
        return self._crash_error(job, log_start)

    def _write_job(self, job: Job[Any]) -> str:
        """Write the job beside the log, so that one line repeats it, and return the request.

        The request holds the job itself: other processes than ours can write to the log's folder.
        """
        self._jobs += 1
        step, kind = step_of(job), type(job)
        path = self.log.with_name(
            f"{self.log.stem}-{self._jobs}-{step.name.replace(' ', '-')}.json"
        )
        # It is read in another folder.
        plain = to_plain(absolute(job))
        path.write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
        return json.dumps(
            [step.name, step.module, kind.__module__, kind.__name__, plain, str(path)]
        )

    def _read_result(self, step: str, limit_s: float) -> dict[str, Any] | None:
        """Return the step's answer, None where it ended without one; log how far it is until then.

        An answer is the last line that is written until the next request.
        """
        deadline = time.monotonic() + limit_s
        while lines := self._read_lines(deadline, limit_s):
            for line in lines.splitlines():
                message: dict[str, Any] = json.loads(line)
                if "seconds" in message:
                    return message
                extra = {"step": step, "phase": "under way", **message}
                LOGGER.info(
                    "%s: %d of %d bytes", step, message["done"], message["total"], extra=extra
                )
        return None

    def _read_lines(self, deadline: float, limit_s: float) -> bytes:
        """Return lines from the child; nothing when it ended or ran out of time."""
        answer = b""
        while not answer.endswith(b"\n"):
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                self._out_of_time_s = limit_s
                with self.log.open("a", encoding="utf-8") as output:
                    output.write(f"\nstopped: no result within {limit_s:.0f} s\n")
                return b""
            # Asked before the wait, so that what an ended child still wrote is read. What it has
            # forked may hold the pipe open after it.
            has_ended = self._process.poll() is not None
            if select.select([self._answers], [], [], min(remaining_s, _POLL_S))[0]:
                chunk = self._answers.read(65536)
                if not chunk:
                    return b""
                answer += chunk
            elif has_ended:
                return b""
        return answer

    def _kill(self) -> None:
        self._unwatch()
        self._process.close()

    def _watch(self, group: int | None) -> None:
        """Watch the process's group; None for one that is yet to be forked."""
        self._group = group
        if group is not None:
            PROCESS_GROUPS.watch(group)

    def _unwatch(self) -> bool:
        return self._group is not None and PROCESS_GROUPS.unwatch(self._group)

    def _crash_error(self, job: Job[Any], log_start: int) -> HandoffError:
        code = self._process.wait()
        assert code is not None
        with self.log.open("rb") as stream:
            stream.seek(log_start)
            output = stream.read().decode(errors="replace").strip()
        if failed_on_full_disk(output, self.log.parent):
            return disk_full_error(f"the step {step_of(job).name}", self.log.parent)
        ending = f"signal {_signal_name(-code)}" if code < 0 else f"exit status {code}"
        lines = output[-_LOG_TAIL_CHARACTERS:] or "nothing printed"
        return StepCrashed(
            f"the step {step_of(job).name} ended without a result",
            expected="a result or a refusal",
            got=f"{ending}; its last output: {lines}",
            remedy=f"Read {self.log}, which also holds the command that repeats the step",
        )


def _start_program(
    launcher: Sequence[str],
    worker: Sequence[str],
    output: IO[bytes],
    answers: int,
    options: Sequence[str],
) -> ProcessHandle:
    """Start the process as a program of its own, which the launcher becomes."""
    launcher_command = isolated_command("handoff.infra.engine.sandbox", *launcher)
    worker_command = isolated_command(
        "handoff.infra.engine.worker", "--answers", str(answers), *worker, options=options
    )
    process = subprocess.Popen(
        [*launcher_command, "--", *worker_command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=(answers,),
        start_new_session=True,
    )
    return ProgramProcess(process)


def _python_options(environment: Mapping[str, str]) -> list[str]:
    """Return as options what an isolated Python doesn't take from its environment."""
    warnings = environment.get("PYTHONWARNINGS", "")
    options = [part for one in warnings.split(",") if one for part in ("-W", one)]
    return [*options, *(["-X", "faulthandler"] if os.environ.get("PYTHONFAULTHANDLER") else [])]


def _repeat_option(option: str, values: Iterable[str | Path]) -> list[str]:
    """Return the option with each of the values; it is read in another folder than this one."""
    texts = (str(value.absolute()) if isinstance(value, Path) else value for value in values)
    return [part for value in texts for part in (option, value)]


def _signal_name(number: int) -> str:
    # The real-time signals between the first and the last have no names.
    return next((known.name for known in signal.Signals if known == number), str(number))
