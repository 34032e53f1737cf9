"""Retargeting: everything is on the GPU afterwards, and nothing of the original has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from handoff.artifacts.errors import BlessingRefused
from handoff.tasks.compile.cross.retarget import DEVICE, Weights, retarget
from tests.tasks.compile.cross import models

pytestmark = models.needs_known_torch


class Assorted(nn.Module):
    """Weights of every kind: tied, transposed, a part, expanded, of integers, and a constant."""

    fixed: Tensor
    shifts: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(6, 6, bias=False)
        self.second = nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.third = nn.Linear(6, 6, bias=False)
        self.turned = nn.Parameter(torch.randn(6, 4).t())
        self.part = nn.Parameter(torch.randn(9)[3:7])
        self.register_buffer("fixed", torch.arange(6.0).expand(3, 6))
        self.register_buffer("shifts", torch.arange(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.third(self.second(self.first(x))) + self.fixed.sum(0)
        start = torch.zeros(4, device=torch.device("cpu"))
        shifted: Tensor = hidden @ self.turned.t() + self.shifts + self.part + start
        return shifted + torch.tensor([1.0, 2.0, 3.0, 4.0])


def leaves(tree: object) -> list[Any]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def test_everything_is_on_the_gpu() -> None:
    program = retarget(models.exported(Assorted(), torch.randn(8, 6)))
    tensors = leaves([program.state_dict, program.constants, program.example_inputs])
    tensors += leaves([node.meta.get("val") for node in program.graph.nodes])
    assert len(tensors) > 20
    assert {tensor.device for tensor in tensors} == {DEVICE}
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors)
    devices = pytree.tree_leaves([(node.args, node.kwargs) for node in program.graph.nodes])
    assert {device for device in devices if isinstance(device, torch.device)} == {DEVICE}


def test_the_original_is_left_as_it_is() -> None:
    program = models.exported(Assorted(), torch.randn(8, 6))
    inputs = torch.randn(5, 6)
    before, expected = str(program), program.module()(inputs)
    held = {name: tensor.data_ptr() for name, tensor in program.state_dict.items()}
    retarget(program)
    assert str(program) == before
    assert {name: tensor.data_ptr() for name, tensor in program.state_dict.items()} == held
    torch.testing.assert_close(program.module()(inputs), expected, rtol=0, atol=0)


def test_names_ranges_and_geometry_stay() -> None:
    program = models.two_layers()
    moved = retarget(program)
    names = [node.name for node in program.graph.nodes]
    assert "input" in names
    assert [node.name for node in moved.graph.nodes] == names
    assert moved.range_constraints == program.range_constraints
    moved = retarget(program := models.exported(Assorted(), torch.randn(8, 6)))
    for name, tensor in program.state_dict.items():
        assert moved.state_dict[name].stride() == tensor.stride()
        assert moved.state_dict[name].dtype == tensor.dtype


def test_weights_are_found_again_byte_by_byte_and_tied_ones_once() -> None:
    program = models.exported(Assorted(), torch.randn(8, 6))
    moved = retarget(program)
    weights = Weights(program, moved)
    fakes = {**moved.state_dict, **moved.constants}
    reals = {**program.state_dict, **program.constants}
    assert len(reals) == 8
    for name, tensor in reals.items():
        found = weights.find(fakes[name])
        assert found is not None
        assert found.is_cuda
        flat = torch.empty(0, dtype=tensor.dtype).set_(found.untyped_storage())
        values = flat.as_strided(found.size(), found.stride(), found.storage_offset())
        assert torch.equal(values, tensor)
        assert found.untyped_storage().nbytes() == fakes[name].untyped_storage().nbytes()
    first, second, third = (moved.state_dict[f"{n}.weight"] for n in ("first", "second", "third"))
    assert weights.find(first) is weights.find(second)
    assert weights.find(first) is not weights.find(third)
    assert weights.find(moved.example_inputs[0][0]) is None


class ForTheCpu(nn.Module):
    """Calls attention by the name of its kernel for the CPU, as a decomposed program may."""

    def forward(self, x: Tensor) -> Tensor:
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        attended: Tensor = attend(x, x, x)[0]
        return attended


def test_refuses_an_operator_that_no_gpu_has() -> None:
    program = models.exported(ForTheCpu(), torch.randn(8, 2, 4, 16))
    with pytest.raises(BlessingRefused, match=r"for_cpu\.default, which no GPU has"):
        retarget(program)
