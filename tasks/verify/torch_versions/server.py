"""Makes the calls that another process asks for, in an environment with torch and safetensors.

    python -I server.py FILE THREADS

A program of its own: nothing of Handoff is installed where it runs. Each line that it reads is a
call, whose inputs lie in a file, and whose outputs go to another; it answers with a line as soon as
that is written. Four calls are made at once. A `.so` is opened as `handoff.load` opens it, a `.pt2`
as well.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch._C import _aoti

_AT_ONCE = 4
_MOST_CHARACTERS = 4000
Run = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


def open_file(path: str) -> Run:
    """Return what calls the package in a file."""
    run: Run
    if path.endswith(".pt2"):
        run = _aoti.AOTIModelPackageLoader(path, "model", False, _AT_ONCE, -1).boxed_run
    else:
        run = _aoti.AOTIModelContainerRunnerCpu(path, _AT_ONCE).run
    return run


def answer(run: Run, request: dict[str, Any]) -> str:
    """Make one call; return what it was refused for, or nothing."""
    tensors = load_file(request["from"])
    inputs = [
        torch.as_strided(tensors[str(at)], view["shape"], view["strides"], view["offset"])
        for at, view in enumerate(request["inputs"])
    ]
    try:
        outputs = run(list(inputs))
    except RuntimeError as error:
        return str(error)[:_MOST_CHARACTERS] or "an error without a word"
    written = {f"left/{name}": tensor for name, tensor in tensors.items()}
    written |= {f"outputs/{at}": one.detach().clone() for at, one in enumerate(outputs)}
    save_file({name: tensor.contiguous() for name, tensor in written.items()}, request["to"])
    return ""


def main() -> None:
    """Open the package, and answer until nothing more is asked."""
    path, threads = sys.argv[1], int(sys.argv[2])
    try:
        run = open_file(path)
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0]
        sys.exit(text or "it can't be opened, without a word")
    output_lock = Lock()

    def serve(line: str) -> None:
        request = json.loads(line)
        error = answer(run, request)
        message = json.dumps({"event": "answered", "to": request["to"], "error": error})
        with output_lock:
            sys.stdout.write(message + "\n")
            sys.stdout.flush()

    # OpenMP counts threads for each thread that asks.
    with ThreadPoolExecutor(
        _AT_ONCE, initializer=torch.set_num_threads, initargs=(threads,)
    ) as pool:
        for line in sys.stdin:
            pool.submit(serve, line).add_done_callback(_end_if_failed)


def _end_if_failed(served: Future[None]) -> None:
    """End the process where it couldn't answer, so that nobody waits for it."""
    if error := served.exception():
        traceback.print_exception(error)
        os._exit(1)


if __name__ == "__main__":
    main()
