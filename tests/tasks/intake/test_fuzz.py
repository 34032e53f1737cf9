"""Mutated deliveries: read, or refused with a sentence; never executed, never another exception."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import zipfile
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
    b":", b" None", b"self", b"__class__", b"torch.load", b"torch.ops.aten", b"getattr(",
    b"lambda: ", b"import os", b"eval('1')", b"9" * 30, b"\x00", b"\xff", b"\x80\x02", b"c", b"R",
    b"b", b"t", b"q\x00", b"h\x00", b"PK\x01\x02", b"PK\x03\x04", b"\xff\xff\xff\xff", b"../",
    b"\x81", b"Q",
    b"cposix\nsystem\n", b"ctorch.hub\nload\n", b"K\x7f", b"\x8a\x08" + b"\x7f" * 8, b"}", b"]",
    b"0",
]  # fmt: skip
FILES = ["module.py", "state_dict.pt", "encoder.pt", "norm.pt"]
FORBIDDEN = {"exec", "os.system", "os.mkdir", "subprocess.Popen", "pickle.find_class"}


@pytest.fixture(scope="module")
def delivered() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        deliver_case("attention", Path(folder))
        read_delivery(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


class Watch:
    """Notes what is executed while it is on, but for the code of rebuilt graphs."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[tuple[str, Any]] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.on and event in FORBIDDEN:
            name = str(getattr(args[0], "co_filename", ""))
            if event != "exec" or not name.startswith("<eval_with_key>"):
                self.seen.append((event, args))


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    watching.on = False


def mutate(data: bytes, places: list[tuple[float, int, bytes]]) -> bytes:
    for place, length, piece in places:
        at = int(place * len(data))
        data = data[:at] + piece + data[at + length :]
    return data


def mutate_pickle(data: bytes, places: list[tuple[float, int, bytes]]) -> bytes:
    """Return the archive with another `data.pkl`, whose checksum holds."""
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(written, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, mutate(content, places) if name.endswith("data.pkl") else content)
    return written.getvalue()


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(FILES),
    inside=st.booleans(),
    places=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 6), st.sampled_from(PIECES)),
        min_size=1,
        max_size=3,
    ),
)
def test_a_mutated_delivery_is_read_or_refused_and_never_runs(
    name: str,
    inside: bool,
    places: list[tuple[float, int, bytes]],
    delivered: dict[str, bytes],
    watch: Watch,
) -> None:
    change = mutate_pickle if inside and name.endswith(".pt") else mutate
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for other, content in delivered.items():
            changed = change(content, places) if other == name else content
            (folder / other).write_bytes(changed)
        before = sorted(folder.iterdir())
        watch.on = True
        try:
            with contextlib.suppress(HandoffError):
                read_delivery(folder)
        finally:
            watch.on = False
        assert sorted(folder.iterdir()) == before
    assert watch.seen == []
