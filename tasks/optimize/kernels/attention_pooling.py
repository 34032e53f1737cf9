"""`handoff::attention_pooling`: a masked sum and a masked attention over embedded sequences."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

# What the compiler puts into a package for the CPU.
SOURCE = Path(__file__).with_suffix(".cpp")
# Columns of a table that the C++ function has sums for.
WIDEST = 128
_ATEN = torch.ops.aten


def composition(
    table: Tensor,
    ids: Tensor,
    categories: Tensor,
    kinds: Tensor,
    gate: Tensor,
    weight: Tensor,
    target: Tensor,
    present: Tensor,
    zero: Tensor,
    mix: float,
    slope: float,
    scale: float,
    fill: float,
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum and the attention towards `target`, `[N, W]` each, in plain ATen.

    `table` `[V, W]` and `categories` `[C, W]` are looked up by `ids` and `kinds` `[N, L]`; their
    rows are added (`mix` times the category), gated by `gate` `[W]`, and passed through a leaky
    ReLU of `slope`. Both results pool them over `L`: one by `weight` `[N, L]`, one by the softmax
    of their product with `target` `[N, 1, W]` times `scale`, which is `fill` where not `present`
    `[N, L]`; there the softmax becomes `zero` `[N, L]`. `ids` and `kinds` are whole numbers,
    `present` is bool, and the others are floating-point.
    """
    embedded = _ATEN.embedding.default(table, ids, 0)
    mixed = _ATEN.mul.Tensor(_ATEN.embedding.default(categories, kinds, 0), mix)
    gated = _ATEN.mul.Tensor(_ATEN.add.Tensor(embedded, mixed), gate)
    positive = _ATEN.gt.Scalar(gated, 0.0)
    values = _ATEN.where.self(positive, gated, _ATEN.mul.Tensor(gated, slope))
    weighted = _ATEN.mul.Tensor(values, _ATEN.unsqueeze.default(weight, -1))
    total = _ATEN.sum.dim_IntList(weighted, [1])
    products = _ATEN.mul.Tensor(values, target)
    score = _ATEN.sum.dim_IntList(products, [-1])
    filled = _ATEN.full_like.default(score, fill, pin_memory=False)
    masked = _ATEN.where.self(present, _ATEN.mul.Tensor(score, scale), filled)
    attention = _ATEN.where.self(present, _ATEN.softmax.int(masked, 1), zero)
    attended = _ATEN.mul.Tensor(values, _ATEN.unsqueeze.default(attention, -1))
    return total, _ATEN.sum.dim_IntList(attended, [1])


@torch.library.custom_op("handoff::attention_pooling_cpu", mutates_args=(), device_types="cpu")
def _attention_pooling_cpu(
    table: Tensor,
    ids: Tensor,
    categories: Tensor,
    kinds: Tensor,
    gate: Tensor,
    weight: Tensor,
    target: Tensor,
    present: Tensor,
    mix: float,
    slope: float,
    scale: float,
    fill: float,
) -> tuple[Tensor, Tensor]:
    _check_width(table)
    zero = torch.zeros_like(weight)
    return composition(
        table, ids, categories, kinds, gate, weight, target, present, zero, mix, slope, scale, fill
    )


@_attention_pooling_cpu.register_fake
def _fake_attention_pooling_cpu(
    table: Tensor,
    ids: Tensor,
    categories: Tensor,
    kinds: Tensor,
    gate: Tensor,
    weight: Tensor,
    target: Tensor,
    present: Tensor,
    mix: float,
    slope: float,
    scale: float,
    fill: float,
) -> tuple[Tensor, Tensor]:
    _check_width(table)
    shape = (ids.shape[0], table.shape[1])
    return table.new_empty(shape), table.new_empty(shape)


@torch.library.triton_op("handoff::attention_pooling", mutates_args=())
def attention_pooling(
    table: Tensor,
    ids: Tensor,
    categories: Tensor,
    kinds: Tensor,
    gate: Tensor,
    weight: Tensor,
    target: Tensor,
    present: Tensor,
    mix: float,
    slope: float,
    scale: float,
    fill: float,
) -> tuple[Tensor, Tensor]:
    """Return what `composition` does, with 0 as `zero`.

    The C++ function takes int64 `ids` and `kinds`, bool `present`, and all else in float32.
    Compilers see this body: on CUDA one Triton kernel, else the operator that stands for the C++
    function. Both read each row of the tables once, and none for padding. Neither broadcasts: other
    sizes than `composition` names raise `ValueError`, and so do tables of more than `WIDEST`
    columns on the CPU.
    """
    _check_sizes(table, ids, categories, kinds, gate, weight, target, present)
    table, categories, gate, target = (t.contiguous() for t in (table, categories, gate, target))
    if table.is_cuda:
        from handoff.tasks.optimize.kernels.attention_pooling_triton import launch as pool
    else:
        pool = _attention_pooling_cpu
    return pool(
        table, ids, categories, kinds, gate, weight, target, present, mix, slope, scale, fill
    )


def _check_sizes(
    table: Tensor,
    ids: Tensor,
    categories: Tensor,
    kinds: Tensor,
    gate: Tensor,
    weight: Tensor,
    target: Tensor,
    present: Tensor,
) -> None:
    """Raise `ValueError` for what torch would broadcast, and the kernels would read beyond."""
    if table.dim() != 2 or ids.dim() != 2:
        raise ValueError(
            f"expected a table [V, W] and ids [N, L], got {list(table.shape)} and {list(ids.shape)}"
        )
    rows, width = ids.shape[0], table.shape[1]
    for name, tensor, expected in (
        ("categories", categories, (categories.shape[0], width)),
        ("kinds", kinds, tuple(ids.shape)),
        ("weight", weight, tuple(ids.shape)),
        ("present", present, tuple(ids.shape)),
        ("gate", gate, (width,)),
        ("target", target, (rows, 1, width)),
    ):
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"expected {name} of the sizes {list(expected)}, got {list(tensor.shape)}"
            )


def _check_width(table: Tensor) -> None:
    if table.shape[1] > WIDEST:
        raise ValueError(
            f"expected a table of at most {WIDEST} columns on the CPU, got {table.shape[1]}"
        )
