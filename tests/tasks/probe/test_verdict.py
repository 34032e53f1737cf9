"""What is said against a package, by what was found out; and what is hostile to one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from handoff.artifacts.delivery.signature import Dimension, ModelSignature, TensorSpec
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.mechanics import Mechanics, Trial
from handoff.tasks.probe.cases import describe_hostile
from handoff.tasks.probe.verdict import judge_calls, judge_measures
from tests.tasks.probe.samples import mechanics


def judge(found: Mechanics) -> list[str]:
    """Return what is said against a package."""
    return [*judge_calls(found), *judge_measures(found)]


def test_nothing_is_said_against_a_good_package() -> None:
    assert judge(mechanics(different=4)) == []


def test_memory_that_grows_on_is_a_leak_and_memory_that_is_kept_is_not() -> None:
    assert judge(mechanics(grown=4 << 20)) == []
    assert any("it leaks" in reason for reason in judge(mechanics(grown=5 << 20)))


@pytest.mark.parametrize(
    ("trial", "refused"),
    [
        (Trial("ids:last=9", "crashed", "refused"), False),
        (Trial("ids:last=9", "answered", "refused"), False),
        (Trial("ids:last=9", "crashed", "crashed"), True),
        (Trial("ids:last=9", "answered", "answered"), True),
        (Trial("ids:last=9", "answered alike", "answered alike"), True),
        (Trial("ids:strided", "answered alike", "answered alike"), False),
        (Trial("ids:turned", "answered alike", "answered alike"), False),
        (Trial("ids:turned", "answered", "answered"), True),
        (Trial("ids:strided", "answered", "answered"), True),
        (Trial("ids:last=9", "harmed", "harmed"), True),
        (Trial("ids:last=9", "hung", "hung"), True),
        (Trial("ids:last=9", "not run", "refused"), True),
        (Trial("ids:last=9", "refused", "not run"), True),
        (Trial("ids:last=9", "refused", "crashed"), True),
    ],
)
def test_what_even_the_guard_does_not_survive_is_refused(trial: Trial, refused: bool) -> None:
    assert bool(judge(mechanics(trial))) is refused


@pytest.mark.parametrize("part", ["replays", "openings", "rates", "growth", "trials"])
def test_a_check_that_did_not_run_is_a_refusal(part: str) -> None:
    found = mechanics()
    plain = to_plain(found)
    plain[part] = None if part == "growth" else []
    assert judge(from_plain(Mechanics, plain))


def test_hostile_inputs_are_all_against_the_signature() -> None:
    signature = ModelSignature(
        (
            TensorSpec("ids", "int64", ("batch", 4), 0, 9),
            TensorSpec("x", "float32", ("batch", "length")),
            TensorSpec("flag", "bool", ()),
            TensorSpec("byte", "uint8", (2,), 0, 255),
        ),
        dimensions={"batch": Dimension(1, 64), "length": Dimension(0, 8)},
    )
    found = describe_hostile(signature, {"batch": 1, "length": 0})
    assert len(set(found)) == len(found)
    assert {"missing", "extra", "@batch=65", "@batch=0", "@length=9"} <= set(found)
    assert "@length=0" not in found
    assert {"ids:axis0=2", "ids:axis0=64", "ids:axis1=5", "ids:dtype=int32"} <= set(found)
    assert "ids:axis0=1" not in found
    assert not [name for name in found if name.startswith("x:axis1")]
    assert {"ids:last=10", "ids:last=-1"} <= set(found)
    assert not [name for name in found if name.startswith("byte:last")]
    assert "flag:less-axis" not in found
    steps = replace(
        signature, dimensions={**signature.dimensions, "batch": Dimension(4, 64, "", 4)}
    )
    assert {"@batch=3", "@batch=5", "@batch=65"} <= set(
        describe_hostile(steps, {"batch": 4, "length": 0})
    )
    assert "x:device=cpu" in describe_hostile(signature, {"batch": 1, "length": 0}, on_gpu=True)
