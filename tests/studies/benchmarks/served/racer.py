"""A competitor in a process of its own, as it would be served, that takes its turn when asked.

Several runtimes in one process share its memory, its threads and oneDNN's caches: MobileNetV3's
package took 14 ms beside eager, TorchScript, ONNX Runtime and OpenVINO, and 9 to 10 ms alone. So
what is served from a file is opened by a process that never made the model, either.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import torch

from handoff.tasks.verify.elements import root_mean_square
from handoff.tasks.verify.float64 import flatten_tensors
from tests.studies.benchmarks.failures import NotMadeError, describe_failure
from tests.studies.benchmarks.served.competitors import (
    COMPETITORS,
    RELEASED,
    Axes,
    ExportSource,
    FileCompetitor,
    FlatModule,
    Tensors,
)
from tests.studies.benchmarks.served.turns import TimedCall

CASE_FILE = "case.pt"
# Batches that int8's ranges are chosen by.
CALIBRATING = 8
_MAKING_S = 1200.0
_TURN_S = 120.0
# Two competitors may share a file.
_WRITING: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


def hold_threads() -> int:
    """Have this process, and those that it starts, compute in one thread a core; return how many.

    ONNX Runtime and OpenVINO are set to the same number. No thread is tied to a core: all may use
    all of the machine's, and one racer computes at a time.
    """
    count = min(len(os.sched_getaffinity(0)), psutil.cpu_count(logical=False) or 1)
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(count))
    torch.set_num_threads(count)
    return count


class _Child:
    """The near end of a process that does some work, and tells a number first."""

    def __init__(self, work: Callable[..., None], *given: object) -> None:
        """Wait for the number, `first`; raise `NotMadeError` where the process tells a failure."""
        context = multiprocessing.get_context("spawn")
        self._near, far = context.Pipe()
        self._process = context.Process(target=work, args=(far, *given), daemon=True)
        self._process.start()
        far.close()
        self.first = self._number(_MAKING_S)

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()

    def _number(self, limit_s: float) -> float:
        answer = self._receive(limit_s)
        if not isinstance(answer, float):
            self.close()
            raise NotMadeError(answer)
        return answer

    def _receive(self, limit_s: float) -> object:
        try:
            if self._near.poll(limit_s):
                return self._near.recv()
        except EOFError:
            self._process.join()
            return f"its process ended with {self._process.exitcode}"
        return f"it took more than {limit_s:.0f} s"


class Racer(_Child):
    """The near end of a competitor's process."""

    def __init__(self, model: str, competitor: str, folder: Path, case: Path) -> None:
        """Make `competitor` of the model, from the file in `folder` where it has one.

        It is called with the inputs in the file `case`. `error` is the largest difference to
        eager's outputs there, over their RMS. Raises `NotMadeError`.
        """
        super().__init__(_serve, model, competitor, write_file(model, competitor, folder), case)
        self.error = self.first

    def turn(self) -> float:
        """Return the seconds of a call, in a turn's mean."""
        self._near.send("turn")
        return self._number(_TURN_S)


def write_case(model: str, folder: Path) -> Path:
    """Return the file of the model's example inputs and eager's outputs; write it if need be."""
    case = folder / CASE_FILE
    if not case.exists():
        _Child(_write_case, model, case).close()
    return case


def write_file(model: str, competitor: str, folder: Path) -> Path | None:
    """Return the file that the competitor is served from; None where it is the module itself.

    Where it isn't there, a process of its own writes it. Raises `NotMadeError`.
    """
    entry = COMPETITORS.get(competitor, RELEASED)
    if not isinstance(entry, FileCompetitor):
        return None
    path = folder / entry.file
    if entry.write:
        with _WRITING[path]:
            if not path.exists():
                _Child(_write, model, entry.write, path).close()
    return path


def _write_case(far: Connection, name: str, case: Path) -> None:
    """Write the example's inputs and outputs, and say so."""
    source = _export_source(name)
    flat, inputs = source.module, source.inputs

    def write(path: Path) -> None:
        torch.save((inputs, tuple(tensor.clone() for tensor in flat(*inputs))), path)

    _write_whole(far, write, case)


def _write(far: Connection, name: str, make: Callable[..., object], path: Path) -> None:
    """Write the competitor's file, and say so."""
    source = _export_source(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(far, lambda unfinished: make(source, unfinished), path)


def _write_whole(far: Connection, write: Callable[[Path], object], path: Path) -> None:
    """Write a file that has its name only when it is written to its end; say so, or why not."""
    unfinished = path.with_stem(f"unfinished-{path.stem}")
    try:
        with torch.no_grad():
            write(unfinished)
        unfinished.replace(path)
    except Exception as failure:  # noqa: BLE001 - what can't be made is a result
        far.send(describe_failure(failure))
    else:
        far.send(0.0)


def _serve(far: Connection, name: str, competitor: str, path: Path | None, case: Path) -> None:
    """Open the competitor, say so, and time a turn whenever asked."""
    inputs, want = torch.load(case)
    with torch.no_grad():
        try:
            call = _open(name, competitor, path, inputs)
            error = difference(flatten_tensors(call()), want)
            timed = TimedCall(call)
        except Exception as failure:  # noqa: BLE001 - what can't be made is a result
            far.send(describe_failure(failure))
            return
        del want
        far.send(error)
        while far.recv():
            far.send(timed.turn())


def _open(name: str, competitor: str, path: Path | None, inputs: Tensors) -> Callable[[], object]:
    """Return the competitor's call with these inputs."""
    entry = COMPETITORS.get(competitor, RELEASED)
    if isinstance(entry, FileCompetitor):
        assert path is not None
        opened = entry.open(path)
        return lambda: opened(inputs)
    flat = _export_source(name).module
    served = entry.open(flat.module)
    args, kwargs = flat.call.bind(inputs)
    return lambda: served(*args, **kwargs)


def _export_source(name: str) -> ExportSource:
    # Here, since whoever is served from a file needs none of it.
    from handoff.tasks.deliver.capture.calls import describe_call
    from tests.studies.corpus.models import MODELS

    (model,) = [model for model in MODELS if model.name == name]
    module, (args, kwargs) = model.make()
    call, inputs = describe_call(module, args, kwargs)
    return ExportSource(
        FlatModule(module, call).eval(), inputs, _batch_axes(inputs, model.batch),
        lambda: [describe_call(module, *one)[1] for one in model.others(CALIBRATING)],
    )  # fmt: skip


def difference(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of an output to eager's, over the RMS of eager's.

    It is infinite where NaN and infinities are not those of eager, at the same places. Raises
    `NotMadeError` for another number of outputs, or other shapes.
    """
    shapes = [[tuple(tensor.shape) for tensor in outputs] for outputs in (got, want)]
    if shapes[0] != shapes[1]:
        raise NotMadeError(f"its outputs are of the shapes {shapes[0]}, eager's of {shapes[1]}")
    return max(map(_relative_error, got, want), default=0.0)


def _relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    got, want = got.double(), want.double()
    finite = want.isfinite()
    if not torch.equal(got.isfinite(), finite) or not torch.equal(
        got[~finite].nan_to_num(nan=0.0), want[~finite].nan_to_num(nan=0.0)
    ):
        return math.inf
    if not finite.any():
        return 0.0
    got, want = got[finite], want[finite]
    return float((got - want).abs().max()) / (root_mean_square(want) or 1.0)


def _batch_axes(inputs: Tensors, batch: int) -> Axes:
    size = torch.export.Dim("batch", min=1, max=1024)
    return tuple({0: size} if tensor.shape[0] == batch else {} for tensor in inputs)
