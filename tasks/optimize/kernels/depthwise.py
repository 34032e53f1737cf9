"""`handoff::depthwise`: convolutions of each channel alone, by a C++ function of our own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from handoff.tasks.optimize.kernels.activations import activate

# What the compiler puts into a package for the CPU.
SOURCE = Path(__file__).with_suffix(".cpp")
_ATEN = torch.ops.aten
# A vector of channels is what the function computes at once.
LEAST_CHANNELS = 16
_LAST = torch.channels_last


def composition(
    image: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    stride_y: int,
    stride_x: int,
    padding_y: int,
    padding_x: int,
    dilation_y: int,
    dilation_x: int,
    activation: int,
) -> Tensor:
    """Return what the operator does, in plain ATen."""
    kernel = taps.permute(2, 0, 1).unsqueeze(1)
    result: Tensor = _ATEN.conv2d.default(
        image, kernel, bias, [stride_y, stride_x], [padding_y, padding_x],
        [dilation_y, dilation_x], image.shape[1],
    )  # fmt: skip
    return activate(result, activation)


@torch.library.custom_op("handoff::depthwise_cpu", mutates_args=(), device_types="cpu")
def _depthwise_cpu(
    image: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    stride_y: int,
    stride_x: int,
    padding_y: int,
    padding_x: int,
    dilation_y: int,
    dilation_x: int,
    activation: int,
) -> Tensor:
    made = composition(
        image, taps, bias, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x,
        activation,
    )  # fmt: skip
    return made.contiguous(memory_format=_LAST)


@_depthwise_cpu.register_fake
def _fake_depthwise_cpu(
    image: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    stride_y: int,
    stride_x: int,
    padding_y: int,
    padding_x: int,
    dilation_y: int,
    dilation_x: int,
    activation: int,
) -> Tensor:
    batch, channels, height, width = image.shape
    rows, columns, _ = taps.shape
    height = (height + 2 * padding_y - dilation_y * (rows - 1) - 1) // stride_y + 1
    width = (width + 2 * padding_x - dilation_x * (columns - 1) - 1) // stride_x + 1
    return image.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)


@torch.library.triton_op("handoff::depthwise", mutates_args=())
def depthwise(
    image: Tensor,
    taps: Tensor,
    bias: Tensor | None,
    stride_y: int,
    stride_x: int,
    padding_y: int,
    padding_x: int,
    dilation_y: int,
    dilation_x: int,
    activation: int,
) -> Tensor:
    """Return the convolution of each channel of `[N, C, H, W]` with its own kernel, channels last.

    `taps` are the kernels as `[h, w, C]`, and `bias` has C numbers; padding is with zeros.
    `activation`, by its place in `activations.FUNCTIONS`, comes behind. All are float32, and C is
    `LEAST_CHANNELS` at least. Compilers see this body: on CUDA plain ATen, else the operator that
    stands for the C++ function.
    """
    given = (
        taps, bias, stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x, activation
    )  # fmt: skip
    if image.is_cuda:
        return composition(image, *given)
    result: Tensor = _depthwise_cpu(image.contiguous(memory_format=_LAST), *given)
    return result
