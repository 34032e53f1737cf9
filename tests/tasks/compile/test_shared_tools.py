"""Precompiled headers that compilations share: made once, and there when they are whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch._inductor import codecache

from handoff.tasks.compile.caching.shared_tools import headers_made_in


def make(name: str) -> bool:
    """Make a header where Inductor would, unless it is there; tell whether it had to be made."""
    made = Path(codecache._HEADER_DIR, f"{name}.h.gch")
    is_new = not made.exists()
    if is_new:
        Path(codecache._HEADER_DIR, f"{name}.h").write_text("source")
        made.write_text("made")
    return is_new


def fail_halfway() -> None:
    make("one")
    raise OSError("No space left on device")


def test_a_header_is_made_once_and_others_beside_it(tmp_path: Path) -> None:
    with headers_made_in(tmp_path):
        assert make("one")
    with headers_made_in(tmp_path):
        assert not make("one")
        assert make("two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["headers"]
    assert sorted(path.name for path in (tmp_path / "headers").iterdir()) == [
        "one.h", "one.h.gch", "two.h", "two.h.gch",
    ]  # fmt: skip


def test_what_a_former_version_left_among_the_headers_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "headers" / "locks").mkdir(parents=True)
    with headers_made_in(tmp_path):
        assert make("one")
    assert (tmp_path / "headers" / "one.h.gch").exists()


def test_half_a_header_is_in_nobodys_way(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"), headers_made_in(tmp_path):
        fail_halfway()
    assert list((tmp_path / "headers").iterdir()) == []


def test_two_at_once_make_the_same_and_neither_is_in_the_others_way(tmp_path: Path) -> None:
    with headers_made_in(tmp_path):
        assert make("one")
        with headers_made_in(tmp_path):
            assert make("one")
        assert (tmp_path / "headers" / "one.h.gch").read_text() == "made"
    assert (tmp_path / "headers" / "one.h.gch").read_text() == "made"
