"""The rules of a release: what is refused, and with which words."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.delivery.contract import DeliveryContract, ModelSection
from handoff.artifacts.errors import BlessingRefused, BuildCrashed, DeliveryUnsound, StepCrashed
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import Deviation
from handoff.artifacts.release.evidence import Finding, judge
from handoff.artifacts.release.layout import REPORT_FILE
from handoff.artifacts.release.manifest import Manifest, TargetRecord, read_manifest
from handoff.infra.terminal.release_view import print_release
from handoff.tasks.inspect.messages import TraceabilityResult
from handoff.tasks.intake.messages import IntakeResult
from handoff.tasks.optimize.messages import OptimizeResult
from handoff.tasks.registry.assemble import assemble, record_unsound, refuse_unsound
from handoff.tasks.registry.sign import require_accepted
from handoff.tasks.registry.target_record import BuiltTargets, refuse_target, with_inside
from handoff.tasks.verify.messages import VerifyResult
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


@pytest.mark.parametrize("grave", [(), (GRAVE,)])
def test_an_unsound_delivery_has_a_report_that_says_refused_and_a_sound_one_none(
    grave: tuple[Finding, ...], tmp_path: Path
) -> None:
    contract = DeliveryContract(ModelSection("toy", "Toy"), ())
    taken = IntakeResult(contract, tmp_path, sample_manifest().delivery, {}, 3, 0)
    record_unsound(
        tmp_path / "release", recipe=Recipe(), taken=taken,
        judged=TraceabilityResult(judge((LIMIT, *grave)), (LIMIT, *grave)),
        fingerprint=sample_manifest().fingerprint, began="2026-11-27T04:00:00+00:00",
    )  # fmt: skip
    if not grave:
        assert not (tmp_path / "release").exists()
        return
    page = (tmp_path / "release" / REPORT_FILE).read_text()
    assert "the delivery is unsound" in page
    assert "· refused " in page
    assert "· released " not in page
    assert "it fails for batch = 1" in page
    assert read_manifest(tmp_path / "release").verdict == "unsound"


def test_one_refused_target_refuses_the_release() -> None:
    good = sample_target("cpu-avx2")
    require_accepted(sample_manifest(good))
    refused = refuse_target(
        "cpu-avx512", BlessingRefused("it broke", expected="a package", got="none", remedy="x")
    )
    with pytest.raises(BlessingRefused, match=r"cpu-avx512: it broke.*Nothing was registered"):
        require_accepted(sample_manifest(good, refused))


def test_a_reason_that_many_cases_share_is_reported_once() -> None:
    gone = "the package failed: no proxy executor"
    cases = [f"batch={size} seed=0" for size in (1, 2, 7, 17, 1024)]
    reasons = (*(f"{case}: {gone}" for case in cases), "batch=1 zeros: output 0 is off", "crashed")
    refused = replace(sample_target("cpu-avx2"), accepted=False, reasons=reasons)
    assert refused.reason_lines == (
        f"batch=1 seed=0, batch=2 seed=0, batch=7 seed=0 and 2 more: {gone}",
        "batch=1 zeros: output 0 is off",
        "crashed",
    )
    with pytest.raises(BlessingRefused) as caught:
        require_accepted(sample_manifest(refused))
    assert caught.value.got.count(gone) == 1


def test_the_cause_is_reported_first_and_then_the_case_that_is_furthest_off() -> None:
    (seen, *_) = sample_target("cpu-avx2").deviations
    off = {"batch=1 seed=0": 0.1, "batch=7 seed=0": 0.4, "batch=9 nan": math.nan}
    deviations = tuple(replace(seen, case=case, max_abs=apart) for case, apart in off.items())
    case_reasons = (f"{case}, output {seen.output}: off by {apart}" for case, apart in off.items())
    reasons = (*case_reasons, "div is wrong")
    refused = replace(
        sample_target("cpu-avx2"), accepted=False, deviations=deviations, reasons=reasons
    )
    text = "; ".join(refused.reason_lines)
    assert text.index("div is wrong") < text.index("batch=7 seed=0")
    assert text.index("batch=9 nan") < text.index("batch=7 seed=0") < text.index("batch=1 seed=0")


def test_what_is_printed_before_a_refusal_leaves_its_reasons_to_the_refusal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = replace(
        sample_target("cpu-avx2"), accepted=False, reasons=("output 0 is off",), notes=("a note",)
    )
    print_release(sample_manifest(refused), version=None, aliases=())
    output = capsys.readouterr().out
    assert "REFUSED" in output
    assert "cpu-avx2: a note" in output
    assert "output 0 is off" not in output


def test_a_crash_is_no_verdict_unless_another_target_has_one() -> None:
    problem = {"expected": "a result", "got": "signal SIGKILL", "remedy": "x"}
    crashed = refuse_target("cpu-avx2", StepCrashed("it ended", **problem))
    wrong = refuse_target("cpu-avx512", BlessingRefused("it broke", **problem))
    with pytest.raises(BuildCrashed, match="SIGKILL"):
        require_accepted(sample_manifest(crashed))
    with pytest.raises(BlessingRefused) as refusal:
        require_accepted(sample_manifest(crashed, wrong))
    assert not isinstance(refusal.value, BuildCrashed)


def assembled(folder: Path, target: TargetRecord) -> Manifest:
    """Assemble a release of one target into `folder`."""
    like = sample_manifest(target)
    contract = DeliveryContract(
        ModelSection(like.model), like.signature.inputs, dimensions=dict(like.signature.dimensions)
    )
    taken = IntakeResult(contract, folder / "staging", like.delivery, {}, 9, 0)
    optimized = OptimizeResult(folder / "program.pt2", None, (), {}, like.passes)
    return assemble(
        folder, recipe=like.recipe, taken=taken, judged=TraceabilityResult("sound", ()),
        fingerprint=like.fingerprint, optimized=optimized, signature=like.signature,
        built=BuiltTargets((target,), {}, ""),
    )  # fmt: skip


def test_a_refused_release_leaves_a_report_that_says_why(tmp_path: Path) -> None:
    refused = replace(sample_target("cpu-avx2"), accepted=False, reasons=("wrong by 3",))
    manifest = assembled(tmp_path / "refused", refused)
    assert read_manifest(tmp_path / "refused") == manifest
    assert "wrong by 3" in (tmp_path / "refused" / REPORT_FILE).read_text()
    # That of an accepted one is made and kept where it is uploaded.
    assembled(tmp_path / "accepted", sample_target("cpu-avx2"))
    assert not (tmp_path / "accepted" / REPORT_FILE).exists()


def test_many_reasons_are_shown_in_a_few() -> None:
    reasons = tuple(f"reason {i}" for i in range(50))
    refused = replace(sample_target("cpu-avx2"), accepted=False, reasons=reasons)
    with pytest.raises(BlessingRefused, match="reason 2; and 47 more"):
        require_accepted(sample_manifest(refused))


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
