"""Ctrl-C while a flow runs in this process: it ends soon, in one sentence, whatever Prefect does.

A terminal sends the signal to Prefect's embedded server, too. It ends first, and what the flow then
reports to it is repeated for minutes. Nothing has to be finished here: step processes end with this
one (`infra.engine.sandbox`), and what is half done is seen by nobody (`tests/studies/outages`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
MESSAGE = "handoff: interrupted; 'handoff list' shows what is released"
# For a server of its own that records how the run ended.
_PATIENCE_S = 5.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process within seconds; raise `KeyboardInterrupt` where it was asked to.

    Where the signal is ignored, as in what a shell starts in the background, it stays so.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    interrupted = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            _exit_now()
        interrupted.set()
        # What fails from now on fails for this.
        logging.disable(logging.CRITICAL)
        timer = threading.Timer(_PATIENCE_S, _exit_now)
        timer.daemon = True
        timer.start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except BaseException as error:
        if interrupted.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        if not interrupted.is_set():
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted.is_set():
        raise KeyboardInterrupt


def _exit_now() -> None:
    os.write(2, f"{MESSAGE}\n".encode())
    os._exit(EXIT_CODE)
