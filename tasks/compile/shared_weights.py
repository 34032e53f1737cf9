"""Where a package holds tensors of its delivery as they were delivered, so that both are kept once.

Passes change some weights (a folded batch norm, another layout) and leave the others, which then
lie in the library byte for byte as in the delivery's archives. A file can be cut anywhere, since
its list of parts says how it is put together.
"""

from __future__ import annotations

import mmap
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_span
from handoff.artifacts.stores.objects import Part, Span, split

# A part costs a request of whoever pulls the release, one after the other.
_LEAST_BYTES = 8 << 20
# AOTInductor begins each weight at a multiple of this, from where the block of them begins.
_ALIGNMENT = 64
_WORD = 8
# So much is looked through at once: a number for each place where a weight may begin is held.
_WINDOW = 64 << 20
# So often may a tensor not be where it seems to begin: one number all over seems to do so anywhere.
_TRIES = 16


@dataclass(frozen=True)
class _TensorSignature:
    """A delivered tensor, and eight bytes by which it is looked for: where they lie in it."""

    part: Part
    word: int
    at: int


class DeliveredTensors:
    """The tensors of a delivery that are worth looking for: those of 8 MiB and more."""

    def __init__(self, delivered: Mapping[Path, Sequence[Part]]) -> None:
        """Read how each begins; `delivered` are the delivery's files with their parts, in order."""
        places = {}
        for path, parts in delivered.items():
            starts = accumulate((part.size_bytes for part in parts), initial=0)
            for start, part in zip(starts, parts, strict=False):
                if part.size_bytes >= _LEAST_BYTES:
                    # Most lie in two files.
                    places[part] = (path, start)
        self._by_word: dict[int, list[_TensorSignature]] = defaultdict(list)
        for part, (path, start) in places.items():
            if signature := _first_nonzero_word(path, start, part.size_bytes):
                self._by_word[signature[0]].append(_TensorSignature(part, *signature))

    def cuts(self, path: Path) -> tuple[int, ...]:
        """Return the offsets in a file at which such tensors begin and end, ascending.

        A tensor that a pass has changed isn't found. At worst one that is there isn't either.
        """
        offsets: set[int] = set()
        if not self._by_word or path.stat().st_size < _LEAST_BYTES:
            return ()
        with (
            path.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            for span in split(path):
                if span.size >= _LEAST_BYTES:
                    for shared in _find_tensors(path, content, span, self._by_word):
                        offsets |= {shared.start, shared.start + shared.size}
        return tuple(sorted(offsets))


def delivered_parts(folder: Path) -> dict[Path, tuple[Part, ...]]:
    """Return the files of a delivery with the parts that they are kept as."""
    return {
        path: tuple(Part(digest_span(path, s.start, s.size), s.size) for s in split(path))
        for path in sorted(folder.iterdir())
    }


def _first_nonzero_word(path: Path, start: int, size: int) -> tuple[int, int] | None:
    """Return the first aligned number that is not 0, and its place; a padding row is all zeros."""
    with path.open("rb") as stream:
        stream.seek(start)
        for at in range(0, min(size, _WINDOW) - _ALIGNMENT + 1, _ALIGNMENT):
            piece = stream.read(_ALIGNMENT)
            if word := int.from_bytes(piece[:_WORD], sys.byteorder):
                return word, at
    return None


def _find_tensors(
    path: Path, content: mmap.mmap, span: Span, signatures: dict[int, list[_TensorSignature]]
) -> Iterator[Span]:
    """Give the places of tensors within a span, in order, none of which overlap."""
    free = span.start
    failed = Counter[Digest]()
    for place, word in _find_words(content, span, signatures.keys()):
        for tensor in signatures[word]:
            start, size, digest = place - tensor.at, tensor.part.size_bytes, tensor.part.digest
            fits = free <= start and start + size <= span.start + span.size
            if not fits or failed[digest] == _TRIES:
                continue
            if digest_span(path, start, size) == digest:
                yield Span(start, size)
                free = start + size
                break
            failed[digest] += 1


def _find_words(content: mmap.mmap, span: Span, words: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Give each aligned place of a span where one of the words stands."""
    searched = set(words)
    usable = span.size // _ALIGNMENT * _ALIGNMENT
    with memoryview(content) as view:
        for start in range(span.start, span.start + usable, _WINDOW):
            size = min(_WINDOW, span.start + usable - start)
            with view[start : start + size] as window:
                values = window.cast("Q")[:: _ALIGNMENT // _WORD].tolist()
            if searched.isdisjoint(values):
                continue
            for place, word in enumerate(values):
                if word in searched:
                    yield start + place * _ALIGNMENT, word
