"""A folder that one process at a time holds: what several would write to at once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Hold a folder that exists; give its descriptor, by which what is in it can be synced.

    Others that hold it come after this one. The lock (`flock(2)`) ends with the process, too,
    however that ends.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)
