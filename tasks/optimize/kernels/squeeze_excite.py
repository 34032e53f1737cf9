"""`handoff::squeeze_excite`: channels scaled by gates, by a C++ function of our own on the CPU."""

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
# What stands for a result that isn't brought onto a grid of uint8's: its scale, and its zero.
NO_GRID = (0.0, 0)
_LARGEST = 255


def composition(
    image: Tensor,
    squeeze: Tensor,
    squeeze_bias: Tensor | None,
    excite: Tensor,
    excite_bias: Tensor | None,
    activation: int,
    gate: int,
    scale: float,
    zero: int,
) -> Tensor:
    """Return what the operator does, in plain ATen."""
    means = image.mean((2, 3))
    hidden = activate(_ATEN.linear.default(means, squeeze, squeeze_bias), activation)
    gates = activate(_ATEN.linear.default(hidden, excite.t(), excite_bias), gate)
    scaled: Tensor = image * gates[:, :, None, None]
    if not scale:
        return scaled
    steps = torch.clamp(torch.round(scaled * (1.0 / scale)) + zero, 0, _LARGEST)
    return steps.to(torch.uint8)


@torch.library.custom_op("handoff::squeeze_excite_cpu", mutates_args=(), device_types="cpu")
def _squeeze_excite_cpu(
    image: Tensor,
    squeeze: Tensor,
    squeeze_bias: Tensor | None,
    excite: Tensor,
    excite_bias: Tensor | None,
    activation: int,
    gate: int,
    scale: float,
    zero: int,
) -> Tensor:
    # Sums and gates of what is in a lower precision are float32, as the C++ function's are.
    wide = torch.promote_types(image.dtype, torch.float32)
    made = composition(
        image.to(wide), squeeze.to(wide), None if squeeze_bias is None else squeeze_bias.to(wide),
        excite.to(wide), None if excite_bias is None else excite_bias.to(wide), activation, gate,
        scale, zero,
    )  # fmt: skip
    dtype = torch.uint8 if scale else image.dtype
    return torch.empty_like(image, dtype=dtype, memory_format=torch.channels_last).copy_(made)


@_squeeze_excite_cpu.register_fake
def _fake_squeeze_excite_cpu(
    image: Tensor,
    squeeze: Tensor,
    squeeze_bias: Tensor | None,
    excite: Tensor,
    excite_bias: Tensor | None,
    activation: int,
    gate: int,
    scale: float,
    zero: int,
) -> Tensor:
    batch, channels, height, width = image.shape
    dtype = torch.uint8 if scale else image.dtype
    return image.new_empty((batch, height, width, channels), dtype=dtype).permute(0, 3, 1, 2)


@torch.library.triton_op("handoff::squeeze_excite", mutates_args=())
def squeeze_excite(
    image: Tensor,
    squeeze: Tensor,
    squeeze_bias: Tensor | None,
    excite: Tensor,
    excite_bias: Tensor | None,
    activation: int,
    gate: int,
    scale: float,
    zero: int,
) -> Tensor:
    """Return `image` times gates that two layers make of its means, `[N, C, H, W]`.

    `squeeze` and `excite` are `[R, C]`, so the second layer's weights are transposed; biases have
    R and C numbers. `activation` follows the first layer and `gate` the second, by their places in
    `activations.FUNCTIONS`. All are float32, or all bfloat16, and C is `LEAST_CHANNELS` at least
    (J. Hu and others, *Squeeze-and-Excitation Networks*, 2018). With a `scale` other than 0 the
    result is uint8 on the grid `(q - zero) * scale`. Compilers see this body: on CUDA plain ATen,
    else the operator that stands for the C++ function, whose result has its channels last.
    """
    given = (squeeze, squeeze_bias, excite, excite_bias, activation, gate, scale, zero)
    if image.is_cuda:
        return composition(image, *given)
    channels_last = image.contiguous(memory_format=torch.channels_last)
    result: Tensor = _squeeze_excite_cpu(channels_last, *given)
    return result
