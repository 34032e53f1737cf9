"""Localize: where and why a refused package's numbers are wrong, within a budget of compiles.

`torch.export` notes in `meta["from_node"]` which node of the module that it captured each ATen node
came from, and that survives the program's file; so do the decompositions and passes that copy
`meta`. The delivered module is read again, since only its own nodes know their lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.artifacts.delivery.contract import MODULE_FILE
from handoff.tasks.intake.loading import LoadedDelivery, read_delivery
from handoff.tasks.localize.causes import find_cause, find_pass
from handoff.tasks.localize.measure import JudgedOutput, judge_case, worst, worst_fault
from handoff.tasks.localize.messages import FaultyNode, LocalizeJob, LocalizeResult
from handoff.tasks.localize.script import shows_fault, write_script
from handoff.tasks.localize.search import Search
from handoff.tasks.localize.trials import BudgetSpent, Trials
from handoff.tasks.localize.verdict import format_verdict
from handoff.tasks.optimize.programs import load_program
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.reference import ReferenceCase, load_cases


class Origins:
    """Finds where the nodes of a program come from."""

    def __init__(self, delivery: LoadedDelivery, staging: Path) -> None:
        """Take the delivery that the program was made of."""
        self._delivered: Mapping[str, torch.fx.Node] = {
            node.name: node for node in delivery.module.graph.nodes
        }
        self._lines = (staging / MODULE_FILE).read_text(encoding="utf-8").splitlines()

    def of(self, node: torch.fx.Node) -> FaultyNode:
        """Return the node with its lines; without, where a pass has made it of nothing known."""
        without_lines = FaultyNode(node.name, str(node.target))
        for name, target in _sources(node.meta.get("from_node", ())):
            delivered = self._delivered.get(name)
            # A pass may have made another node of the same name.
            if delivered is None or _strip_address(str(delivered.target)) != _strip_address(target):
                continue
            line = delivered.meta.get("module_line", 0)
            if not 1 <= line <= len(self._lines):
                continue
            return FaultyNode(
                node.name, str(node.target), f"{MODULE_FILE}:{line}",
                self._lines[line - 1].strip(), delivered.meta.get("source_line", ""),
            )  # fmt: skip
        return without_lines


def _sources(chain: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - torch's NodeSource
    """Give name and target of all that a node came from, the oldest first."""
    for source in chain:
        yield from _sources(source.from_node)
        yield source.name, source.target


def _strip_address(target: str) -> str:
    # A function's repr ends with its address, which each process has another of.
    return target.partition(" at 0x")[0]


# Compiles that the search leaves for finding the cause, and for running the script.
_COMPILES_FOR_CAUSE = 2
_COMPILES_FOR_SCRIPT = 1
_NO_ONE_ALONE = "to leave out one of the options alone is not enough"


def run(job: LocalizeJob) -> LocalizeResult:
    """Compile the program again, and find out what makes it wrong: an option, a node, a lowering.

    Nothing is believed that was not seen: the package is compiled again and has to be wrong, an
    option is named when the package is right without it, a node when it is wrong compiled alone on
    right inputs, a part of the compiler when the node is right without that part.
    """
    began = time.monotonic()
    cases = [case for case in load_cases(job.reference) if not job.cases or case.name in job.cases]
    program = load_program(job.program)
    wrong = _find_wrong_case(job, program, cases)
    if wrong is not None:
        result = _blame_program(job, *wrong)
    else:
        with Trials(job, began) as trials:
            try:
                result = _localize(trials, program, cases)
            except BudgetSpent:
                trials.notes.append("the budget was spent before the program was seen to be wrong")
                result = LocalizeResult("", "not reproduced", is_complete=False)
            result = replace(result, compiles=trials.made, notes=tuple(trials.notes))
    result = replace(result, seconds=time.monotonic() - began)
    return replace(result, verdict=format_verdict(job, result))


def _find_wrong_case(
    job: LocalizeJob, program: ExportedProgram, cases: list[ReferenceCase]
) -> tuple[ReferenceCase, JudgedOutput] | None:
    """Return a case in which the program is wrong without any compiler, or None."""
    module = program.module(check_guards=False)
    for case in cases:
        with torch.no_grad():
            outputs = flatten_tensors(module(*[tensor.clone() for tensor in case.inputs]))
        wrong = worst_fault(judge_case(case, outputs, job.recipe, module))
        if wrong is not None:
            return case, wrong
    return None


def _blame_program(job: LocalizeJob, case: ReferenceCase, judged: JudgedOutput) -> LocalizeResult:
    name, reason = find_pass(job, read_delivery(job.staging), case.inputs)
    return LocalizeResult(
        "", "program", case.name, at=name, rmse=judged.relative,
        rmse_eager=judged.relative_eager, notes=(reason,) if reason else (),
    )  # fmt: skip


def _localize(
    trials: Trials, program: ExportedProgram, cases: list[ReferenceCase]
) -> LocalizeResult:
    job = trials.job
    if job.compiles < 1 or not cases:
        trials.notes.append("there was nothing to compare, or no budget to compile with")
        return LocalizeResult("", "not reproduced", is_complete=False)
    outcome = trials.attempt(job.program, [case.inputs for case in cases], job.options)
    if outcome.failure:
        trials.notes.append(outcome.failure)
        return LocalizeResult("", "crash")
    module = program.module(check_guards=False)
    judged_cases = [
        (case, judge_case(case, outputs, job.recipe, module))
        for case, outputs in zip(cases, outcome.outputs, strict=True)
    ]
    wrong = _smallest(judged_cases, worst_fault)
    if wrong is None:
        return _result_without_fault(_smallest(judged_cases, worst))
    case, judged = wrong
    result = LocalizeResult("", "compiler", case.name)
    result = replace(result, rmse=judged.relative, rmse_eager=judged.relative_eager)
    search = Search(trials, program, case.inputs, judged)
    known_result = search.try_known(job.known)

    def is_right(options: dict[str, object]) -> bool:
        if known_result is None:
            return _is_right(trials, case, options, module)
        # What is wrong alone answers for the program, and compiles sooner.
        again = trials.compile_part(known_result.part, options=options)
        return not again.failure and again.worst is None

    options = _blame_options(trials, is_right)
    if options:
        result = replace(result, cause="option", options=options)
    return _blame_nodes(trials, search, result)


def _result_without_fault(outside: tuple[ReferenceCase, JudgedOutput] | None) -> LocalizeResult:
    """Return the answer where nothing is off by more than eager is, or all is within tolerance."""
    if outside is None:
        return LocalizeResult("", "not reproduced")
    case, judged = outside
    return LocalizeResult(
        "", "rounding", case.name, rmse=judged.relative, rmse_eager=judged.relative_eager
    )


def _smallest(
    judged_cases: Sequence[tuple[ReferenceCase, Sequence[JudgedOutput]]],
    choose: Callable[[Sequence[JudgedOutput]], JudgedOutput | None],
) -> tuple[ReferenceCase, JudgedOutput] | None:
    """Return the smallest case that is wrong; one whose sizes are not 1 if there is one.

    A size of one would be fixed in what is compiled of the program's parts. `choose` says which of
    a case's outputs is wrong.
    """
    candidates = [
        (case, wrong)
        for case, judged in judged_cases
        for wrong in [choose(judged)]
        if wrong is not None
    ]

    def cost(candidate: tuple[ReferenceCase, JudgedOutput]) -> tuple[bool, int]:
        inputs = candidate[0].inputs
        return any(1 in t.shape for t in inputs), sum(t.numel() for t in inputs)

    return min(candidates, key=cost, default=None)


def _blame_options(
    trials: Trials, is_right: Callable[[dict[str, object]], bool]
) -> tuple[str, ...]:
    """Return the options without which the package is right; none where it is wrong anyway."""
    options = trials.job.options
    try:
        if not options or not is_right({}):
            return ()
        alone = [
            name for name in (options if len(options) > 1 else ())
            if is_right({k: v for k, v in options.items() if k != name})
        ]  # fmt: skip
    except BudgetSpent:
        trials.notes.append("the budget was spent before the options were left out one by one")
        return ()
    if len(options) > 1:
        each = ", ".join(alone)
        trials.notes.append(f"it is enough to leave out one of {each}" if alone else _NO_ONE_ALONE)
    return tuple(alone or options)


def _is_right(
    trials: Trials, case: ReferenceCase, options: dict[str, object], module: Callable[..., Any]
) -> bool:
    outcome = trials.attempt(trials.job.program, [case.inputs], options)
    if outcome.failure:
        trials.notes.append(outcome.failure)
        return False
    return worst_fault(judge_case(case, outcome.outputs[0], trials.job.recipe, module)) is None


def _blame_nodes(trials: Trials, search: Search, result: LocalizeResult) -> LocalizeResult:
    """Add the smallest part that is wrong, what of the compiler makes it so, and the script."""
    job = trials.job
    trials.reserved = min(_COMPILES_FOR_CAUSE + _COMPILES_FOR_SCRIPT, trials.left // 2)
    part_result = search.find()
    if part_result is None or part_result.worst is None:
        return replace(result, is_complete=search.is_complete)
    trials.reserved = min(_COMPILES_FOR_SCRIPT, trials.reserved)
    cause = find_cause(trials, part_result, is_option=result.cause == "option")
    trials.reserved = 0
    origins = Origins(read_delivery(job.staging), job.staging)
    result = replace(
        result,
        nodes=tuple(origins.of(node) for node in part_result.part.nodes),
        others=tuple(origins.of(node) for node in search.others),
        rmse=part_result.worst.relative,
        rmse_eager=part_result.worst.relative_eager,
        is_complete=search.is_complete,
        subsystem=cause.subsystem if cause else "",
        at=cause.at if cause else "",
    )
    script = write_script(job, part_result.part, result)
    if not script:
        return result
    return replace(result, script=str(script), script_repeats=shows_fault(trials, script))
