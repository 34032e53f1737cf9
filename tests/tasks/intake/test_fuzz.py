"""Mutated deliveries: read, or refused with a sentence; never executed, never another exception."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.errors import HandoffError
from tasks.intake import read_delivery
from tests.tasks.intake.models import deliver_case

PIECES = [
    b"", b"(", b")", b"[", b"'", b'"', b".", b",", b"=", b"\n", b"\t", b"#", b"*", b"**", b"-",
    b":",    b" None", b"self", b"__class__", b"torch.load", b"torch.ops.aten", b"getattr(", b"lambda: ",
    b"import os", b"eval('1')", b"9" * 30, b"\x00", b"\xff", b"\x80\x02", b"c", b"R", b"b", b"t",
    b"q\x00", b"h\x00", b"PK\x01\x02", b"PK\x03\x04", b"\xff\xff\xff\xff", b"../",
    b"posix\nsystem\n",
]  # fmt: skip
FILES = ["module.py", "state_dict.pt", "encoder.pt", "norm.pt"]
FORBIDDEN = {"exec", "compile", "import", "os.system", "subprocess.Popen", "pickle.find_class"}


@pytest.fixture(scope="module")
def delivered() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        deliver_case("attention", Path(folder))
        read_delivery(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class Watch:
    """Notes what is executed, opened for writing or imported while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[tuple[str, Any]] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in FORBIDDEN:
            self.seen.append((event, args))

    def foreign(self) -> list[tuple[str, Any]]:
        """Return what was neither torch.fx's own generated code nor a syntax tree."""
        return [(e, a) for e, a in self.seen if not (e in ("exec", "compile") and is_ours(e, a))]


def is_ours(event: str, args: tuple[Any, ...]) -> bool:
    if event == "compile":
        # ast.parse, or the code of a rebuilt graph, every name in which was checked.
        return True
    return str(getattr(args[0], "co_filename", "")).startswith("<eval_with_key>")


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    watching.on = False


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(FILES),
    places=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(PIECES)),
        min_size=1,
        max_size=3,
    ),
)
def test_a_mutated_delivery_is_read_or_refused_and_never_runs(
    name: str,
    places: list[tuple[float, int, bytes]],
    delivered: dict[str, bytes],
    watch: Watch,
) -> None:
    data = delivered[name]
    for place, length, piece in places:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + length :]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for other, content in delivered.items():
            (folder / other).write_bytes(data if other == name else content)
        before = sorted(folder.iterdir())
        watch.on = True
        try:
            with contextlib.suppress(HandoffError):
                read_delivery(folder)
        finally:
            watch.on = False
        assert sorted(folder.iterdir()) == before
    assert watch.foreign() == []
