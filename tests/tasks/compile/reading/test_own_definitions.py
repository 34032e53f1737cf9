"""The C++ of operators of our own: read as a whole where it stands as it was written, else not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused
from handoff.tasks.compile.reading.literals import read_cpp
from handoff.tasks.optimize import kernels
from handoff.tasks.optimize.kernels import add_cpu_function
from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from handoff.tasks.optimize.passes.cpu_attention import CpuAttention
from handoff.tasks.optimize.passes.pool_with_attention import PoolWithAttention
from handoff.tasks.optimize.passes.squeeze_excite import SqueezeExcite
from tests.tasks.compile.generated import generate
from tests.tasks.optimize.passes.exporting import apply
from tests.tasks.optimize.passes.test_lower_precision import Gated
from tests.tasks.optimize.passes.test_pool_with_attention import Pooled, example


class Attends(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def pooled() -> ExportedProgram:
    return apply(PoolWithAttention({}), Pooled().eval(), *example())[1]


def attended() -> ExportedProgram:
    return apply(CpuAttention({}), Attends().eval(), torch.randn(5, 4, 8, 16))[1]


def gated() -> ExportedProgram:
    program = apply(SqueezeExcite({}), Gated().eval(), torch.randn(5, 3, 8, 8))[1]
    assert apply_pass(ChannelsLast({}), program)
    return program


@pytest.mark.compile
@pytest.mark.parametrize(
    "program", [pooled, attended, gated], ids=["pooling", "attention", "gates and pictures"]
)
def test_packages_may_hold_our_operators_and_nothing_that_looks_like_them(program: object) -> None:
    assert callable(program)
    wrapper, code = generate(program())
    whole = wrapper + code
    own = ("attention_pooling_cpu", "attention_cpu", "squeeze_excite_cpu", "channels_last_cpu")
    assert any(name in whole for name in own)
    read_cpp(wrapper)
    read_cpp(code)
    assert "bool open(" in wrapper
    changed = wrapper.replace("bool open(AtenTensorHandle tensor", "bool open(int more", 1)
    with pytest.raises(BlessingRefused, match="got open"):
        read_cpp(changed)


def test_an_extensions_function_is_known_whole_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_CPU_FUNCTIONS", {})
    written = "AOTITorchError aoti_torch_cpu_mine(int* p) {\n  return my_own_word(p);\n}\n"
    with pytest.raises(BlessingRefused, match="my_own_word"):
        read_cpp(written)
    add_cpu_function(torch.ops.aten.relu.default, written)
    read_cpp("  " + written)
    with pytest.raises(BlessingRefused, match="my_own_word"):
        read_cpp(written.replace("(p);", "(p + 1);"))
