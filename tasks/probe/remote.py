"""A package that is open in another process as a function: calls go there by files, and back."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from handoff.artifacts.errors import BlessingRefused
from handoff.tasks.verify.loading import Tensors

_STDERR_BYTES = 400


@contextmanager
def remote_package(
    command: Sequence[str], workspace: Path, where: str, answer_s: float
) -> Iterator[RemotePackage]:
    """Run what answers calls until the body ends; `where` says to people where that is.

    What is handed over lies in the folder `workspace`, and an answer may take `answer_s` seconds.
    """
    workspace.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=workspace, prefix="calls-") as folder:
        with Path(folder, "errors").open("wb") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        try:
            yield RemotePackage(process, Path(folder), where, answer_s)
        finally:
            process.kill()
            process.wait()


class RemotePackage:
    """Calls a package that is open in another process; any thread may, at the same time as others.

    Inputs and outputs are flattened, of any shapes, strides and dtypes. What the package refuses is
    a `RuntimeError`; a process that ends, or doesn't answer, refuses the package.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, where: str, answer_s: float
    ) -> None:
        """Hold the process, the folder of what is handed over, and how long an answer may take."""
        self._process, self._folder = process, folder
        self._where, self._answer_s = where, answer_s
        self._numbers = count()
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[str]] = {}
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the outputs, and leave the inputs as the package leaves them."""
        path = self._folder / str(next(self._numbers))
        inputs_file, outputs_file = path.with_suffix(".in"), path.with_suffix(".out")
        flat = [_flat_storage(tensor) for tensor in inputs]
        save_file({str(index): tensor.clone() for index, tensor in enumerate(flat)}, inputs_file)
        views = [
            {"shape": [*t.shape], "strides": [*t.stride()], "offset": t.storage_offset()}
            for t in inputs
        ]
        error = self._ask(
            {"inputs": views, "from": str(inputs_file), "to": str(outputs_file)}, str(outputs_file)
        )
        inputs_file.unlink()
        if error:
            raise RuntimeError(error)
        answer = load_file(outputs_file)
        outputs_file.unlink()
        for index, tensor in enumerate(flat):
            tensor.copy_(answer[f"left/{index}"])
        outputs = len(answer) - len(flat)
        return tuple(answer[f"outputs/{index}"] for index in range(outputs))

    def _ask(self, request: dict[str, Any], key: str) -> str:
        waiting: Future[str] = Future()
        with self._lock:
            if self._ended:
                raise self._refusal("had ended before")
            self._waiting[key] = waiting
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._refusal("had ended before") from None
        try:
            return waiting.result(self._answer_s)
        except futures.TimeoutError:
            raise self._refusal(f"gave no answer within {self._answer_s:g} s") from None

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer["event"] == "answered":
                self._waiting.pop(answer["to"]).set_result(answer["error"])
        status = self._process.wait()
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        with self._lock:
            self._ended = True
            for waiting in self._waiting.values():
                waiting.set_exception(self._refusal(f"{how} at a call"))

    def _refusal(self, how: str) -> BlessingRefused:
        message = _last_line(self._folder / "errors")
        return BlessingRefused(
            f"the package can't be called {self._where}", expected="answers, or errors",
            got=f"a process that {how}{f' ({message})' if message else ''}",
            remedy="Leave that out of the recipe, or run again with --debug",
        )  # fmt: skip


def _flat_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return all that the tensor's memory holds, as one row; changing it changes the tensor."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def _last_line(errors: Path) -> str:
    with errors.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _STDERR_BYTES))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
