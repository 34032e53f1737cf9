"""Faults in kernels' sources are seen and named without a GPU; other roundings are no faults."""

from __future__ import annotations

import pytest

from tests.tasks.compile.cross.models import needs_known_torch
from tests.tasks.verify.interpret.planting import FAULTS, Fault, Row, judge

pytestmark = [needs_known_torch, pytest.mark.compile]


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    """What became of each fault."""
    return {row["fault"]: row for row in judge()}


@pytest.mark.parametrize("fault", [f for f in FAULTS if not f.passes], ids=lambda f: f.name)
def test_a_planted_fault_is_seen_and_its_kernel_named(fault: Fault, rows: dict[str, Row]) -> None:
    row = rows[fault.name]
    assert row["planted"]
    assert row["seen"] in ("numbers", "numbers, backwards", "out of bounds")
    assert row["kernel"].startswith("triton_")
    assert ", line " in row["kernel"]


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.passes], ids=lambda f: f.name)
def test_what_is_no_fault_passes(fault: Fault, rows: dict[str, Row]) -> None:
    row = rows[fault.name]
    assert row["planted"] == (fault.name != "none")
    assert (row["seen"], row["kernel"]) == ("", "")


@pytest.mark.parametrize(
    ("name", "seen"),
    [("mask of a store", "out of bounds"), ("mask of a load", "out of bounds"),
     ("missing tail", "numbers"), ("wrong eps", "numbers"), ("race", "numbers, backwards")],
)  # fmt: skip
def test_how_a_fault_shows(name: str, seen: str, rows: dict[str, Row]) -> None:
    assert rows[name]["seen"] == seen
