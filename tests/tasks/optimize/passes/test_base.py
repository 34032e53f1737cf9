"""How passes are applied: conditions before and after, and nothing of the interface changed."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from handoff.artifacts.errors import UsageProblem
from handoff.tasks.optimize.passes.base import Pass, PassBroken, apply_pass


class Touching(Pass[torch.fx.GraphModule]):
    """Changes relu to gelu, and says so."""

    name: ClassVar[str] = "touching"
    level: ClassVar[Literal["fx", "aten"]] = "fx"

    def call(self, program: torch.fx.GraphModule) -> bool:
        """Retarget every relu."""
        calls = [n for n in program.graph.nodes if n.target is torch.relu]
        for node in calls:
            node.target = nn.functional.gelu
        return bool(calls)


class AddingAnInput(Touching):
    """Changes the interface, which no pass may."""

    def call(self, program: torch.fx.GraphModule) -> bool:
        """Add a placeholder."""
        first = next(iter(program.graph.nodes))
        with program.graph.inserting_before(first):
            program.graph.placeholder("smuggled")
        return True


class DroppingAnOutput(Touching):
    """Returns less than before."""

    def call(self, program: torch.fx.GraphModule) -> bool:
        """Return the tensor alone instead of a tuple."""
        output = program.graph.output_node()
        output.args = (output.all_input_nodes[0],)
        return True


class Denying(Touching):
    """Changes something and says that it doesn't."""

    def call(self, program: torch.fx.GraphModule) -> bool:
        """Retarget every relu, in secret."""
        super().call(program)
        return False


class DenyingWeights(Touching):
    """Changes a weight in place and says that it doesn't."""

    def call(self, program: torch.fx.GraphModule) -> bool:
        """Add to every weight."""
        for weight in program.state_dict().values():
            weight.add_(1.0)
        return False


class Breaking(Touching):
    """Doesn't keep its own promise."""

    def ensures(self, program: torch.fx.GraphModule) -> None:
        """Look at the graph that came out."""
        if any(node.target is nn.functional.gelu for node in program.graph.nodes):
            raise PassBroken("a gelu is left")


def traced() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)


def test_a_pass_says_whether_it_changed_anything() -> None:
    program = traced()
    assert apply_pass(Touching({}), program)
    assert not apply_pass(Touching({}), program)


def test_a_changed_graph_is_the_code_that_runs() -> None:
    program = traced()
    apply_pass(Touching({}), program)
    x = torch.randn(4)
    torch.testing.assert_close(program(x), nn.functional.gelu(x) + 1)


def test_a_pass_may_not_change_the_inputs() -> None:
    with pytest.raises(PassBroken, match="inputs or outputs"):
        apply_pass(AddingAnInput({}), traced())


def test_a_pass_may_not_change_what_is_returned() -> None:
    program = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    with pytest.raises(PassBroken, match="inputs or outputs"):
        apply_pass(DroppingAnOutput({}), program)


@pytest.mark.parametrize("denying", [Denying({}), DenyingWeights({})])
def test_a_pass_that_denies_its_change_is_caught(denying: Touching) -> None:
    program = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with program.graph.inserting_before(program.graph.output_node()):
        program.graph.call_function(torch.relu, (program.graph.output_node().args[0],))
    with pytest.raises(PassBroken, match="said that it hadn't"):
        apply_pass(denying, program)


def test_the_promise_is_checked_on_the_graph_that_came_out() -> None:
    with pytest.raises(PassBroken, match="gelu is left"):
        apply_pass(Breaking({}), traced())


def test_a_parameter_that_a_pass_does_not_have_is_reported() -> None:
    with pytest.raises(UsageProblem, match="touching can't be set up"):
        Touching({"speed": "high"})


def test_torchs_own_pass_base_still_shows_ensures_the_graph_that_went_in() -> None:
    # When this fails, upstream is mended, and `apply_pass` could build on it.
    seen: list[torch.fx.GraphModule] = []

    class Upstream(PassBase):
        def call(self, graph_module: torch.fx.GraphModule) -> PassResult:
            return PassResult(traced(), True)

        def ensures(self, graph_module: torch.fx.GraphModule) -> None:
            seen.append(graph_module)

    given = traced()
    result = Upstream()(given)
    assert result is not None
    assert seen == [given]
    assert result.graph_module is not given
