"""Has a process that serves keep the memory that calls free, for the next call.

glibc gives freed memory back to the system beyond a threshold, and gets it anew, page by page, in
the next call: a package of wav2vec 2.0 met 1568 page faults a call and took 11.6 ms with them, and
9.1 without (two threads). Not in every process: a block that happens to lie at the heap's end keeps
all of it. Other runtimes have an arena of their own.

The threshold isn't fixed: a large block that was mapped and is freed raises it to twice its size
(mallopt(3), "dynamic mmap threshold"), which one block does here that nothing writes to. Where an
operator has set a threshold (GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_), glibc leaves it as it is;
another malloc notices nothing.
"""

from __future__ import annotations

# glibc looks at blocks of up to 32 MiB, of which an alignment to huge pages may take 2.
_BLOCK_BYTES = 30 << 20


def keep_freed_memory() -> None:
    """Let this process's malloc keep up to 60 MiB of what is freed, in each of its arenas."""
    import torch

    torch.empty(_BLOCK_BYTES, dtype=torch.uint8)
