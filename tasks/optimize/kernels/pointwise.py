"""`handoff::pointwise` and `handoff::rows`: a C++ function of our own for products on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from handoff.tasks.optimize.kernels.activations import activate

# What the compiler puts into a package for the CPU.
SOURCE = Path(__file__).with_suffix(".cpp")
_ATEN = torch.ops.aten
# Channels that the function computes at once, and the blocks of them that lie beside each other.
_BLOCK = 16
_BLOCKS = 4
_LAST = torch.channels_last


def _groups(channels: int) -> list[list[int]]:
    """Return the output channels of each group; the last block overlaps the one before.

    What there isn't, where there are fewer than a block has, is -1.
    """
    if channels < _BLOCK:
        return [[*range(channels), *[-1] * (_BLOCK - channels)]]
    starts = [min(start, channels - _BLOCK) for start in range(0, channels, _BLOCK)]
    return [
        [start + n for start in starts[first : first + _BLOCKS] for n in range(_BLOCK)]
        for first in range(0, len(starts), _BLOCKS)
    ]


def pack(weight: Tensor) -> Tensor:
    """Return weights `[out, in]` in the order in which the function reads them, as one row.

    Of each group of blocks all numbers for the first input channel come first.
    """
    groups = _groups(weight.shape[0])
    # The last row is that of channels that there aren't.
    padded = torch.cat([weight, torch.zeros_like(weight[:1])])
    return torch.cat([padded[group].t().flatten() for group in groups]).contiguous()


def unpack(packed: Tensor, channels: int) -> Tensor:
    """Return the weights `[channels, in]` that were packed."""
    groups = _groups(channels)
    depth = packed.numel() // sum(map(len, groups))
    weight = packed.new_empty((channels + 1, depth))
    begin = 0
    for group in groups:
        end = begin + depth * len(group)
        weight[group] = packed[begin:end].view(depth, len(group)).t()
        begin = end
    return weight[:channels]


def composition(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    channels: int,
    activation: int,
) -> Tensor:
    """Return what the operator does, in plain ATen."""
    kernel = unpack(weight, channels)[:, :, None, None]
    result: Tensor = _ATEN.conv2d.default(image, kernel, bias)
    return activate(result if added is None else result + added, activation)


@torch.library.custom_op("handoff::pointwise_cpu", mutates_args=(), device_types="cpu")
def _pointwise_cpu(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    channels: int,
    activation: int,
) -> Tensor:
    made = composition(image, weight, bias, added, channels, activation)
    return made.contiguous(memory_format=_LAST)


@_pointwise_cpu.register_fake
def _fake_pointwise_cpu(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    channels: int,
    activation: int,
) -> Tensor:
    batch, _, height, width = image.shape
    return image.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)


@torch.library.triton_op("handoff::pointwise", mutates_args=())
def pointwise(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    channels: int,
    activation: int,
) -> Tensor:
    """Return the convolution of `[N, C, H, W]` by one point: `[N, channels, H, W]`, channels last.

    `weight` is what `pack` made of `[channels, C]`; `bias` has `channels` numbers, and `added` is
    of the result's shape. `activation`, by its place in `activations.FUNCTIONS`, comes behind both.
    All are float32. Compilers see this body: on CUDA plain ATen, else the operator that stands for
    the C++ function.
    """
    if image.is_cuda:
        return composition(image, weight, bias, added, channels, activation)
    result: Tensor = _pointwise_cpu(
        image.contiguous(memory_format=_LAST), weight, bias,
        None if added is None else added.contiguous(memory_format=_LAST), channels, activation,
    )  # fmt: skip
    return result


@torch.library.triton_op("handoff::rows", mutates_args=())
def rows(
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    added: Tensor | None,
    channels: int,
    activation: int,
) -> Tensor:
    """Return what a linear layer makes of `[..., C]`: `[..., channels]`, contiguous.

    The arguments are those of `pointwise`, by whose function it is computed: each row is a point.
    """
    sizes = given.shape[:-1]
    images = [
        one.reshape(-1, one.shape[-1])[:, :, None, None]
        for one in (given.contiguous(), *([] if added is None else [added.contiguous()]))
    ]
    image, more = images[0], images[1] if added is not None else None
    call = composition if given.is_cuda else _pointwise_cpu
    made = call(image, weight, bias, more, channels, activation)
    return made.reshape(*sizes, channels)
