"""The code of a library as objdump prints it, for whoever reads off what a processor must have."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

_LIMIT_S = 300


def read_code(library: Path, disassembler: str, take: Callable[[bytes], None]) -> int:
    """Give each line to `take`: of a large library there are millions. Return objdump's status."""
    command = [disassembler, "-d", "-w", str(library)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            take(line)
        return process.wait(_LIMIT_S)
