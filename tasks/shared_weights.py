"""Where a package holds tensors of its delivery as they were delivered, so that both are kept once.

Passes change some weights (a folded batch norm, another layout) and leave the others, which then
lie in the library byte for byte as in the delivery's archives. A file can be cut anywhere, since
its list of parts says how it is put together.
"""

from __future__ import annotations

import mmap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from artifacts.digest import Digest, digest_span
from artifacts.parts import Part, Span, split

# A part costs a request of whoever pulls the release, one after the other.
_LEAST_BYTES = 8 << 20
# AOTInductor begins each weight at a multiple of this, from where the block of them begins.
_ALIGNMENT = 64
_WORD = 8
# So much is looked through at once: a number for each place where a weight may begin is held.
_WINDOW = 64 << 20
# So often is a tensor compared with a file: what is one number all over seems to begin everywhere.
_TRIES = 16


@dataclass(frozen=True)
class _Known:
    """A delivered tensor, and eight bytes by which it is looked for: where they lie in it."""

    part: Part
    word: int
    at: int


def cuts_at(path: Path, kept: Iterable[tuple[Path, Sequence[Part]]]) -> tuple[int, ...]:
    """Return where the tensors of 8 MiB and more begin and end in the file that were `kept`.

    `kept` are the delivery's files and the parts that each was kept as, in order. The places are in
    bytes, ascending; a tensor that was changed by a pass is in none of them.
    """
    known = defaultdict(list)
    for one in {tensor.part: tensor for tensor in _tensors(kept)}.values():
        known[one.word].append(one)
    found: set[int] = set()
    if known and path.stat().st_size >= _LEAST_BYTES:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as m:
            for span in split(path):
                if span.size >= _LEAST_BYTES:
                    for shared in _find(path, m, span, known):
                        found |= {shared.start, shared.start + shared.size}
    return tuple(sorted(found))


def _tensors(kept: Iterable[tuple[Path, Sequence[Part]]]) -> Iterator[_Known]:
    for path, parts in kept:
        starts = accumulate((part.size_bytes for part in parts), initial=0)
        with path.open("rb") as stream:
            for start, part in zip(starts, parts, strict=False):
                if part.size_bytes < _LEAST_BYTES:
                    continue
                stream.seek(start)
                if told := _telling_word(stream.read(min(part.size_bytes, _WINDOW))):
                    yield _Known(part, *told)


def _telling_word(data: bytes) -> tuple[int, int] | None:
    """Return the first aligned number that is not 0, and its place; a padding row is all zeros."""
    whole = memoryview(data)[: len(data) // _ALIGNMENT * _ALIGNMENT].cast("Q")
    words = whole[:: _ALIGNMENT // _WORD].tolist()
    return next(((word, place * _ALIGNMENT) for place, word in enumerate(words) if word), None)


def _find(
    path: Path, content: mmap.mmap, span: Span, known: dict[int, list[_Known]]
) -> Iterator[Span]:
    """Give the places of tensors within a span, in order, none of which overlap."""
    free = span.start
    tried = Counter[Digest]()
    for place, word in _places(content, span, known.keys()):
        for tensor in known[word]:
            start, size, digest = place - tensor.at, tensor.part.size_bytes, tensor.part.digest
            fits = free <= start and start + size <= span.start + span.size
            if not fits or tried[digest] == _TRIES:
                continue
            tried[digest] += 1
            if digest_span(path, start, size) == digest:
                yield Span(start, size)
                free = start + size
                break


def _places(content: mmap.mmap, span: Span, words: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Give each aligned place of a span where one of the words stands."""
    wanted = set(words)
    usable = span.size // _ALIGNMENT * _ALIGNMENT
    with memoryview(content) as view:
        for start in range(span.start, span.start + usable, _WINDOW):
            size = min(_WINDOW, span.start + usable - start)
            with view[start : start + size] as window:
                there = window.cast("Q")[:: _ALIGNMENT // _WORD].tolist()
            if wanted.isdisjoint(there):
                continue
            for place, word in enumerate(there):
                if word in wanted:
                    yield start + place * _ALIGNMENT, word
