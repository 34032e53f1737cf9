"""`handoff::attention`: scaled dot product attention by a C++ function of our own on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

# What the compiler puts into a package for the CPU.
SOURCE = Path(__file__).with_suffix(".cpp")
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


@torch.library.custom_op("handoff::attention_cpu", mutates_args=(), device_types="cpu")
def _attention_cpu(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    attended: Tensor = _ATTENTION(query, key, value, mask, scale=scale)
    return attended.transpose(1, 2).contiguous().transpose(1, 2)


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
    all float32; `mask` is added, and may be broadcast. Compilers see this body: on CUDA torch's own
    attention, else the operator that stands for the C++ function, which keeps NaN (torch's own, in
    2.15, makes 0 of a NaN in a query if there is no mask and fewer keys than a vector has numbers).
    """
    if query.is_cuda:
        attended: Tensor = _ATTENTION(query, key, value, mask, scale=scale)
        return attended
    if mask is not None:
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if value.stride(-1) != 1:
        value = value.contiguous()
    result: Tensor = _attention_cpu(query, key, value, mask, scale)
    return result
