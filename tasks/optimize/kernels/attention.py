"""`handoff::attention`: scaled dot product attention by a C++ function of our own on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

# What the compiler puts into a package for the CPU.
SOURCE = Path(__file__).with_suffix(".cpp")
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


def computes_attention_in(dtype: torch.dtype, depth: int) -> bool:
    """Return whether heads of `depth` numbers of the dtype can be given to the operator.

    In bfloat16 two of a query's numbers are multiplied at once.
    """
    return dtype is torch.float32 or (dtype is torch.bfloat16 and depth % 2 == 0)


@torch.library.custom_op("handoff::attention_cpu", mutates_args=(), device_types="cpu")
def _attention_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    # Torch's takes a mask of the others' dtype; in bfloat16 it would round what is to be added.
    wide = torch.promote_types(query.dtype, torch.float32)
    parts = [one.to(wide) for one in (query, key, value)]
    attended: Tensor = _ATTENTION(*parts, mask, scale=scale)
    return attended.to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)


@_attention_cpu.register_fake
def _fake_attention_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    batch, heads, length, _ = query.shape
    return query.new_empty((batch, length, heads, value.shape[-1])).transpose(1, 2)


@torch.library.triton_op("handoff::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    """Return the softmax of `query @ key.T * scale + mask`, times `value`: `[B, H, Q, W]`.

    `query` is `[B, H, Q, D]`, `key` `[B, H, K, D]`, `value` `[B, H, K, W]` with W a multiple of 16,
    all float32, or all bfloat16 with D even; `mask` is added, may be broadcast, and is float32 or
    of their dtype. Compilers see this body: on CUDA torch's own attention, else the operator that
    stands for the C++ function, which keeps NaN (torch's own, in 2.15, makes 0 of a NaN in a query
    if there is no mask and fewer keys than a vector has numbers), and adds a mask in float32.
    """
    if query.is_cuda:
        mask = mask if mask is None else mask.to(query.dtype)
        attended: Tensor = _ATTENTION(query, key, value, mask, scale=scale)
        return attended
    if mask is not None:
        mask = mask.to(torch.promote_types(query.dtype, torch.float32))
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if query.dtype is torch.bfloat16:
        query = query if query.stride(-1) == 1 else query.contiguous()
        key = key if key.stride(-1) == 1 else key.contiguous()
    if value.stride(-1) != 1:
        value = value.contiguous()
    result: Tensor = _attention_cpu(query, key, value, mask, scale)
    return result
