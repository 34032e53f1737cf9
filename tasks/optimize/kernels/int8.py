"""`handoff::int8_convolution`, `handoff::int8_linear` and kin: layers that oneDNN computes in int8.

Their bodies, which compilers see, are operators of libtorch's: one packs the weight, which is done
once where the compiler folds constants (`freezing`), the other takes it. A graph with those alone
couldn't be written: torch.export (2.11 to 2.15) has no form for their empty lists of numbers.

What is given is uint8 on a grid, `(q - zero) * scale`; the weight int8 `[out, ...]`, symmetric,
with a float32 scale `[out]`. The result is float32, or uint8 on the grid that `onto` gives (scale
and zero, as floats).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ONEDNN = torch.ops.onednn
_PREPACK = "onednn::qconv_prepack"
# A torch that knows what this one gives is left alone.
if not torch._C._dispatch_has_kernel_for_dispatch_key(_PREPACK, "Meta"):
    torch.library.register_fake(_PREPACK, lambda weight, *_: torch.empty_like(weight))


def _output_format(onto: Sequence[float]) -> tuple[float, int, torch.dtype]:
    return (onto[0], int(onto[1]), torch.uint8) if onto else (1.0, 0, torch.float32)


def _post_op(activation: str) -> tuple[str, list[float], str]:
    """Return the activation as oneDNN takes it: its name, its numbers, and how it is computed."""
    name, *more = activation.split(":")
    if name == "hardtanh":
        return name, [float(number) for number in more], ""
    return name, [], "".join(more)


def _likely_sizes(images: Tensor) -> list[int]:
    """Return an image batch's sizes, in the place of dynamic ones what the example had.

    oneDNN packs a weight for those. Packed for none, it may lie otherwise than each call needs it,
    and is rearranged there: 512 to 512 channels of 7 x 7 took three times as long at a batch of 1,
    and 1.6 times at 4. What it chooses for one batch does for all from 1 to 64 (2.15, AVX-512).
    """
    sizes: list[Any] = [*images.shape]
    return [size if isinstance(size, int) else size.node.hint or _DEFAULT_SIZE for size in sizes]


# In the place of a size that nothing is known of.
_DEFAULT_SIZE = 16


def _prepack_convolution(
    steps: Tensor, grid: tuple[float, int], weight: tuple[Tensor, Tensor], form: tuple[Any, ...]
) -> Tensor:
    """Return a convolution's weight, given with its scales, as oneDNN takes it for `steps`."""
    result: Tensor = _ONEDNN.qconv_prepack(*weight, *grid, *form, _likely_sizes(steps))
    return result


@torch.library.triton_op("handoff::int8_convolution", mutates_args=())
def int8_convolution(
    steps: Tensor,
    scale: float,
    zero: int,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    onto: Sequence[float],
    activation: str,
) -> Tensor:
    """Return the convolution of uint8 `[N, C, H, W]` with an int8 weight `[out, C/groups, h, w]`.

    `bias` is float32 `[out]`; `activation` is `none`, `relu`, `hardswish`, `swish` (which is SiLU),
    `hardtanh:LOW:HIGH` or `gelu:HOW`, as oneDNN calls them. The result is
    `[N, out, H', W']`, with channels last.
    """
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    form = (list(stride), list(padding), list(dilation), groups)
    packed = _prepack_convolution(steps, (scale, zero), (weight, scales), form)
    result: Tensor = _ONEDNN.qconv_pointwise.default(
        steps,
        scale,
        zero,
        packed,
        scales,
        zeros,
        bias,
        *form,
        *_output_format(onto),
        *_post_op(activation),
    )
    return result


@torch.library.custom_op("handoff::int8_convolution_packed", mutates_args=())
def int8_convolution_packed(
    steps: Tensor,
    scale: float,
    zero: int,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    added: Tensor,
    added_scale: float,
    added_zero: int,
    onto: Sequence[float],
    activation: str,
) -> Tensor:
    """Return what `int8_convolution_added` does, with a weight that is packed already.

    oneDNN writes the sum to where the summand was. An operator that changes what it is given can't
    be traced here (its functional form has no kernel while Inductor freezes, 2.15), so this one
    takes a copy, and what compiles lowers it to oneDNN's (`tasks.compile.int8_sums`).
    """
    result = added.clone(memory_format=torch.channels_last)
    _ONEDNN.qconv2d_pointwise.binary(
        steps, scale, zero, packed, scales, zeros, result, bias,
        stride, padding, dilation, groups, *_output_format(onto), added_scale, added_zero,
        "sum", 1.0, activation, [], "",
    )  # fmt: skip
    return result


@int8_convolution_packed.register_fake
def _fake_convolution_packed(*arguments: Any) -> Tensor:  # noqa: ANN401 - of the operator's own types
    return torch.empty_like(arguments[_SUMMAND], memory_format=torch.channels_last)


# The summand's place among the arguments above.
_SUMMAND = 11


@torch.library.triton_op("handoff::int8_convolution_added", mutates_args=())
def int8_convolution_added(
    steps: Tensor,
    scale: float,
    zero: int,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    added: Tensor,
    added_scale: float,
    added_zero: int,
    onto: Sequence[float],
    activation: str,
) -> Tensor:
    """Return the sum of `int8_convolution` and of `added`, uint8 `[N, out, H', W']` on its grid.

    The result is uint8 on the grid `onto`; `activation`, which comes behind the sum, is `none` or
    `relu`.
    """
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    form = (list(stride), list(padding), list(dilation), groups)
    packed = _prepack_convolution(steps, (scale, zero), (weight, scales), form)
    result: Tensor = torch.ops.handoff.int8_convolution_packed(
        steps, scale, zero, packed, scales, zeros, bias, *form, added, added_scale, added_zero,
        list(onto), activation,
    )  # fmt: skip
    return result


@torch.library.triton_op("handoff::int8_linear", mutates_args=())
def int8_linear(
    steps: Tensor,
    scale: float,
    zero: int,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    onto: Sequence[float],
    activation: str,
) -> Tensor:
    """Return uint8 `[..., in]` times the transposed int8 weight `[out, in]`: `[..., out]`.

    `bias` is float32 `[out]`; `activation` is as `int8_convolution` has it.
    """
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    packed = _ONEDNN.qlinear_prepack(weight, None)
    result: Tensor = _ONEDNN.qlinear_pointwise.default(
        steps,
        scale,
        zero,
        packed,
        scales,
        zeros,
        bias,
        *_output_format(onto),
        *_post_op(activation),
    )
    return result


@torch.library.triton_op("handoff::int8_linear_measured", mutates_args=())
def int8_linear_measured(
    steps: Tensor,
    scale: Tensor,
    zero: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    onto: Sequence[float],
    activation: str,
) -> Tensor:
    """Return what `int8_linear` does, of a grid that was found at this call.

    `scale` is float32 and `zero` int32, of one element each.
    """
    zeros = torch.zeros_like(scales, dtype=torch.int32)
    packed = _ONEDNN.qlinear_prepack(weight, None)
    result: Tensor = _ONEDNN.qlinear_pointwise.tensor(
        steps,
        scale,
        zero,
        packed,
        scales,
        zeros,
        bias,
        *_output_format(onto),
        *_post_op(activation),
    )
    return result
