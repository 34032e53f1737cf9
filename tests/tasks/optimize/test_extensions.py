"""Extensions: a graph may call, and a recipe apply, what was looked at; and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.metric import Metric
from handoff.artifacts.errors import BlessingRefused, DeliveryUnreadable, UsageProblem
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.deliver.messages import DeliverJob, DeliverResult
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.optimize import passes
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.extensions import digest_extension, load_extension
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.verify.metric.samples import EXTENSION_METRICS, sample_values
from tests.tasks.deliveries import write_delivery

LIBRARY = "tests.tasks.optimize.scaling_operators"
PINNED = f"{LIBRARY}@{digest_extension(LIBRARY)}"
FACTORY = "tests.tasks.optimize.test_extensions:build"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.handoff_test.scale(self.layer(x), 3.0)  # type: ignore[no-any-return]


def build() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model and its example, as a training team's factory does."""
    import tests.tasks.optimize.scaling_operators  # noqa: F401 - it registers the operator

    return Scaled().eval(), (torch.randn(6, 4),)


@pytest.fixture(scope="module")
def delivery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("operators") / "scaled"
    process = StepProcess(ProcessPlan("deliver", sees="whole"), folder.parent / "deliver.log")
    try:
        result = process.run(DeliverJob(FACTORY, Path.cwd(), folder, "scaled"), limit_s=120)
    finally:
        process.close()
    assert isinstance(result, DeliverResult)
    (note,) = [one for one in result.notes if "the recipe has to name their extension" in one]
    assert "handoff_test" in note
    return folder


def inspect(delivery: Path, tmp_path: Path, *extensions: str) -> object:
    plan = ProcessPlan(
        "inspect", ("intake.step",), extensions=extensions, writes=(delivery.parent, tmp_path)
    )
    process = StepProcess(plan, tmp_path / "log")
    try:
        taken = process.run(IntakeJob(delivery, tmp_path / "staging"), limit_s=120)
        assert isinstance(taken, IntakeResult)
        return process.run(TraceabilityJob(tmp_path / "staging"), limit_s=120)
    finally:
        process.close()


def test_an_operator_of_a_library_that_the_recipe_names_is_run(
    delivery: Path, tmp_path: Path
) -> None:
    assert inspect(delivery, tmp_path, PINNED).verdict == "sound"  # type: ignore[attr-defined]


def test_without_its_library_an_operator_is_refused_by_name_with_the_way_out(
    delivery: Path, tmp_path: Path
) -> None:
    with pytest.raises(DeliveryUnreadable, match=r"torch\.ops\.handoff_test\.scale") as caught:
        inspect(delivery, tmp_path)
    assert "name its extension in the recipe" in caught.value.remedy


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a module that can be imported by the name `team_extension`."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("handoff.tasks.optimize.passes.PASSES", dict(PASSES))
    return tmp_path / "team_extension.py"


def pinned(name: str) -> str:
    return f"{name}@{digest_extension(name)}"


@pytest.mark.parametrize(
    ("code", "match"),
    [
        ("x = 1", "brings nothing"),
        ("import no_such_module", "can't be imported.*no_such_module"),
        ("PASSES = (int,)", "brings something that is no pass: .* got <class 'int'>"),
        (
            "from handoff.tasks.optimize.passes import FoldConstants\n"
            "class Mine(FoldConstants):\n    pass\nPASSES = (Mine,)",
            "under a name that is taken: .* got fold-constants",
        ),
    ],
)
def test_an_extension_that_is_wrong_is_reported(
    module: Path, monkeypatch: pytest.MonkeyPatch, code: str, match: str
) -> None:
    module.write_text(code)
    monkeypatch.delitem(sys.modules, "team_extension", raising=False)
    with pytest.raises(UsageProblem, match=match):
        load_extension(pinned("team_extension"))


def test_an_extension_brings_a_metric(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module.write_text("METRICS = {'first': lambda output, labels: (output[:, 0] == labels) * 1.0}")
    monkeypatch.delitem(sys.modules, "team_extension", raising=False)
    load_extension(pinned("team_extension"))
    values = sample_values(Metric("own:first"), torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]))
    assert values.tolist() == [1.0, 0.0]
    monkeypatch.delitem(sys.modules, "team_extension")
    with pytest.raises(UsageProblem, match=r"a metric under a name that is taken: .* got first"):
        load_extension(pinned("team_extension"))
    del EXTENSION_METRICS["first"]


def test_code_that_nobody_has_looked_at_is_not_imported(module: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    module.write_text(f"open({str(ran)!r}, 'w')\nPASSES = ()")
    digest = digest_extension("team_extension")
    with pytest.raises(UsageProblem, match=f"team_extension@{digest}, if you trust it"):
        load_extension("team_extension")
    module.write_text(module.read_text() + "\n# changed since")
    with pytest.raises(UsageProblem, match="is not the code that the recipe names"):
        load_extension(f"team_extension@{digest}")
    assert not ran.exists()


def test_everything_in_a_package_is_its_code_but_what_python_has_compiled(
    module: Path, tmp_path: Path
) -> None:
    package = tmp_path / "team_extension"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("PASSES = ()")
    kernel = package / "kernel.cpp"
    kernel.write_text("// one")
    before = digest_extension("team_extension")
    (package / "__pycache__" / "left.pyc").write_bytes(b"compiled")
    assert digest_extension("team_extension") == before
    kernel.write_text("// two")
    assert digest_extension("team_extension") != before


def test_a_module_that_is_not_there_is_reported(tmp_path: Path) -> None:
    for attempt in (load_extension, lambda name: inspect(tmp_path, tmp_path, name)):
        with pytest.raises(UsageProblem, match="no_such_module can't be imported"):
            attempt("no_such_module@sha256:" + "0" * 64)


_PASS = """
import torch
from handoff.tasks.optimize.passes.base import Pass

class Halve(Pass):
    name = "team-halve-twice"
    level = "aten"

    def call(self, program):
        calls = [n for n in program.graph.nodes if n.target is torch.ops.aten.mul.Tensor]
        for node in calls:
            node.kwargs, node.args = {}, (node.args[0], node.args[1] * FACTOR)
        return bool(calls)

FACTOR = 1.0
PASSES = (Halve,)
"""


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2.0


def test_a_teams_own_pass_is_applied_and_checked_like_any_other(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.write_text(_PASS)
    delivery = write_delivery(tmp_path / "delivery", Doubled(), {"x": torch.randn(6, 4)})
    recipe = Recipe(passes=(PassChoice("team-halve-twice"),))

    plan = ProcessPlan("graph", extensions=(pinned("team_extension"),), sees="whole",
                       environment={"PYTHONPATH": str(tmp_path)})  # fmt: skip
    process = StepProcess(plan, tmp_path / "right.log")
    try:
        job = OptimizeJob(delivery, tmp_path / "right", recipe)
        assert process.run(job, limit_s=120).effects[0].modified
    finally:
        process.close()
    module.write_text(_PASS.replace("FACTOR = 1.0", "FACTOR = 1.01"))
    monkeypatch.delitem(sys.modules, "team_extension", raising=False)
    # Here, which is what the process would do.
    monkeypatch.setattr(optimize, "PASSES", passes.PASSES)
    load_extension(pinned("team_extension"))
    with pytest.raises(BlessingRefused, match="the pass team-halve-twice changes what the model"):
        optimize.run(OptimizeJob(delivery, tmp_path / "wrong", recipe))


def test_the_recipe_names_extensions_by_module_and_digest(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(f'extensions = ["{PINNED}"]\n')
    assert read_recipe(tmp_path / "recipe.toml").extensions == (PINNED,)
    (tmp_path / "recipe.toml").write_text('extensions = ["rm -rf; x"]\n')
    with pytest.raises(UsageProblem, match="expected MODULE@sha256:DIGEST under extensions"):
        read_recipe(tmp_path / "recipe.toml")
