"""Public reports and hard but right models: each is what it says, and a few are judged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.studies.faults.cases import Case, Judge, Report
from tests.studies.faults.confirming import confirm
from tests.studies.faults.hard import HARD, HardCase
from tests.studies.faults.reports.judging import REPORTS, ReportRow

CASES: tuple[Case, ...] = (*REPORTS, *HARD)


def case_named(name: str) -> Case:
    (found,) = [case for case in CASES if case.name == name]
    return found


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    made = Judge(tmp_path_factory.mktemp("cases"), localizes=False)
    yield made
    made.close()


def test_cases_have_names_of_their_own() -> None:
    slugs = [case.slug.lower() for case in CASES]
    assert len(slugs) == len(set(slugs))


def test_there_are_enough_hard_models() -> None:
    assert len(HARD) >= 24


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.slug)
def test_what_a_case_shows_on_can_be_served(case: Case) -> None:
    example = case.inputs()
    torch.manual_seed(2)
    for name, shown in case.shows().items():
        given = example[name]
        assert shown.dtype == given.dtype
        assert shown.shape == given.shape
        # Of whole numbers the example's own ends are the contract's where none are declared.
        whole = not given.is_floating_point()
        own = (float(given.min()), float(given.max())) if whole else (-torch.inf, torch.inf)
        low, high = case.ranges.get(name, own)
        for tensor in (given, shown):
            # NaN is served where nothing is declared.
            numbers = tensor if name in case.ranges else tensor[~tensor.isnan()]
            assert low <= float(numbers.min())
            assert float(numbers.max()) <= high


@pytest.mark.parametrize(
    "report", [one for one in REPORTS if one.must == "refused"], ids=lambda one: one.slug
)
def test_a_wrong_pattern_says_who_is_to_blame_and_who_sees_it(report: Report) -> None:
    assert report.operator.startswith("aten.")
    assert report.question


@pytest.mark.compile
@pytest.mark.long
def test_a_report_is_wrong_by_torch_alone_and_right_where_the_range_excludes_it() -> None:
    assert confirm(case_named("largest of signed bytes")).wrong
    assert not confirm(case_named("largest of signed bytes that are never negative")).wrong


@pytest.mark.compile
def test_a_report_that_shows_on_any_draw_is_refused_and_its_right_form_released(
    judge: Judge,
) -> None:
    wrong = judge.judge(case_named("half mantissas with exponents of float32"))
    assert wrong.refused
    assert wrong.before == ""
    right = judge.judge(case_named("mantissas with whole exponents"))
    assert not right.refused, right.summary


def test_what_is_refused_before_it_was_compared_was_not_seen() -> None:
    report = next(one for one in REPORTS if one.must == "refused")
    empty = Judge.refusal(report, "deliver", "the model can't be captured")
    assert not ReportRow(report, empty, localizes=False).good


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.slug)
def test_a_case_is_what_it_says_by_torch_alone(case: Case) -> None:
    wrong = isinstance(case, Report) and case.must == "refused"
    assert bool(confirm(case).wrong) == wrong


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.slug)
def test_a_report_becomes_what_it_must(report: Report, judge: Judge) -> None:
    row = ReportRow(report, judge.judge(report), localizes=False)
    assert row.good, row.judged.summary


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.parametrize("case", HARD, ids=lambda case: case.slug)
def test_a_hard_model_is_released(case: HardCase, judge: Judge) -> None:
    judged = judge.judge(case)
    assert not judged.refused, judged.summary
