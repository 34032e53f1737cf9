"""Mutated deliveries: read, or refused with a sentence; never executed, never another exception."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handoff.artifacts.errors import HandoffError
from handoff.tasks.intake.loading import read_delivery
from tests.tasks.intake.models import deliver_case
from tests.tasks.intake.mutations import (
    MARK,
    PIECES,
    Places,
    Watch,
    mutate,
    mutate_pickle,
    mutate_text,
)

FILES = ["module.py", "state_dict.pt", "encoder.pt", "norm.pt"]


@pytest.fixture(scope="module")
def delivered() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        deliver_case("attention", Path(folder))
        read_delivery(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    watching = Watch()
    yield watching
    watching.on = False


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
    places: Places,
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


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from([*FILES, "delivery.toml"]), seed=st.integers(0, 1 << 30))
def test_a_delivery_with_another_text_is_refused_with_a_sentence_or_doesn_t_hold_it(
    name: str, seed: int, delivered: dict[str, bytes], watch: Watch
) -> None:
    changed = mutate_text(name, delivered[name], random.Random(seed))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for other, content in (delivered | {name: changed}).items():
            (folder / other).write_bytes(content)
        watch.on = True
        code, refused = "", ""
        try:
            code = read_delivery(folder).module.code
        except HandoffError as error:
            refused = str(error)
        finally:
            watch.on = False
    assert bool(code) != bool(refused)
    assert MARK not in code
    assert refused.isprintable()
    assert watch.seen == []
