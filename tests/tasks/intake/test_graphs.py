"""Graphs that symbolic tracing doesn't make: written node by node, or by make_fx."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.fx._symbolic_trace import PH

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.tasks.intake.functions import resolve
from handoff.tasks.intake.loading import check_same_forward, read_delivery
from handoff.tasks.verify.float64 import flatten_tensors
from tests.tasks.intake.models import deliver, deliver_case, spec

INPUTS = (spec("x", "float32", 4, 4),)


def test_reads_changes_in_place(tmp_path: Path) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_method("clone", (x,))
    for function in (operator.iadd, operator.imul, operator.itruediv):
        y = graph.call_function(function, (y, 2))
    graph.call_function(operator.setitem, (y, (slice(0, 2), 1), 7))
    z = graph.call_function(torch.Tensor.mul, (y, 3))
    graph.output((y, z))
    traced = deliver(torch.fx.GraphModule(nn.Module(), graph), tmp_path, INPUTS)
    module = read_delivery(tmp_path).module
    inputs = torch.randn(4, 4)
    for ours, theirs in zip(module(inputs), traced(inputs), strict=True):
        assert torch.equal(ours, theirs)
    targets = [node.target for node in traced.graph.nodes]
    assert [node.target for node in module.graph.nodes] == targets


def test_reads_a_graph_of_aten_operators(tmp_path: Path) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    weight = torch.randn(4, 4)

    def compute(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.layer_norm(x @ weight, (4,)).softmax(-1)
        return y.std(0) + torch.arange(4, device="cpu") * y.new_full((4,), 2).to(torch.bfloat16)

    traced = make_fx(compute)(torch.randn(4, 4))
    traced.graph.find_nodes(op="placeholder")[0].target = "x"
    traced.recompile()
    deliver(traced, tmp_path, INPUTS)
    inputs = torch.randn(4, 4)
    assert torch.equal(read_delivery(tmp_path).module(inputs), traced(inputs))


def test_reads_an_exported_program_unlifted_into_plain_code(tmp_path: Path) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x).relu()

    program = torch.export.export(Small().eval(), (torch.randn(4, 4),))
    traced = program.module(check_guards=False)
    traced.graph.set_codegen(torch.fx.graph.CodeGen())
    plain = torch.fx.GraphModule(traced, traced.graph)
    deliver(plain, tmp_path, INPUTS)
    inputs = torch.randn(4, 4)
    (ours,), (theirs,) = read_delivery(tmp_path).module(inputs), plain(inputs)
    assert torch.equal(ours, theirs)


def test_reads_operators_of_a_buffer_with_an_input(tmp_path: Path) -> None:
    class Tables(nn.Module):
        rows: torch.Tensor
        bits: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.randn(8, 3))
            self.register_buffer("bits", torch.arange(8))

        def forward(self, ids: torch.Tensor) -> Any:
            whole = (self.bits & ids, self.bits | ids, self.bits ^ ids, self.bits << ids)
            apart = (self.bits >> ids, self.bits // (ids + 1), self.bits - ids, ids - self.bits)
            return self.rows[ids], self.rows[ids, 0], self.rows[:, ids % 3], whole, apart

    traced = deliver(Tables(), tmp_path, (spec("ids", "int64", 8),))
    assert "__getitem__" in traced.code
    module, ids = read_delivery(tmp_path).module, torch.randint(0, 8, (8,))
    for ours, theirs in zip(
        flatten_tensors(module(ids)), flatten_tensors(traced(ids)), strict=True
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["__class__", "__reduce_ex__", "__setstate__", "__init__"])
def test_refuses_python_s_other_methods_of_tensors(name: str, tmp_path: Path) -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_method(name, (graph.placeholder("x"), 2)))
    deliver(torch.fx.GraphModule(nn.Module(), graph), tmp_path, INPUTS)
    with pytest.raises(DeliveryUnreadable, match="a method of tensors that only computes"):
        read_delivery(tmp_path)


def test_refuses_nested_inputs_with_a_way_out(tmp_path: Path) -> None:
    class Nested(nn.Module):
        def forward(self, x: list[torch.Tensor]) -> torch.Tensor:
            return x[0] + x[1]

    traced = torch.fx.symbolic_trace(Nested(), concrete_args={"x": [PH, PH]})
    deliver(traced, tmp_path, INPUTS)
    with pytest.raises(DeliveryUnreadable, match=r"module.py:\d+.*handoff deliver"):
        read_delivery(tmp_path)


def test_a_forward_that_would_be_written_otherwise_is_refused(tmp_path: Path) -> None:
    deliver_case("perceptron", tmp_path)
    module = read_delivery(tmp_path).module
    text = (tmp_path / "module.py").read_text()
    check_same_forward(module, text)
    for old, new in (("x = None", "x = None; y = 3"), ("torch.relu", "torch.sigmoid")):
        with pytest.raises(DeliveryUnreadable, match="can't be rebuilt exactly"):
            check_same_forward(module, text.replace(old, new, 1))


@pytest.mark.parametrize(
    "name",
    [
        "torch.add", "torch.nn.functional.relu", "torch._C._nn.gelu", "torch.functional.split",
        "torch.Tensor.add", "torch.ops.aten.add.Tensor", "torch.ops.aten.relu",
        "torch.ops.aten.relu.default", "torch.ops.prims.add.default", "torch.arange",
        "torch.ops.aten.sym_size.int", "torch.ops.aten._to_copy.default", "torch.sym_int",
        "torch._C._fft.fft_fft", "torch.ops.aten._scaled_dot_product_flash_attention.default",
        "_operator_abs", "math_sqrt", "math_sqrt_1", "getattr", "len",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.aten.full.default", "torch.ops.aten.rand.default", "torch.ops.aten.index.Tensor",
        "torch.nn.functional.hardswish", "torch.nn.functional.sigmoid", "torch.relu_",
        "torch.nn.functional.max_pool2d", "torch.rand_like", "torch_Tensor_mul",
    ],
)  # fmt: skip
def test_finds_functions_that_only_compute(name: str) -> None:
    assert callable(resolve(name))


@pytest.mark.parametrize(
    "name",
    [
        "torch.load", "torch.save", "torch.compile", "torch.from_file", "torch.hub.load", "eval",
        "exec", "open", "__import__", "torch.nn.functional.torch.load", "torch.Tensor.apply_",
        "torch.Tensor.__reduce_ex__", "torch.Tensor.set_", "torch.Tensor.data_ptr",
        "torch.os.system",
        "torch.ops.aten.from_file.default", "torch.ops.aten.save.default", "torch.ops.load_library",
        "torch.ops.prim.Print", "torch.ops.aten.set_.source_Storage", "torch.ops.c10d.send",
        "torch.ops.quantized.linear", "torch._C._nn._parse_to", "torch.utils.cpp_extension.load",
        "_operator_attrgetter", "_operator_methodcaller", "_operator_call", "math___loader__",
        "torch.nn.functional.__builtins__", "torch.ops.aten.add.nothing", "torch.ops.aten.nothing",
        "torch.jit.load", "torch.storage", "torch.Tensor", "torch.set_num_threads",
        "torch.ops.aten.manual_seed.default", "torch.ops.aten.set_grad_enabled.default",
        "torch.ops.aten.format.default", "torch.ops.aten._print.default", "torch.autocast",
        "torch.ops.aten.backward.default", "torch.nn.functional.handle_torch_function",
        "torch.ops.aten._cufft_clear_plan_cache.default", "torch.fork",
    ],
)  # fmt: skip
def test_finds_nothing_else(name: str) -> None:
    assert resolve(name) is None
