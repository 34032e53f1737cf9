"""Lower precision: the heavy operators round, the rest stays as it is, and it is seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.errors import BlessingRefused, UsageProblem
from handoff.artifacts.recipe.choices import PassChoice
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.tolerance import Tolerance
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.channels_last import ChannelsLast
from handoff.tasks.optimize.passes.cpu_attention import CpuAttention
from handoff.tasks.optimize.passes.lower_precision import LowerPrecision
from handoff.tasks.optimize.passes.squeeze_excite import SqueezeExcite
from tests.tasks.deliveries import write_delivery
from tests.tasks.optimize.passes.exporting import count, export

_ATEN = torch.ops.aten
PARAMETERS = {"dtype": "bfloat16", "operators": "linear,convolution"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(x)).mean((2, 3)))  # type: ignore[no-any-return]


X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_kept_at_half_the_size_and_outputs_stay_float32(dtype: str) -> None:
    program = export(Net(), X)
    assert apply_pass(LowerPrecision({**PARAMETERS, "dtype": dtype}), program)
    assert {t.dtype for t in program.state_dict.values()} == {getattr(torch, dtype)}
    with torch.no_grad():
        got, want = program.module()(X), Net()(X)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
    assert not torch.equal(got, want)


def test_only_the_named_operators_are_lowered() -> None:
    program = export(Net(), X)
    assert apply_pass(LowerPrecision({"dtype": "bfloat16", "operators": "linear"}), program)
    assert program.state_dict["conv.weight"].dtype is torch.float32
    assert program.state_dict["out.weight"].dtype is torch.bfloat16
    assert count(program, _ATEN.to.dtype) == 2


class WritesBetween(Net):
    """Two calls of one value, which is written to through a view between them."""

    def forward(self, x: Tensor) -> Tensor:
        features = x.mean((2, 3)).repeat(1, 3)[:, :8] + 1.0
        first = self.out(features)
        features.view(-1).mul_(3.0)
        return first + self.out(features)  # type: ignore[no-any-return]


def test_a_value_that_is_written_to_is_lowered_as_it_is_at_each_call() -> None:
    program = export(WritesBetween(), X)
    assert apply_pass(LowerPrecision(PARAMETERS), program)
    assert program.state_dict["out.weight"].dtype is torch.bfloat16
    with torch.no_grad():
        got, want = program.module()(X), WritesBetween()(X)
    torch.testing.assert_close(got, want, rtol=3e-2, atol=6e-2)


class SharedWeight(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.out.weight.sum()


def test_a_weight_that_something_else_uses_stays_as_it_is() -> None:
    program = export(SharedWeight(), X)
    assert apply_pass(LowerPrecision(PARAMETERS), program)
    assert program.state_dict["out.weight"].dtype is torch.float32


def test_rounding_is_seen_and_refused_where_the_tolerance_has_no_room(tmp_path: Path) -> None:
    delivery = write_delivery(tmp_path / "delivery", Net().eval(), {"x": X})
    passes = (PassChoice("lower-precision", PARAMETERS),)
    with pytest.raises(BlessingRefused, match="the pass lower-precision changes what the model"):
        optimize.run(OptimizeJob(delivery, tmp_path / "strict", Recipe(passes=passes)))
    roomy = Recipe(passes=passes, tolerance={"float32": Tolerance(atol=0.05, rtol=0.05)})
    (effect,) = optimize.run(OptimizeJob(delivery, tmp_path / "roomy", roomy)).effects
    assert effect.modified
    assert 1e-5 < effect.max_abs < 0.05


def test_an_unknown_dtype_or_operator_is_reported() -> None:
    for wrong in ({"dtype": "int4"}, {"operators": "softmax"}):
        with pytest.raises(UsageProblem, match=r"bfloat16 or float16|linear, convolution, matmul"):
            LowerPrecision({**PARAMETERS, **wrong})


class Attending(nn.Module):
    """Attention to the keys that a mask says there are."""

    def forward(self, query: Tensor, keys: Tensor, there: Tensor) -> Tensor:
        attended: Tensor = nn.functional.scaled_dot_product_attention(query, keys, keys, there)
        return attended


def test_attention_is_lowered_whatever_kind_its_mask_is() -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys = (torch.randn(6, 2, 5, 16, generator=generator) for _ in range(2))
    there = torch.rand(6, 1, 5, 5, generator=generator) > 0.3
    for mask in (there, torch.zeros(there.shape).masked_fill(~there, -9.0)):
        program = export(Attending(), query, keys, mask)
        lowering = LowerPrecision({"dtype": "bfloat16", "operators": "attention"})
        assert apply_pass(lowering, program)
        (call,) = program.graph.find_nodes(
            op="call_function", target=_ATEN.scaled_dot_product_attention.default
        )
        assert call.meta["val"].dtype is torch.bfloat16
        with torch.no_grad():
            got, want = program.module()(query, keys, mask), Attending()(query, keys, mask)
        torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("is_lowered_first", [False, True])
def test_our_own_attention_is_lowered_and_its_mask_is_not(is_lowered_first: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    query, keys = (torch.randn(6, 2, 5, 16, generator=generator) for _ in range(2))
    # As published encoders write it: a row of padding may look at nothing, or evenly at all.
    there = torch.rand(6, 1, 5, 5, generator=generator) > 0.3
    there[:, :, 2] = False
    mask = torch.zeros(there.shape).masked_fill(~there, torch.finfo(torch.float32).min)
    program = export(Attending(), query, keys, mask)
    lowering = LowerPrecision({"dtype": "bfloat16", "operators": "attention"})
    passes = [lowering, CpuAttention({})] if is_lowered_first else [CpuAttention({}), lowering]
    for chosen in passes:
        assert apply_pass(chosen, program)
    (call,) = program.graph.find_nodes(
        op="call_function", target=torch.ops.handoff.attention.default
    )
    assert call.meta["val"].dtype is torch.bfloat16
    if is_lowered_first:
        return  # torch's own attention wants a mask of the others' dtype, which is rounded then
    assert call.args[3].meta["val"].dtype is torch.float32
    with torch.no_grad():
        got, want = program.module()(query, keys, mask), Attending()(query, keys, mask)
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


class Gated(nn.Module):
    """A picture, a convolution, and a squeeze-and-excite block."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.first, self.second = nn.Conv2d(3, 16, 3), nn.Linear(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        image = self.conv(x)
        gates = self.second(self.first(image.mean((2, 3))).relu()).sigmoid()
        return image * gates[:, :, None, None]  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_our_own_functions_round_where_they_have_the_precision(dtype: torch.dtype) -> None:
    program = export(Gated(), X)
    name = str(dtype).removeprefix("torch.")
    lowering = LowerPrecision({**PARAMETERS, "dtype": name})
    for chosen in (SqueezeExcite({}), ChannelsLast({}), lowering):
        assert apply_pass(chosen, program)
    layout, gates = (
        program.graph.find_nodes(op="call_function", target=target)[0]
        for target in (
            torch.ops.handoff.channels_last.default, torch.ops.handoff.squeeze_excite.default
        )
    )  # fmt: skip
    own = dtype if dtype is torch.bfloat16 else torch.float32
    assert (layout.meta["val"].dtype, gates.meta["val"].dtype) == (own, own)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(X), Gated()(X), rtol=3e-2, atol=3e-2)
