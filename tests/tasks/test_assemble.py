"""The rules of a release: what is refused, and with which words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.errors import BlessingRefused, DeliveryUnsound
from artifacts.evidence import Finding, judge
from artifacts.mechanics import Growth, Mechanics, Rate, Trial
from artifacts.steps import TraceabilityResult, VerifyResult
from artifacts.tolerance import Deviation
from tasks.assemble import refuse_target, refuse_unsound, require_accepted, with_inside
from tasks.report import render
from tests.artifacts.samples import sample_manifest, sample_target

GRAVE = Finding("size-baked-in", "unsound", "it fails for batch = 1", "Use x.shape", "module.py:9")
LIMIT = Finding("unused-input", "limit", "y is used by nothing", "Drop it")
NOTE = Finding("half-precision", "note", "weights are float16", "Nothing")


def test_the_gravest_finding_is_the_verdict() -> None:
    assert judge(()) == "sound"
    assert judge((NOTE,)) == "sound"
    assert judge((NOTE, LIMIT)) == "sound within limits"
    assert judge((NOTE, LIMIT, GRAVE)) == "unsound"


def test_an_unsound_delivery_is_refused_with_its_line_and_the_way_out() -> None:
    refuse_unsound(TraceabilityResult("sound within limits", (LIMIT,)))
    with pytest.raises(
        DeliveryUnsound, match=r"^module.py:9: .* fails for batch = 1 .*Use x.shape"
    ):
        refuse_unsound(TraceabilityResult("unsound", (LIMIT, GRAVE)))


def test_one_refused_target_refuses_the_release() -> None:
    good = sample_target("cpu-avx2")
    require_accepted(sample_manifest(good))
    refused = refuse_target(
        "cpu-avx512", BlessingRefused("it broke", expected="a package", got="none", remedy="x")
    )
    with pytest.raises(BlessingRefused, match=r"cpu-avx512: it broke.*Nothing was registered"):
        require_accepted(sample_manifest(good, refused))


def test_many_reasons_are_told_in_a_few() -> None:
    reasons = tuple(f"reason {i}" for i in range(50))
    refused = replace(sample_target("cpu-avx2"), accepted=False, reasons=reasons)
    with pytest.raises(BlessingRefused, match="reason 4; and 45 more"):
        require_accepted(sample_manifest(refused))


def test_the_report_says_what_was_released_and_what_was_noticed(tmp_path: Path) -> None:
    text = render(sample_manifest(sample_target("cpu-avx2")))
    for part in (
        "# toy: accepted, delivery sound within limits",
        "| cpu-avx2 | accepted | 3.00e-07 |",
        "`x float32 [batch, 8]`",
        "batch from 1 to 1024",
        "0123abcd",
        "unused-input",
        "not compared at batch=1024",
        "2.00 (1.90 to 2.10)",
    ):
        assert part in text


def test_a_refused_target_is_told_in_the_report() -> None:
    refused = replace(sample_target("cpu-avx2"), accepted=False, reasons=("wrong | by 3",))
    text = render(sample_manifest(refused))
    assert "# toy: refused" in text
    assert "- refused: wrong | by 3" in text


def measured(output: int, case: str = "batch=1 seed=0") -> Deviation:
    return Deviation(output, case, "float32", 4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_outputs_that_nothing_can_tell_from_wrong_ones_are_no_blessing() -> None:
    alone = VerifyResult((measured(0),), (), (), (0,))
    assert with_inside(alone, (), None).reasons == (
        "no comparison could fail: no output changes with the inputs",
    )
    beside = VerifyResult((measured(0), measured(1)), (), (), (0,))
    assert with_inside(beside, (), None).accepted, "the other output is compared"


def test_what_was_measured_inside_the_graph_is_part_of_the_verdict() -> None:
    outside = VerifyResult((measured(0),), (), ("output 0 is 0 at every input",), (0,))
    right = VerifyResult((measured(0, "batch=7"),), ())
    merged = with_inside(outside, ("tanh (aten.tanh.default)",), right)
    assert merged.accepted
    assert merged.deviations[1].case == "inside, tanh (aten.tanh.default): batch=7"
    wrong = replace(right, reasons=("batch=7, output 0: too far",))
    assert "inside the graph, at tanh" in with_inside(outside, ("tanh",), wrong).reasons[0]


def test_the_report_tells_what_became_of_hostile_inputs_and_of_memory() -> None:
    trials = (
        Trial("ids:last=9", "crashed", "refused", "SIGABRT"),
        Trial("missing", "refused", "refused"),
    )
    found = Mechanics(
        case="batch=1",
        rates=(Rate(8, 12345.6),),
        growth=Growth(10_000, 1.0, 0, 3 << 20, 400 << 20),
        trials=trials,
        commands=("handoff-runner bench RELEASE CASES",),
    )
    text = render(sample_manifest(replace(sample_target("cpu-avx2"), mechanics=found)))
    for part in (
        "| 8 threads | 12,346 calls/s |",
        "| memory over 10000 calls | grew by 3.0 MiB |",
        "2 hostile inputs; the package alone refuses all but these:",
        "| ids:last=9 | crashed | refused | SIGABRT |",
        "\nhandoff-runner bench RELEASE CASES",
    ):
        assert part in text
    assert "| missing |" not in text
