"""A night without workers: each model in its turn, whatever happens to the others."""

from __future__ import annotations

import pytest

from handoff.artifacts.errors import DeliveryUnsound
from handoff.flows.children import MOST_ATTEMPTS
from handoff.flows.nightly import night
from handoff.flows.parameters import RebuildParameters


def due(*models: str) -> list[RebuildParameters]:
    return [
        RebuildParameters(model=model, version=1, night="20261122T020000Z", recipe={})
        for model in models
    ]


def test_a_crash_is_tried_again_and_a_refusal_is_not(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[tuple[str, int]] = []

    def rebuild(wanted: RebuildParameters, attempt: int) -> None:
        tried.append((wanted.model, attempt))
        if wanted.model == "unsound":
            raise DeliveryUnsound("no", expected="sound", got="unsound", remedy="mend it")
        if wanted.model == "unlucky" and attempt == 1:
            raise OSError("the server is gone")

    ends = night._rebuild_one_by_one(due("unsound", "unlucky", "fine"), rebuild)
    assert tried == [("unsound", 1), ("unlucky", 1), ("unlucky", 2), ("fine", 1)]
    assert set(ends) == {"unsound"}
    assert "unlucky crashed, attempt 1" in caplog.text


def test_what_crashes_every_time_is_given_up_and_stops_no_other() -> None:
    tried: list[str] = []

    def rebuild(wanted: RebuildParameters, attempt: int) -> None:
        tried.append(wanted.model)
        if wanted.model == "cursed":
            raise RuntimeError("again")

    ends = night._rebuild_one_by_one(due("cursed", "fine"), rebuild)
    assert {model: end.why for model, end in ends.items()} == {"cursed": "RuntimeError: again"}
    assert tried == ["cursed"] * MOST_ATTEMPTS + ["fine"]
