"""CPU attention: which calls of attention become our own function's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from handoff.tasks.optimize.passes.cpu_attention import CpuAttention
from tests.tasks.optimize.passes.exporting import apply, count

_TORCHS = torch.ops.aten.scaled_dot_product_attention.default
_OWN = torch.ops.handoff.attention.default


def sequences(length: int = 9, heads: int = 2, width: int = 16) -> Tensor:
    return torch.randn(5, heads, length, width, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Attention of a sequence to itself, with whatever else the call is given."""

    mask: Tensor | None

    def __init__(self, mask: Tensor | None = None, **options: object) -> None:
        super().__init__()
        self.register_buffer("mask", mask)
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x + 1, x * 2, x - 1, self.mask, **self.options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "module",
    [
        Attention(),
        Attention(scale=0.7),
        Attention(torch.linspace(-3, 3, 81).reshape(9, 9)),
        Attention(torch.ones(9, 9).tril().bool()),
    ],
    ids=["plain", "scaled", "numbers", "truths"],
)
def test_attention_over_a_known_number_of_keys_is_our_own(module: nn.Module) -> None:
    modified, program = apply(CpuAttention({}), module, sequences())
    assert modified
    assert count(program, _TORCHS) == 0
    assert count(program, _OWN) == 1


def test_a_place_that_may_look_at_none_gets_zeros_as_before() -> None:
    mask = torch.ones(9, 9).bool()
    mask[4] = False
    _, program = apply(CpuAttention({}), Attention(mask), sequences())
    assert not program.module()(sequences())[:, :, 4].any()


class OtherValues(nn.Module):
    """Values of another size than the keys', whose result is looked at as if it were contiguous."""

    def forward(self, x: Tensor) -> Tensor:
        made = scaled_dot_product_attention(x, x, torch.cat([x, x], -1))
        return made.view(-1, made.shape[2], made.shape[3])


def test_what_torch_makes_contiguous_stays_so() -> None:
    modified, program = apply(CpuAttention({}), OtherValues(), sequences())
    assert modified
    assert program.module()(sequences()).is_contiguous()


class OverChannels(nn.Module):
    """Attention of channels to each other, over as many numbers as the input has rows."""

    def forward(self, x: Tensor) -> Tensor:
        channels = x.permute(1, 2, 3, 0)
        return scaled_dot_product_attention(channels, channels, channels[..., :1] * torch.ones(128))


class Grouped(nn.Module):
    """Two heads of queries for each of keys."""

    def forward(self, x: Tensor) -> Tensor:
        half = x[:, :2]
        return scaled_dot_product_attention(x, half, half, enable_gqa=True)


class Shared(nn.Module):
    """All of a batch attend to the first one's keys and values."""

    def forward(self, x: Tensor) -> Tensor:
        first = x[:1]
        return scaled_dot_product_attention(x, first, first)


class Growing(nn.Module):
    """Attention over as many places as the input has rows."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.transpose(0, 2)
        return scaled_dot_product_attention(rows, rows, rows).transpose(0, 2)


class Doubled(nn.Module):
    """Attention in float64."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.double()
        return scaled_dot_product_attention(wide, wide, wide).float()


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (Attention(), sequences(length=1025)),
        (Attention(), sequences(width=24)),
        (Attention(), sequences()[:, 0]),
        (Attention(is_causal=True), sequences()),
        (Attention(dropout_p=1e-9), sequences()),
        (OverChannels(), sequences()),
        (Grouped(), sequences(heads=4)),
        (Shared(), sequences()),
        (Growing(), sequences()),
        (Doubled(), sequences()),
    ],
    ids=[
        "long",
        "narrow",
        "no heads",
        "causal",
        "dropout",
        "over channels",
        "grouped",
        "shared",
        "growing",
        "float64",
    ],
)
def test_other_attention_is_left_alone(module: nn.Module, x: Tensor) -> None:
    assert not apply(CpuAttention({}), module, x)[0]
