"""Sizes that are known only when the model runs: masked edges, nonzero, unique, item()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.fx
from torch import Tensor, nn
from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.choices import DEFAULT_PASSES, PassChoice
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.passes import PASSES
from handoff.tasks.optimize.passes.base import Pass
from handoff.tasks.optimize.passes.common_subexpressions import CommonSubexpressions
from handoff.tasks.optimize.passes.fold_constants import FoldConstants
from handoff.tasks.release.processes import Processes
from handoff.tasks.verify.messages import VerifyJob
from tests.limits import LIMIT_S
from tests.shared_tools import share_built
from tests.tasks.optimize.optimized_net import run
from tests.tasks.optimize.passes.exporting import apply, count

_ATEN = torch.ops.aten
NODES = 12
X = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(NODES, (2, 40), generator=torch.Generator().manual_seed(1))


class GraphConvolutions(nn.Module):
    """Two layers of Kipf and Welling's: each drops the self loops that are there and adds all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def convolve(self, layer: nn.Module, x: Tensor, edges: Tensor) -> Tensor:
        loops = torch.arange(NODES).unsqueeze(0).repeat(2, 1)
        edges = torch.cat([edges[:, edges[0] != edges[1]], loops], 1)
        source, sink = edges[0], edges[1]
        degree = torch.zeros(NODES).scatter_add(0, sink, torch.ones(edges.size(1)))
        weights = degree.pow(-0.5)[source] * degree.pow(-0.5)[sink]
        messages = layer(x)[source] * weights[:, None]
        sinks = sink[:, None].expand_as(messages)
        return torch.zeros(NODES, messages.size(1)).scatter_add(0, sinks, messages)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = self.convolve(self.first, x, edges).relu()
        return torch.log_softmax(self.convolve(self.second, hidden, edges), 1)


class PositiveRows(nn.Module):
    """As many rows as are positive, which is another number each time."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x * 2.0
        return rows[rows.sum(1) > 0.0]


@pytest.mark.compile
@pytest.mark.parametrize(
    ("module", "inputs"),
    [(GraphConvolutions(), (X, EDGES)), pytest.param(PositiveRows(), (X,), marks=pytest.mark.long)],
)
def test_a_model_with_sizes_that_data_decide_is_released(
    module: nn.Module, inputs: tuple[Tensor, ...], tmp_path: Path
) -> None:
    # The edges are as many as in the example; which are self loops is drawn.
    dynamic: Any = {} if len(inputs) == 2 else {"x": {0: "batch"}}
    deliver(
        module.eval(), inputs, tmp_path / "toy", name="toy", dynamic=dynamic, batch_invariant=False
    )
    target, recipe = native_cpu_target(), Recipe(verify=VerifyPlan(seeds=1))
    share_built(tmp_path / "builds")
    workspace = tmp_path / "builds" / "workspace"
    with Processes(workspace, recipe, delivery=tmp_path / "toy") as processes:
        processes.graph.run(IntakeJob(tmp_path / "toy", processes.jobs.staging), limit_s=LIMIT_S)
        optimized = processes.graph.run(processes.jobs.optimize(), limit_s=LIMIT_S)
        processes.tools(target).result(LIMIT_S)
        compiling = processes.jobs.compile(optimized, target)
        compiled = processes.compiler(target).run(compiling, limit_s=LIMIT_S)
        referring = processes.jobs.reference(optimized)
        reference = processes.runner().run(referring, limit_s=LIMIT_S)
        job = VerifyJob(
            processes.jobs.package(target), reference.file, recipe, compiled.library.digest
        )
        verified = processes.runner().run(job, limit_s=LIMIT_S)
    assert verified.accepted, verified.reasons
    assert not any(effect.left_out for effect in optimized.effects)


class TwoMasks(nn.Module):
    """Everything twice: a mask's sum may be shared, what has the size that it decides may not."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x[x.sum(1) > 0.0], x[x.sum(1) > 0.0]
        return left.sin().sum(0) + right.sin().sum(0) + x.exp().sum(0) + x.exp().sum(0)


class TwoOf(nn.Module):
    """One call twice, whose result's size is its own."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x).sum() + self.call(x).sum() + x


def test_equal_masks_are_not_merged_and_what_is_beside_them_is() -> None:
    modified, program = apply(CommonSubexpressions({}), TwoMasks(), X)
    assert modified
    assert count(program, _ATEN.index.Tensor) == 2
    assert count(program, _ATEN.gt.Scalar) == 2
    assert count(program, _ATEN.exp.default) == 1


@pytest.mark.parametrize(
    "call",
    [
        torch.nonzero,
        torch.unique,
        lambda x: torch.masked_select(x, x > 0.0),
        lambda x: torch.repeat_interleave(x, x[:, 0].abs().long(), dim=0),
        lambda x: x.abs().sum().long().item() * x,
    ],
    ids=["nonzero", "unique", "masked select", "repeat", "item"],
)
def test_a_call_that_decides_its_results_size_is_made_as_often_as_before(
    call: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    _, program = apply(CommonSubexpressions({}), TwoOf(call), X)
    torch.export.save(program, tmp_path / "program.pt2")
    read = torch.export.load(tmp_path / "program.pt2")
    with torch.no_grad():
        torch.testing.assert_close(read.module()(X), TwoOf(call)(X))


class ChosenColumns(nn.Module):
    """Columns that a fixed mask names; what is made of numbers alone, beside."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.arange(8) % 3 == 0)
        self.gate = nn.Parameter(torch.linspace(0.0, 1.0, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.sigmoid(self.gate))[:, self.mask].sum(1)


def test_a_size_that_weights_decide_is_not_folded_and_other_constants_are(tmp_path: Path) -> None:
    modified, program = apply(FoldConstants({}), ChosenColumns(), X)
    assert modified
    assert count(program, _ATEN.sigmoid.default) == 0
    torch.export.save(program, tmp_path / "program.pt2")
    torch.export.load(tmp_path / "program.pt2")


class MergingAll(Pass[ExportedProgram]):
    """Plants what a pass must not do: one mask's result in the place of the other's."""

    name: ClassVar[str] = "merging-all"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Let the first of all calls that look the same stand for the others."""
        first: dict[str, torch.fx.Node] = {}
        for node in list(program.graph.nodes):
            if node.op != "call_function" or not node.users:
                continue
            known = first.setdefault(f"{node.target}{node.args}{node.kwargs}", node)
            if known is not node:
                node.replace_all_uses_with(known)
                program.graph.erase_node(node)
        return True


class LosingShapes(Pass[ExportedProgram]):
    """Plants a node that torch can't write, since nobody says what shape it has."""

    name: ClassVar[str] = "losing-shapes"
    level: ClassVar[Literal["fx", "aten"]] = "aten"

    def call(self, program: ExportedProgram) -> bool:
        """Forget the shape of the first call's result."""
        node = next(node for node in program.graph.nodes if node.op == "call_function")
        with program.graph.inserting_after(node):
            new = program.graph.call_function(node.target, node.args, node.kwargs)
        node.replace_all_uses_with(new)
        program.graph.erase_node(node)
        return True


class AskingValues(Pass[torch.fx.GraphModule]):
    """Plants what runs and can't be exported: Python asks a tensor whether it is true."""

    name: ClassVar[str] = "asking-values"
    level: ClassVar[Literal["fx", "aten"]] = "fx"

    def call(self, module: torch.fx.GraphModule) -> bool:
        """Ask the first input's sum."""
        given = next(iter(module.graph.find_nodes(op="placeholder")))
        with module.graph.inserting_after(given):
            total = module.graph.call_method("sum", (given,))
        with module.graph.inserting_after(total):
            module.graph.call_function(bool, (total,))
        return True


@pytest.mark.parametrize(
    ("planted", "module"),
    [(MergingAll, GraphConvolutions()), (LosingShapes, None), (AskingValues, None)],
)
def test_a_pass_that_would_break_the_export_is_left_out_and_named(
    planted: type[Pass[Any]],
    module: nn.Module | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PASSES, planted.name, planted)
    others = [
        c for c in DEFAULT_PASSES if (PASSES[c.name].level == "fx") == (planted.level == "fx")
    ]
    chosen = (PassChoice(planted.name), *others)
    if module is None:
        result = run(tmp_path, *chosen)
    else:
        deliver(module, (X, EDGES), tmp_path / "toy", name="toy", dynamic={})
        recipe = Recipe(passes=chosen)
        result = optimize.run(OptimizeJob(tmp_path / "toy", tmp_path / "program", recipe))
    broken, *right = result.effects
    assert broken.left_out.startswith(f"the pass {planted.name} would break the export: ")
    assert not broken.modified
    assert not any(effect.left_out for effect in right)
    assert any(effect.modified for effect in right)
    torch.export.load(result.program)


def test_a_pass_that_wrote_to_weights_and_broke_the_export_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writing(LosingShapes):
        def call(self, program: ExportedProgram) -> bool:
            with torch.no_grad():
                next(iter(program.state_dict.values())).mul_(1.0)
            return super().call(program)

    monkeypatch.setitem(PASSES, Writing.name, Writing)
    with pytest.raises(BlessingRefused, match="a program that torch can export"):
        run(tmp_path, PassChoice(Writing.name))
