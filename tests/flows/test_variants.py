"""A search's variants: what happens to them where the cache or the race between them fails."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from handoff.artifacts.delivery.metric import MeasuredMetric
from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import HandoffError, StepCrashed
from handoff.artifacts.recipe.search import Search
from handoff.artifacts.recipe.target import parse_target
from handoff.artifacts.release.evidence import Candidate, choose
from handoff.artifacts.release.manifest import PackageFile
from handoff.flows.target import variants
from handoff.infra.engine.budget import timeout_error
from handoff.tasks.compile.messages import CompileJob, CompileResult, ReusedPart
from handoff.tasks.timing.messages import RaceLap, RaceResult
from handoff.tasks.verify.messages import VerifyResult

PLAIN = Candidate("plain", accepted=True)
FREEZING = Candidate("freezing", accepted=True)
LATE = Candidate("channels-last", accepted=False, reasons=("the search's 60 s were over",))
TRIED = (PLAIN, FREEZING, LATE)


def time_variants(monkeypatch: pytest.MonkeyPatch, race: Any) -> tuple[Candidate, ...]:
    monkeypatch.setattr(variants, "race", race)
    processes = SimpleNamespace(runner=lambda target: target)
    reference = SimpleNamespace(file=Path("reference"))
    context: Any = SimpleNamespace(
        processes=processes, target=SimpleNamespace(slug="cpu-avx2"), reference=reference
    )
    accepted: Any = tuple(
        SimpleNamespace(folder=Path(one.name), candidate=one) for one in (PLAIN, FREEZING)
    )
    return variants.time_variants(context, accepted, TRIED)


def test_the_fastest_variant_of_a_race_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    laps = tuple(RaceLap((1 / x,), (x,), (x,), (x,)) for x in (1.0, 2.0))
    rated = time_variants(monkeypatch, lambda *_: RaceResult(laps))
    assert choose(rated).name == "freezing"
    assert rated[2] == LATE


def test_a_race_that_fails_leaves_the_plain_package_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def crash(*_: object) -> RaceResult:
        raise StepCrashed(
            "the step race of cpu-avx2 ended", expected="a result", got="SIGSEGV", remedy="Look"
        )

    rated = time_variants(monkeypatch, crash)
    assert choose(rated) is PLAIN
    assert (rated[0], rated[2]) == (PLAIN, LATE)
    assert not rated[1].accepted
    (reason,) = rated[1].reasons
    assert "the race of the variants failed" in reason
    assert "SIGSEGV" in reason


class Steps:
    """Compiles and compares as the steps do, and keeps what it was asked."""

    def __init__(self, *, fresh_is_right: bool = True) -> None:
        self.labels: list[tuple[str, float]] = []
        self.fresh_is_right = fresh_is_right

    def compile_package(self, _: object, job: Any, label: str, limit_s: float) -> Any:
        assert job.fresh
        self.labels.append((label, limit_s))
        return compiled("")

    def compare(self, _: object, job: Any, *__: object) -> VerifyResult:
        is_right = job.fresh and self.fresh_is_right
        return VerifyResult((), () if is_right else ("outside",))


def compiled(reused: ReusedPart) -> CompileResult:
    library = PackageFile("cpu-avx2/model.so", Digest("sha256:" + "0" * 64), 8)
    return CompileResult((library,), cast(Any, None), 1.0, {}, reused=reused)


def check(
    monkeypatch: pytest.MonkeyPatch, steps: Steps, name: str, reused: ReusedPart
) -> variants.Variant:
    monkeypatch.setattr(variants, "compile_package", steps.compile_package)
    monkeypatch.setattr(variants, "compare", steps.compare)
    context: Any = SimpleNamespace(
        processes=SimpleNamespace(compiler=lambda target: target),
        target=parse_target("cpu-avx2"),
        reference=SimpleNamespace(file=Path("reference")),
        optimized=SimpleNamespace(outputs=()),
    )
    job = CompileJob(Path("program"), context.target, Path("package"), {})
    return variants.verify_variant(context, name, job, compiled(reused), 60.0)


@pytest.mark.parametrize(
    ("name", "label"), [("plain", "cpu-avx2"), ("freezing", "cpu-avx2 freezing")]
)
@pytest.mark.parametrize("is_right", [True, False])
def test_what_came_from_the_cache_and_is_wrong_is_compiled_anew_once(
    name: str, label: str, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(fresh_is_right=is_right)
    checked = check(monkeypatch, steps, name, "code")
    assert steps.labels == [(label, 60.0)]
    assert (checked.verified.accepted, checked.candidate.accepted) == (is_right, is_right)
    assert checked.compiled.reused == ""


def test_what_was_compiled_just_now_and_is_wrong_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = Steps()
    assert not check(monkeypatch, steps, "plain", "").verified.accepted
    assert steps.labels == []


def measured(changed: int | None, low: float, high: float) -> MeasuredMetric:
    return MeasuredMetric(
        "top-1", "logits", 200, 0.9, 0.9 - low, low, low, high, is_error=False, confidence=0.95,
        data="sha256:0", max_drop=0.005, enough=640, changed=changed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "then"),
    [
        (None, "int8-keep-10"),
        (measured(20, 0.01, 0.1), "int8-keep-10"),
        (measured(None, 0.0, 0.015), "int8-keep-10"),
        (measured(2, 0.0, 0.03), "int8-keep-10"),
        (measured(0, 0.0, 0.015), ""),
    ],
    ids=["a tolerance", "broken", "an area", "few that change", "few of which none changes"],
)
def test_less_int8_is_tried_unless_the_samples_are_too_few_for_any(
    metric: MeasuredMetric | None, then: str
) -> None:
    refused = Candidate("int8", accepted=False, metric=metric)
    assert variants.milder_than(refused) == then


def test_a_candidate_that_the_searchs_time_ended_is_no_crash_and_one_that_crashed_is() -> None:
    late: HandoffError = timeout_error("compile", 20)
    crash = StepCrashed("the step ended", expected="a result", got="SIGSEGV", remedy="Look")
    over, left = time.monotonic() - 1, time.monotonic() + 60
    wanted = Search(seconds=30)
    candidate = variants.explain_failure(late, wanted, over)
    assert candidate == "the search's 30 s were over before it was compiled"
    # Its own limit, or its memory, is another matter: there was time left.
    assert "took longer than it may" in variants.explain_failure(late, wanted, left)
    assert "SIGSEGV" in variants.explain_failure(crash, wanted, over)
