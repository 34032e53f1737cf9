from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from handoff.artifacts.delivery.contract import read_contract
from handoff.artifacts.digest import digest_folder
from handoff.artifacts.errors import DeliveryUnreadable
from handoff.artifacts.record import from_plain, to_plain
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.intake.step import run as take_in
from tests.tasks.intake.models import (
    CASES,
    Perceptron,
    Tied,
    deliver,
    deliver_case,
    draw,
    make_model,
    spec,
)


def assert_same(left: object, right: object) -> None:
    ours, our_shape = pytree.tree_flatten(left)
    theirs, their_shape = pytree.tree_flatten(right)
    assert our_shape == their_shape
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype
            assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        else:
            assert a == b


@pytest.mark.parametrize("name", sorted(CASES))
@torch.no_grad()
def test_a_rebuilt_module_computes_the_same_bits_as_the_traced_one(
    name: str, tmp_path: Path
) -> None:
    traced = deliver_case(name, tmp_path / "delivery")
    module = read_delivery(tmp_path / "delivery").module
    for batch in (1, 3):
        inputs = draw(name, batch)
        assert_same(module(*inputs), traced(*inputs))
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_every_node_knows_its_line_in_module_py(tmp_path: Path) -> None:
    deliver_case("residual", tmp_path)
    lines = (tmp_path / "module.py").read_text().splitlines()
    for node in read_delivery(tmp_path).module.graph.nodes:
        line = lines[node.meta["module_line"] - 1]
        assert ("return" if node.op == "output" else node.name) in line


def test_half_precision_stays_half_precision(tmp_path: Path) -> None:
    deliver(Perceptron().eval().half(), tmp_path, (spec("x", "float16", "N", 8),))
    loaded = read_delivery(tmp_path)
    dtypes = {tensor.dtype for tensor in loaded.module.parameters()}
    assert dtypes == {torch.float16}
    assert [(f.code, f.severity) for f in loaded.findings] == [("half-precision", "note")]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    deliver(Tied().eval(), tmp_path, CASES["tied"][1])
    module = read_delivery(tmp_path).module
    assert module.get_parameter("head.weight") is module.get_parameter("embed.weight")


def test_a_dropout_left_in_training_mode_is_unsound(tmp_path: Path) -> None:
    deliver(Perceptron(), tmp_path, CASES["perceptron"][1])
    (finding,) = read_delivery(tmp_path).findings
    assert (finding.code, finding.severity) == ("training-mode", "unsound")
    assert "Dropout" in finding.message


def test_weights_that_are_not_numbers_are_unsound(tmp_path: Path) -> None:
    model = Perceptron().eval()
    model.scale.data[1] = float("nan")
    deliver(model, tmp_path, CASES["perceptron"][1])
    (finding,) = read_delivery(tmp_path).findings
    assert (finding.code, finding.severity) == ("non-finite-weights", "unsound")
    assert "scale" in finding.message


def test_attributes_that_torch_never_reads_are_left_out_and_noted(tmp_path: Path) -> None:
    model = make_model("attention")
    model.get_submodule("norm")._is_initialized_by_us = True  # type: ignore[assignment]
    deliver(model, tmp_path, CASES["attention"][1])
    loaded = read_delivery(tmp_path)
    assert [f.code for f in loaded.findings] == ["ignored-attribute"]
    assert not hasattr(loaded.module.norm, "_is_initialized_by_us")


@torch.no_grad()
def test_attributes_of_tensors_are_left_out(tmp_path: Path) -> None:
    model = make_model("attention")
    model.get_parameter("norm.weight").tagged = True  # type: ignore[attr-defined]
    model.get_parameter("embed.weight").seen = torch.zeros(2)  # type: ignore[attr-defined]
    model.get_submodule("norm").bias = nn.Parameter(torch.ones(16))
    traced = deliver(model, tmp_path, CASES["attention"][1])
    inputs = draw("attention")
    assert_same(read_delivery(tmp_path).module(*inputs), traced(*inputs))


def test_attributes_of_buffers_are_left_out(tmp_path: Path) -> None:
    model = Perceptron().eval()
    model.get_buffer("offset").tagged = True  # type: ignore[attr-defined]
    traced = deliver(model, tmp_path, CASES["perceptron"][1])
    inputs = draw("perceptron")
    assert_same(read_delivery(tmp_path).module(*inputs), traced(*inputs))


def test_a_default_input_need_not_be_in_the_contract(tmp_path: Path) -> None:
    deliver_case("grammar", tmp_path)
    assert [s.name for s in read_contract(tmp_path).inputs] == ["x", "input"]
    placeholders = [n for n in read_delivery(tmp_path).module.graph.nodes if n.op == "placeholder"]
    assert [n.target for n in placeholders] == ["x", "input", "alpha", "flag"]
    assert [n.args for n in placeholders] == [(), (), (0.5,), (True,)]


@pytest.mark.parametrize("inputs", [("y",), ("x", "x2"), ("input", "x")])
def test_refuses_a_contract_that_names_other_inputs(
    inputs: tuple[str, ...], tmp_path: Path
) -> None:
    deliver(make_model("grammar"), tmp_path, tuple(spec(n, "float32", "N", 8) for n in inputs))
    with pytest.raises(DeliveryUnreadable, match="disagree on the inputs"):
        read_delivery(tmp_path)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (", weights_only=False)", ")"),
        ("affine=True, bias=True,", "affine=True,"),
        ("r'", "r'C:\\runs\\7\\"),
        ("import torch\nfrom torch import device\n", "from torch import device\n"),
    ],
)
def test_reads_what_other_versions_of_torch_write(new: str, old: str, tmp_path: Path) -> None:
    traced = deliver_case("perceptron", tmp_path)
    path = tmp_path / "module.py"
    assert new in path.read_text()
    path.write_text(path.read_text().replace(new, old))
    inputs = draw("perceptron")
    assert_same(read_delivery(tmp_path).module(*inputs), traced(*inputs))


def test_refuses_a_buffer_that_to_folder_lost(tmp_path: Path) -> None:
    model = Perceptron().eval()
    model.register_buffer("offset", torch.zeros(4), persistent=False)
    deliver(model, tmp_path, CASES["perceptron"][1])
    with pytest.raises(DeliveryUnreadable, match=r"lacks the buffer offset.*persistent=True"):
        read_delivery(tmp_path)


def test_a_lost_buffer_below_a_child_is_kept_by_its_own_file(tmp_path: Path) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Module()
            self.inner.register_buffer("steps", torch.arange(8.0), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner.get_buffer("steps")

    traced = deliver(Positions().eval(), tmp_path, CASES["perceptron"][1])
    inputs = draw("perceptron")
    assert_same(read_delivery(tmp_path).module(*inputs), traced(*inputs))


def test_take_in_reports_what_it_staged(tmp_path: Path) -> None:
    deliver_case("residual", tmp_path / "delivery")
    job = IntakeJob(tmp_path / "delivery", tmp_path / "runs" / "staging")
    result = take_in(job)
    assert result.digest == digest_folder(tmp_path / "delivery") == digest_folder(job.staging)
    module = read_delivery(job.staging).module
    assert result.nodes == len(module.graph.nodes)
    assert result.weights_bytes == sum(t.nbytes for t in module.state_dict().values())
    assert from_plain(IntakeResult, to_plain(result)) == result
    assert dataclasses.replace(take_in(job)) == result


def test_a_state_that_is_a_plain_dictionary_is_read(tmp_path: Path) -> None:
    deliver(Perceptron().eval(), tmp_path, CASES["perceptron"][1])
    before = read_delivery(tmp_path).module.state_dict()
    state = torch.load(tmp_path / "state_dict.pt", weights_only=True)
    torch.save(dict(state), tmp_path / "state_dict.pt")
    after = read_delivery(tmp_path).module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    torch.save([*state.values()], tmp_path / "state_dict.pt")
    with pytest.raises(DeliveryUnreadable, match="expected a dictionary of tensors, got list"):
        read_delivery(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('shape = ["N", 8]', 'shape = ["N", 1000000000000]'),
        ('shape = ["N", 8]', "shape = [1000000000, 1000000000]"),
        ("min = 1\n", "min = 1000000000000\n"),
    ],
)
def test_an_input_that_no_memory_holds_is_refused_before_it_is_drawn(
    tmp_path: Path, old: str, new: str
) -> None:
    deliver(Perceptron().eval(), tmp_path, CASES["perceptron"][1])
    path = tmp_path / "delivery.toml"
    text = path.read_text()
    assert old in text
    lines = [line if not line.startswith("max = ") else "max = 2000000000000"
             for line in text.replace(old, new).splitlines()]  # fmt: skip
    path.write_text("\n".join(lines))
    with pytest.raises(DeliveryUnreadable, match="larger than this machine's memory"):
        read_delivery(tmp_path)
    # Only the smallest sizes have to fit: the largest may be anybody's.
    path.write_text("\n".join(text.replace("max = ", "max = 1000000000000 # ").splitlines()))
    assert read_delivery(tmp_path).module is not None
