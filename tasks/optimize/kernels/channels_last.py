"""`handoff::channels_last`: images laid out with their channels last, by our own C++ function."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

# What the compiler puts into a package for the CPU.
SOURCE = Path(__file__).with_suffix(".cpp")
# How many the function can put beside each other.
MOST_CHANNELS = 4
_LAST = torch.channels_last


@torch.library.custom_op("handoff::channels_last_cpu", mutates_args=(), device_types="cpu")
def _channels_last_cpu(image: Tensor, half: int) -> Tensor:
    result = torch.empty_like(
        image, dtype=torch.bfloat16 if half else image.dtype, memory_format=_LAST
    )
    return result.copy_(image)


@_channels_last_cpu.register_fake
def _fake_channels_last_cpu(image: Tensor, half: int) -> Tensor:
    batch, channels, height, width = image.shape
    dtype = torch.bfloat16 if half else image.dtype
    return image.new_empty((batch, height, width, channels), dtype=dtype).permute(0, 3, 1, 2)


@torch.library.triton_op("handoff::channels_last", mutates_args=())
def channels_last(image: Tensor, half: bool) -> Tensor:
    """Return a copy of `image` `[N, C, H, W]` with its channels last; in bfloat16 if `half`.

    It is float32, and C is 2 to 4. Compilers see this body: on CUDA torch's own conversions, else
    the operator that stands for the C++ function.
    """
    if image.is_cuda:
        return (image.bfloat16() if half else image).clone(memory_format=_LAST)
    result: Tensor = _channels_last_cpu(image.contiguous(), int(half))
    return result
