"""Localization of faults that are planted in the compiler, in a pass, and of none."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.fx
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import SOURCES_FILE
from handoff.artifacts.errors import StepCrashed
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.artifacts.record import from_plain, to_plain
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.localize import step as localize
from handoff.tasks.localize import trials
from handoff.tasks.localize.causes import _first_wrong
from handoff.tasks.localize.measure import judge, judge_case, worst_fault
from handoff.tasks.localize.messages import LocalizeJob, LocalizeResult
from handoff.tasks.localize.search import find_others
from handoff.tasks.localize.subgraph import computing_nodes, cut, record
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.extensions import digest_extension
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.optimize.passes.base import Pass
from handoff.tasks.verify import reference
from handoff.tasks.verify.messages import ReferenceJob
from handoff.tasks.verify.reference import ReferenceCase
from tests.limits import LIMIT_S
from tests.shared_tools import run_folder, share_built
from tests.tasks.deliveries import write_delivery
from tests.tasks.optimize.passes.exporting import export

FAULTS = "tests.tasks.localize.planted_faults"
PLANTED = f"{FAULTS}@{digest_extension(FAULTS)}"


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)


class Net(nn.Module):
    """Two linear layers `[N, 8]` to `[N, 4]`, and something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.between = between
        self.second = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Any:
        return self.second(self.between(self.first(x))).relu()


class SmallVariance(nn.Module):
    """A layer norm whose eps matters: what goes into it varies by little."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Any:
        return self.norm(x.relu() * 1e-3).exp()


class SineOfSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * x) + 1.0


class Job:
    """A localization of a small model that was taken in, optimized and run for reference."""

    def __init__(self, folder: Path, module: nn.Module, recipe: Recipe, scale: float = 1.0) -> None:
        example = {"x": torch.randn(6, 8) * scale}
        delivery = write_delivery(folder / "delivery", module.eval(), example)
        (delivery / SOURCES_FILE).write_text(json.dumps({"tanh": "models/net.py:12"}))
        staging = folder / "staging"
        take_in(IntakeJob(delivery, staging))
        optimized = optimize.run(OptimizeJob(staging, folder / "program", recipe))
        file = folder / "reference.pt"
        reference.run(ReferenceJob(staging, None, recipe.verify, file))
        share_built(folder / "builds")
        self.job = LocalizeJob(
            optimized.program, staging, file, native_cpu_target(), recipe.options, recipe,
            folder / "work", folder / "reproduction", shared=folder / "builds" / "compiler",
        )  # fmt: skip

    def run(self) -> LocalizeResult:
        """Return the answer, as it reaches a flow from a step process."""
        job = from_plain(LocalizeJob, json.loads(json.dumps(to_plain(self.job))))
        answer = json.dumps(to_plain(localize.run(job)))
        print(answer)
        return from_plain(LocalizeResult, json.loads(answer))


def faulty(folder: Path, module: nn.Module, options: dict[str, object] | None = None) -> Job:
    """Return the job of localizing what the planted faults do to a model."""
    recipe = Recipe(options=options or {}, verify=VerifyPlan(seeds=1), extensions=(PLANTED,))
    return Job(folder, module, recipe)


def require_line(found: LocalizeResult, folder: Path, *texts: str) -> None:
    """Check that the nodes' lines are those of module.py that hold `texts`."""
    lines = (folder / "staging" / "module.py").read_text().splitlines()
    assert len(found.nodes) == len(texts)
    for node, text in zip(found.nodes, texts, strict=True):
        number = next(i for i, line in enumerate(lines, 1) if text in line)
        assert node.module_line == f"module.py:{number}"
        assert node.module_text == lines[number - 1].strip()
        assert node.module_line in found.verdict


@pytest.mark.compile
@pytest.mark.long
def test_a_wrong_lowering_is_named_with_its_node_its_lines_and_a_script(tmp_path: Path) -> None:
    found = faulty(tmp_path, Net(torch.tanh)).run()
    assert found.cause == "compiler"
    require_line(found, tmp_path, "torch.tanh(")
    (node,) = found.nodes
    assert (node.target, node.source_line) == ("aten.tanh.default", "models/net.py:12")
    assert (found.subsystem, found.at) == ("lowerings", "tanh")
    assert found.rmse > 1e-3
    assert found.rmse_eager < 1e-6
    assert found.compiles <= 10
    assert found.is_complete
    assert found.script_repeats
    script = Path(found.script).read_text()
    for room in ("tasks", "artifacts", "infra", "flows"):
        assert f"import {room}" not in script
        assert f"from {room}" not in script
    # With torch's own compiler, alone, in a folder and an interpreter of its own.
    assert f"({FAULTS!r},)" in script
    Path(found.script).write_text(script.replace(f"({FAULTS!r},)", "()"))
    right = subprocess.run(
        [sys.executable, "-I", found.script],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert right.returncode == 0, right.stderr
    assert right.stdout.splitlines()[-1] == "the fault doesn't show"


class Lent:
    """A process for trials that goes on after the localization that it is lent to."""

    def __init__(self, process: StepProcess) -> None:
        self.run = process.run

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StepProcess]:
    """Start a process with the planted faults, which takes as long as two compilations."""
    plan = ProcessPlan(
        "trials",
        ("compile.step",),
        (PLANTED,),
        reads=(run_folder(),),
        writes=(tmp_path_factory.getbasetemp(),),
    )
    started = StepProcess(plan, tmp_path_factory.mktemp("process") / "trials.log")
    yield started
    started.close()


@pytest.fixture
def lent(process: StepProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lend that process to the localizations of a test."""
    monkeypatch.setattr(trials, "StepProcess", lambda _plan, _log: Lent(process))


@pytest.fixture
def unrepeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the script as it is written: two other tests run theirs, which takes 8 s."""
    monkeypatch.setattr(localize, "shows_fault", lambda _trials, _script: False)


@pytest.mark.compile
@pytest.mark.usefixtures("lent", "unrepeated")
@pytest.mark.long
def test_a_constant_that_a_decomposition_loses_is_named(tmp_path: Path) -> None:
    found = faulty(tmp_path, Net(SmallVariance())).run()
    assert found.cause == "compiler"
    require_line(found, tmp_path, "self.between.norm(")
    assert found.nodes[0].target == "aten.layer_norm.default"
    assert (found.subsystem, found.at) == ("decomposition", "aten.native_layer_norm.default")
    assert found.compiles <= 10
    assert found.verdict.endswith("repeat.py was written, and not seen to reproduce it.")


@pytest.mark.compile
@pytest.mark.usefixtures("lent")
@pytest.mark.long
def test_a_fault_of_an_option_is_named_with_the_option(tmp_path: Path) -> None:
    found = faulty(tmp_path, Net(torch.exp), {"freezing": True}).run()
    assert (found.cause, found.options) == ("option", ("freezing",))
    require_line(found, tmp_path, "self.first(")
    assert found.verdict.startswith("The package is right without the option freezing. linear (")
    assert found.compiles <= 10
    assert found.script_repeats


@pytest.mark.compile
@pytest.mark.usefixtures("lent", "unrepeated")
def test_a_wrong_rewriting_of_two_operators_is_named_with_both(tmp_path: Path) -> None:
    found = faulty(tmp_path, SineOfSquare()).run()
    assert found.cause == "compiler"
    require_line(found, tmp_path, "mul = ", "torch.sin(")
    assert "the fault goes away" in found.notes[0]
    assert found.subsystem == "post_grad_passes"
    assert found.compiles <= 10


@pytest.mark.compile
@pytest.mark.usefixtures("lent")
def test_a_model_that_is_compiled_rightly_is_not_reproduced(tmp_path: Path) -> None:
    found = faulty(tmp_path, Net(torch.exp)).run()
    assert (found.cause, found.compiles, found.nodes, found.script) == (
        "not reproduced", 1, (), "",
    )  # fmt: skip
    assert found.verdict.startswith("Not reproduced")


class CapAtFive(Pass[torch.fx.GraphModule]):
    """A pass that is right on small inputs only."""

    name = "cap-at-five"
    level = "fx"

    def call(self, program: torch.fx.GraphModule) -> bool:
        for node in program.graph.find_nodes(op="call_function", target=torch.relu):
            with program.graph.inserting_after(node):
                capped = program.graph.call_function(torch.clamp, (node,), {"max": 5.0})
            node.replace_all_uses_with(capped, lambda user, capped=capped: user is not capped)
        return True


def test_a_pass_that_is_wrong_beyond_what_it_was_checked_on_is_named_without_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PASSES, "cap-at-five", CapAtFive)
    recipe = Recipe(passes=(PassChoice("cap-at-five"),), verify=VerifyPlan(seeds=1))
    found = Job(tmp_path, Net(torch.relu), recipe, scale=100.0).run()
    assert (found.cause, found.at, found.compiles) == ("program", "cap-at-five", 0)
    assert found.case == "batch=64 large"
    assert "The pass cap-at-five changes what the model computes" in found.verdict


def test_without_a_budget_nothing_is_claimed(tmp_path: Path) -> None:
    prepared = Job(tmp_path, Net(torch.exp), Recipe(verify=VerifyPlan(seeds=1)))
    prepared.job = from_plain(LocalizeJob, {**to_plain(prepared.job), "compiles": 0})
    found = prepared.run()
    assert not found.is_complete
    assert found.verdict.startswith("Nothing was found")


@pytest.mark.parametrize(
    ("guilty", "named"),
    [({"a"}, ("a",)), ({"a", "b"}, ("a", "b", "c")), (set(), ())],
    ids=["one of them", "two, each by itself", "none"],
)
def test_of_several_options_those_are_named_without_which_it_is_right(
    guilty: set[str], named: tuple[str, ...]
) -> None:
    def is_right(options: dict[str, object]) -> bool:
        return bool(guilty) and not guilty & set(options)

    given = SimpleNamespace(
        job=SimpleNamespace(options={"a": True, "b": True, "c": True}), notes=[]
    )
    found = localize._blame_options(cast(trials.Trials, given), is_right)
    assert found == named
    assert len(given.notes) == bool(guilty)


class Crashing:
    """A process for trials whose every job takes it down."""

    def __init__(self, plan: ProcessPlan, log: Path) -> None:
        self.plan, self.log = plan, log

    def run(self, job: object, *, limit_s: float) -> object:
        raise StepCrashed(
            "the step trial ended without a result", expected="a result or a refusal",
            got="signal SIGSEGV; its last output: nothing printed", remedy=f"Read {self.log}",
        )  # fmt: skip

    def close(self) -> None:
        pass


def test_a_package_that_takes_its_process_down_is_a_crash_and_no_fault_in_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "StepProcess", Crashing)
    found = Job(tmp_path, Net(torch.exp), Recipe(verify=VerifyPlan(seeds=1))).run()
    assert (found.cause, found.nodes, found.compiles) == ("crash", (), 1)
    assert "SIGSEGV" in found.verdict


class Hanging(Crashing):
    """A process that is ended when the time of its job is over."""

    def run(self, job: object, *, limit_s: float) -> object:
        time.sleep(max(0.0, limit_s))
        return super().run(job, limit_s=limit_s)


def test_a_trial_that_the_budget_ended_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "StepProcess", Hanging)
    prepared = Job(tmp_path, Net(torch.exp), Recipe(verify=VerifyPlan(seeds=1)))
    prepared.job = replace(prepared.job, seconds=2.0)
    found = prepared.run()
    assert (found.cause, found.is_complete) == ("not reproduced", False)
    assert found.verdict.startswith("Nothing was found: the budget was spent before the program")
    assert found.verdict.endswith("ended with its budget of at most 10 compiles and 2 s.")
    assert found.seconds < 10.0


@pytest.mark.compile
def test_a_tolerance_without_room_for_eagers_own_rounding_is_reported_and_no_node_blamed(
    tmp_path: Path,
) -> None:
    exact = Tolerance(atol=0.0, rtol=0.0, rmse_factor=0.0, rmse_floor=0.0)
    recipe = Recipe(tolerance={"float32": exact}, verify=VerifyPlan(seeds=1))
    found = Job(tmp_path, Net(SmallVariance()), recipe).run()
    assert (found.cause, found.nodes, found.compiles) == ("rounding", (), 1)
    assert found.verdict.startswith("No part of it is wrong: on ")
    assert 0.0 < found.rmse < 2.0 * found.rmse_eager


def test_a_fault_is_what_is_further_off_than_eager_itself_or_in_a_single_element() -> None:
    exact = torch.linspace(1.0, 2.0, 10_000, dtype=torch.float64)
    eager = exact.float()
    rounded = eager + 1e-7 * torch.randn(10_000).sign()
    single = eager.clone()
    single[3] += 1e-4
    nan = eager.clone()
    nan[5] = torch.nan
    tight = Recipe(tolerance={"float32": Tolerance(0.0, 0.0, 0.0, 0.0)})
    for outputs, is_fault in ((eager * 1.0, False), (rounded, True), (single, True), (nan, True)):
        judged = judge("", (outputs,), (eager,), (exact,), tight)
        assert (worst_fault(judged) is not None) is is_fault


class TenthsOnly(nn.Module):
    """What is left of `x` by tenths, of which eager is far from float64 at every multiple."""

    def forward(self, x: Tensor) -> Tensor:
        return x % 0.1


def test_eagers_error_at_a_step_that_rounding_does_not_cross_excuses_no_package() -> None:
    inputs = (torch.arange(1.0, 241.0).reshape(10, 24) / 10,)
    model = TenthsOnly()
    eager, exact = model(*inputs), model(inputs[0].double())
    case = ReferenceCase("tenths", inputs, (eager,), (exact,))
    flipped = eager.roll(1, 1).where((eager - exact).abs() > 0.05, eager)
    rounded = eager * (1 + 1e-7)
    tight = Recipe(tolerance={"float32": Tolerance(0.0, 0.0, 0.0, 0.0)})
    for package, is_fault in ((flipped, True), (rounded, False)):
        one = judge_case(case, (package,), tight, model)[0]
        assert one.is_wrong
        assert one.deviation.rmse_package < 2 * one.deviation.rmse_eager
        assert (worst_fault([one]) is not None) is is_fault


def test_a_decision_that_was_refused_is_never_rounding() -> None:
    inputs = (torch.arange(1.0, 241.0).reshape(10, 24) / 10,)
    eager, exact = (inputs[0] // 0.1).long(), (inputs[0].double() // 0.1).long()
    package = eager.clone()
    package[0, 20] += 1
    (one,) = judge("", (package,), (eager,), (exact,), Recipe())
    assert one.deviation.rmse_eager > 0.0
    assert worst_fault([one]) is one


class Chain(nn.Module):
    """Four operators, a package of which may be wrong in two."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.exp().tanh() + x).sigmoid()


def test_what_is_wrong_by_its_own_inputs_is_distinguished_from_what_follows_from_it() -> None:
    program = export(Chain(), torch.randn(6, 8))
    inputs = (torch.randn(3, 8),)
    values = record(program, inputs)
    returned = {"exp": inputs[0].exp(), "tanh": inputs[0].exp().tanh() * 1.01}
    returned["add"] = returned["tanh"] + inputs[0]
    returned["sigmoid"] = returned["add"].sigmoid() * 1.5
    nodes = computing_nodes(program)
    found = find_others(program, values, returned, nodes, recipe=Recipe(), limit=10.0)
    assert [node.name for node in found] == ["sigmoid", "tanh"]


class Parts(nn.Module):
    """Results of several parts, and a size that is computed with."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.split(4, 1)
        return torch.cat([right.exp(), left]).view(2 * x.shape[0], 4) * 2.0


def test_a_part_of_a_program_computes_what_it_does_in_the_program() -> None:
    program = export(Parts(), torch.randn(6, 8))
    inputs = (torch.randn(3, 8),)
    values = record(program, inputs)
    for node in computing_nodes(program):
        if not isinstance(node.meta["val"], (torch.Tensor, tuple, list)):
            continue
        part = cut(program, values, [node])
        eager, float64 = part.run()
        for name, value, exact in zip(part.outputs, eager, float64, strict=True):
            torch.testing.assert_close(value, cast(Tensor, values[name]), rtol=0, atol=0)
            torch.testing.assert_close(exact, value.double(), rtol=1e-5, atol=1e-6)
        assert part.export().graph_signature.user_outputs


class Emptied(nn.Module):
    """A window that takes the newest in, and is emptied afterwards."""

    def forward(self, window: Tensor, newest: Tensor) -> Any:
        filled = torch.slice_scatter(window, newest, 1, 6, 8)
        window.zero_()
        return filled


def test_what_only_writes_to_an_input_is_a_part_of_the_program_and_no_output_of_it() -> None:
    inputs = (torch.ones(3, 8), torch.full((3, 2), 2.0))
    program = export(Emptied(), *inputs)
    filled, emptied = computing_nodes(program)
    part = cut(program, record(program, inputs), [filled, emptied])
    assert part.outputs == (filled.name,)
    assert "zero_" in part.module.code
    assert not cut(program, record(program, inputs), [emptied]).outputs


@pytest.mark.parametrize(("count", "wrong"), [(1, 0), (2, 0), (2, 1), (7, 0), (7, 3), (7, 6)])
def test_the_first_wrong_use_is_found(count: int, wrong: int) -> None:
    assert _first_wrong(count, lambda kept: kept <= wrong) == wrong
