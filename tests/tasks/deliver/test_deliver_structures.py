"""Deliver: models that take and give their tensors in structures, by keyword, or with functions."""

from __future__ import annotations

import dataclasses
import random
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import Structure
from handoff.artifacts.errors import DeliveryUnreadable, DeliveryUnsound, UsageProblem
from handoff.artifacts.recipe.recipe import Recipe
from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run as judge
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.step import run as optimize

USER, ITEM = torch.randn(6, 8), torch.randn(6, 3, 8)


@dataclasses.dataclass
class Scored:
    """What a model gives: scores `[N]`, and what they were made of, `[N, 8]`."""

    scores: Tensor
    pooled: Tensor
    temperature: float = 1.0


class Pair(NamedTuple):
    """Two tensors by name."""

    low: Tensor
    high: Tensor


@dataclasses.dataclass
class Features:
    """What a model takes: a user `[N, 8]` and its items `[N, 3, 8]`."""

    user: Tensor
    items: list[Tensor]


class Recommender(nn.Module):
    """Takes and gives structures; `traceable` false keeps torch.fx from it."""

    def __init__(self, *, traceable: bool = True) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.traceable = traceable

    def score(self, user: Tensor, items: Tensor) -> Scored:
        if not self.traceable and len(user) < 0:
            raise ValueError
        pooled = self.mix(items.mean(1))
        return Scored((user * pooled).sum(1), pooled)


class TakesDict(Recommender):
    def forward(self, batch: dict[str, Any], *, mask: Tensor | None = None) -> dict[str, Tensor]:
        scored = self.score(batch["user"], batch["history"][0])
        scores = scored.scores if mask is None else scored.scores * mask
        return {"scores": scores, "pooled": scored.pooled}


class TakesDataclass(Recommender):
    def forward(self, features: Features, mode: str = "plain") -> Scored:
        scored = self.score(features.user, features.items[0])
        return scored if mode == "plain" else dataclasses.replace(scored, scores=-scored.scores)


class TakesAny(Recommender):
    def forward(self, *parts: Tensor, **named: Tensor) -> Pair:
        scored = self.score(parts[0], parts[1]).scores
        return Pair(scored - named["margin"], scored + named["margin"])


def deliver_it(model: nn.Module, folder: Path, *args: Any, **options: Any) -> DeliverResult:
    return deliver(model.eval(), args, folder, name="toy", **options)


def outputs_of(folder: Path, *tensors: Tensor) -> tuple[Tensor, ...]:
    given = read_delivery(folder).module(*tensors)
    return given if isinstance(given, tuple) else (given,)


@pytest.mark.parametrize("traceable", [True, False])
def test_a_dictionary_is_taken_apart_and_said_how(traceable: bool, tmp_path: Path) -> None:
    model = TakesDict(traceable=traceable)
    result = deliver_it(model, tmp_path / "toy", {"user": USER, "history": (ITEM,)})
    contract = result.contract
    assert contract.model.captured_by.startswith("torch.fx" if traceable else "torch.export")
    assert [spec.name for spec in contract.inputs] == ["batch_user", "batch_history_0"]
    assert contract.structure == Structure(
        ("batch['user']", "batch['history'][0]"), ("['scores']", "['pooled']"),
        result="{'scores': tensor, 'pooled': tensor}",
    )  # fmt: skip
    assert contract.structure.output_names == ("scores", "pooled")
    fresh = torch.randn(9, 8), torch.randn(9, 3, 8)
    want = model({"user": fresh[0], "history": (fresh[1],)})
    for got, name in zip(outputs_of(tmp_path / "toy", *fresh), want, strict=True):
        torch.testing.assert_close(got, want[name])
    assert judge(TraceabilityJob(tmp_path / "toy")).verdict == "sound"


def test_the_outputs_keep_their_names_up_to_the_release(tmp_path: Path) -> None:
    deliver_it(TakesDict(), tmp_path / "toy", {"user": USER, "history": (ITEM,)})
    result = optimize(OptimizeJob(tmp_path / "toy", tmp_path / "program", Recipe()))
    assert [str(spec) for spec in result.outputs] == [
        "scores float32 [batch]", "pooled float32 [batch, 8]"
    ]  # fmt: skip


@pytest.mark.parametrize("traceable", [True, False])
def test_keywords_are_inputs_too(traceable: bool, tmp_path: Path) -> None:
    model, mask = TakesDict(traceable=traceable), torch.ones(6)
    batch = {"user": USER, "history": (ITEM,)}
    result = deliver_it(model, tmp_path / "toy", batch, example_kwargs={"mask": mask})
    assert [spec.name for spec in result.contract.inputs][2] == "mask"
    want = model(batch, mask=mask * 3)["scores"]
    assert torch.equal(outputs_of(tmp_path / "toy", USER, ITEM, mask * 3)[0], want)


@pytest.mark.parametrize("traceable", [True, False])
def test_dataclasses_are_seen_through_and_what_is_no_tensor_is_fixed(
    traceable: bool, tmp_path: Path
) -> None:
    model = TakesDataclass(traceable=traceable)
    result = deliver_it(model, tmp_path / "toy", Features(USER, [ITEM]), "negative")
    assert result.contract.structure == Structure(
        ("features.user", "features.items[0]"), (".scores", ".pooled"), ("mode = 'negative'",),
        result="Scored(scores=tensor, pooled=tensor, temperature=1.0)",
    )  # fmt: skip
    want = model(Features(USER, [ITEM]), "negative")
    torch.testing.assert_close(outputs_of(tmp_path / "toy", USER, ITEM)[0], want.scores)
    assert not torch.equal(want.scores, model(Features(USER, [ITEM])).scores)


@pytest.mark.parametrize("traceable", [True, False])
def test_arguments_without_names_of_their_own_get_some(traceable: bool, tmp_path: Path) -> None:
    model, margin = TakesAny(traceable=traceable), torch.rand(6)
    options = {"example_kwargs": {"margin": margin}}
    result = deliver_it(model, tmp_path / "toy", USER, ITEM, **options)
    assert [spec.name for spec in result.contract.inputs] == ["parts_0", "parts_1", "named_margin"]
    assert result.contract.structure.outputs == (".low", ".high")
    low, high = outputs_of(tmp_path / "toy", USER, ITEM, margin * 2)
    torch.testing.assert_close(high - low, margin * 4)


class GivesAnything(nn.Module):
    """Gives what `give` makes of twice its input."""

    def __init__(self, give: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.give = give

    def forward(self, x: Tensor) -> object:
        return self.give(x * 2)


@pytest.mark.parametrize(
    ("give", "result"),
    [
        (lambda x: x, ""),
        (lambda x: (x, x + 1), ""),
        (lambda x: [x, x + 1], "[tensor, tensor]"),
        (lambda x: {"y": x}, "{'y': tensor}"),
        (lambda x: (x, None, {"z": [x + 1]}), "(tensor, None, {'z': [tensor]})"),
        (lambda x: torch.max(x, 1), "max(values=tensor, indices=tensor)"),
        (lambda x: Pair(x, x + 1), "Pair(low=tensor, high=tensor)"),
        (lambda x: {"y": x, "n": 6, "mode": "a"}, "{'y': tensor, 'n': 6, 'mode': 'a'}"),
    ],
)  # fmt: skip
def test_the_contract_holds_the_form_of_the_result(
    give: Callable[[Tensor], object], result: str, tmp_path: Path
) -> None:
    delivered = deliver_it(GivesAnything(give), tmp_path / "toy", USER)
    assert delivered.contract.structure.result == result
    assert read_delivery(tmp_path / "toy").contract == delivered.contract


def test_a_value_that_follows_the_size_is_none_with_a_note(tmp_path: Path) -> None:
    model = GivesAnything(lambda x: {"y": x, "rows": len(x.tolist())})
    delivered = deliver_it(model, tmp_path / "toy", USER)
    assert delivered.contract.structure.result == "{'y': tensor, 'rows': None}"
    assert any("['rows'] of the result is no tensor and differs" in n for n in delivered.notes)


def test_the_contract_says_it_on_disk_as_well(tmp_path: Path) -> None:
    result = deliver_it(TakesDict(), tmp_path / "toy", {"user": USER, "history": (ITEM,)})
    assert read_delivery(tmp_path / "toy").contract == result.contract


def test_a_mapping_that_is_no_dictionary_is_refused_with_a_way_out(tmp_path: Path) -> None:
    batch: UserDict[str, Tensor] = UserDict({"user": USER})
    with pytest.raises(UsageProblem, match=r"input batch can't .*UserDict.*dict\(batch\)"):
        deliver_it(TakesDict(), tmp_path / "toy", batch)


def test_an_array_is_refused_with_the_tensor_to_pass(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"numpy.ndarray. Pass torch.from_numpy\(batch\)"):
        deliver_it(TakesDict(), tmp_path / "toy", USER.numpy())


class GivesObject(nn.Module):
    def forward(self, x: Tensor) -> object:
        return UserDict({"x": x})


def test_a_result_that_no_package_can_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"output of forward can't .*collections.UserDict"):
        deliver_it(GivesObject(), tmp_path / "toy", USER)


class LooksUp(nn.Module):
    """Takes ids as floating-point numbers, as recommenders that take one table do."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.table(x[:, 0].long())
        return found * x[:, 1:]


def test_a_model_that_fails_on_random_inputs_gets_rows_of_its_example(tmp_path: Path) -> None:
    table = torch.cat([torch.arange(40, 48).float()[:, None], torch.rand(8, 1)], 1)
    model = LooksUp()
    result = deliver_it(model, tmp_path / "toy", table)
    assert result.contract.draw == "examples"
    tried = [note for note in result.notes if "random inputs were tried first" in note]
    assert "index out of" in tried[0]
    loaded = read_delivery(tmp_path / "toy")
    rows = {tuple(row.tolist()) for row in table}
    for case in loaded.cases[1:]:
        assert {tuple(row.tolist()) for row in case.inputs[0]} <= rows
    assert judge(TraceabilityJob(tmp_path / "toy")).verdict != "unsound"


class Cached(nn.Module):
    """Keeps a table for the last shape it saw, as detectors do with their anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: torch.Size | None = None
        self.table = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.shape != x.shape:
            self.table = torch.arange(x.shape[1]).to(x)
            self.shape = x.shape
        return x * self.table


def test_what_the_model_caches_by_shape_does_not_fix_the_shape(tmp_path: Path) -> None:
    result = deliver_it(Cached(), tmp_path / "toy", USER)
    assert "batch" in result.contract.dimensions
    assert torch.equal(outputs_of(tmp_path / "toy", USER[:4])[0], Cached()(USER[:4]))


class DrawsInForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.rand(8)


CALLS = [0]


class CountsCalls(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        CALLS[0] += 1
        return x * CALLS[0]


def test_random_numbers_in_forward_are_named_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnsound, match=r"draws random numbers \(rand\)") as caught:
        deliver_it(DrawsInForward(), tmp_path / "toy", USER)
    file, _, line = caught.value.where.rpartition(":")
    assert file.endswith("test_deliver_structures.py")
    text = Path(__file__).read_text().splitlines()[int(line) - 1]
    assert "torch.rand(8)" in text


class DrawsElsewhere(nn.Module):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x * self.draw()


@pytest.mark.parametrize(
    ("draw", "message"),
    [(random.random, "Python's random"), (np.random.rand, "numpy.random")],
)
def test_random_numbers_of_other_libraries_are_reported_as_such(
    draw: Callable[[], float], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DeliveryUnsound, match=rf"draws random numbers \({message}\)"):
        deliver_it(DrawsElsewhere(draw), tmp_path / "toy", USER)


def test_state_outside_of_the_model_is_distinguished_from_random_numbers(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnsound, match=r"nothing is drawn.*counters"):
        deliver_it(CountsCalls(), tmp_path / "toy", USER)


def test_each_node_knows_the_line_of_the_models_code(tmp_path: Path) -> None:
    for traceable in (True, False):
        folder = tmp_path / f"toy{traceable}"
        deliver_it(TakesDict(traceable=traceable), folder, {"user": USER, "history": (ITEM,)})
        nodes = read_delivery(folder).module.graph.nodes
        lines = [n.meta["source_line"] for n in nodes if "source_line" in n.meta]
        texts = Path(__file__).read_text().splitlines()
        made = {texts[int(line.rpartition(":")[2]) - 1].strip() for line in lines}
        assert "pooled = self.mix(items.mean(1))" in made


class Contexts(nn.Module):
    """Holds contexts that export keeps as operators; `len` keeps torch.fx away."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < 0:
            raise ValueError
        with torch.no_grad():
            y: Tensor = self.layer(x)
        with torch.autocast("cpu", enabled=False):
            return y.float() * torch.sigmoid(y)


def test_contexts_that_change_nothing_are_taken_out(tmp_path: Path) -> None:
    model = Contexts().eval()
    result = deliver_it(model, tmp_path / "toy", USER)
    assert result.contract.model.captured_by.startswith("torch.export")
    assert "higher_order" not in (tmp_path / "toy" / "module.py").read_text()
    fresh = torch.randn(3, 8)
    torch.testing.assert_close(outputs_of(tmp_path / "toy", fresh)[0], model(fresh))


class DashedNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("block-1", nn.Sequential(nn.Linear(8, 4), nn.LayerNorm(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule("block-1")(x)  # type: ignore[no-any-return]


def test_names_that_python_could_not_write_are_kept(tmp_path: Path) -> None:
    model = DashedNames().eval()
    deliver_it(model, tmp_path / "toy", USER)
    assert (tmp_path / "toy" / "block-1.pt").exists()
    assert torch.equal(outputs_of(tmp_path / "toy", USER)[0], model(USER))


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))  # type: ignore[no-any-return]


def test_branches_in_the_graph_are_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnreadable, match=r"torch\.where instead of torch\.cond"):
        deliver_it(Branches(), tmp_path / "toy", USER)


class Squeezes(nn.Module):
    """Fails on a batch of one, as what squeezes its way does."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.sum(1, keepdim=True).squeeze(), x[:, 0]], 0)


def test_a_model_that_does_not_run_on_one_row_begins_at_two(tmp_path: Path) -> None:
    result = deliver_it(Squeezes(), tmp_path / "toy", USER)
    assert result.contract.dimensions["batch"].min == 2
    assert any("batch from 2 on: at 1 the model fails" in note for note in result.notes)
    with pytest.raises(DeliveryUnsound, match=r"another size .* batch = 1: .*\[1, 8\]"):
        deliver_it(Squeezes(), tmp_path / "other", USER, dimensions={"batch": (1, 9)})
