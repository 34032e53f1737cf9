"""What a program writes to a terminal, seen from its other end."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def written_to_terminal(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a program that has to end well on a terminal of its own; return all that it wrote there.

    `COLUMNS` and `LINES` in its environment say how large the terminal is.
    """
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, env=environment, stdout=follower, stderr=follower)
    os.close(follower)
    written = b""
    try:
        while piece := os.read(leader, 65536):
            written += piece
    except OSError:  # how Linux tells that the other end is closed
        pass
    os.close(leader)
    assert process.wait() == 0, written.decode()
    return written.decode()
