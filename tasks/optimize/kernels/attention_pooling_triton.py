"""The CUDA kernel of `handoff::attention_pooling`; imported where one is launched or compiled."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from torch.library import wrap_triton

# Positions that a program holds at once: with 32 columns, 2048 values in registers.
BLOCK_LENGTH = 64


@triton.jit
def attention_pooling_kernel(
    table, ids, categories, kinds, gate, weight, target, present, total, attended,
    ids_stride, ids_step, kinds_stride, kinds_step, weight_stride, weight_step,
    present_stride, present_step, items, categories_known, length, width, mix, slope, scale, fill,
    BLOCK_L: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Pool one row of ids: blocks of its length in turn, the softmax rescaled as it goes on.

    The running softmax is that of Milakov and Gimelshein, Online normalizer calculation for
    softmax, 2018. Rows of the tables are loaded under a mask, so padding costs no memory traffic.

    Ids and kinds outside their tables are not read, and make both results NaN for the row that has
    one. A release's own checks bound no more than inputs with a declared range, and only where
    `check_values` is on: what the graph makes of them comes here unbounded. The CPU's function
    refuses the call instead; an assertion here would end every later call of the process, too.
    """
    n = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_W)
    inside = columns < width
    gates = tl.load(gate + columns, mask=inside, other=0.0)
    query = tl.load(target + n * width + columns, mask=inside, other=0.0)
    sums = tl.zeros([BLOCK_W], dtype=tl.float32)
    means = tl.zeros([BLOCK_W], dtype=tl.float32)
    largest = tl.full([], float("-inf"), tl.float32)
    everything = tl.full([], 0.0, tl.float32)
    seen = tl.zeros([BLOCK_L], dtype=tl.int1)
    unknown = tl.zeros([BLOCK_L], dtype=tl.int1)
    for start in range(0, length, BLOCK_L):
        places = start + tl.arange(0, BLOCK_L)
        valid = places < length
        mark = tl.load(present + n * present_stride + places * present_step, mask=valid, other=0)
        is_present = (mark != 0) & valid
        share = tl.load(weight + n * weight_stride + places * weight_step, mask=valid, other=0.0)
        needed = is_present | (share != 0.0)
        row = tl.load(ids + n * ids_stride + places * ids_step, mask=needed, other=0)
        kind = tl.load(kinds + n * kinds_stride + places * kinds_step, mask=needed, other=0)
        known = (row >= 0) & (row < items) & (kind >= 0) & (kind < categories_known)
        seen |= is_present
        unknown |= needed & ~known
        loaded = (needed & known)[:, None] & inside[None, :]
        values = tl.load(table + row[:, None] * width + columns[None, :], mask=loaded, other=0.0)
        values += mix * tl.load(
            categories + kind[:, None] * width + columns[None, :], mask=loaded, other=0.0
        )
        values *= gates[None, :]
        values = tl.where(values > 0.0, values, values * slope)
        sums += tl.sum(values * share[:, None], axis=0)
        score = tl.sum(values * query[None, :], axis=1) * scale
        score = tl.where(is_present, score, fill)
        score = tl.where(valid, score, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, axis=0))
        # With a fill of -inf there may be nothing larger yet, and its difference to itself is NaN.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        shrink = tl.exp(largest - base)
        exponent = tl.where(valid, tl.exp(score - base), 0.0)
        everything = everything * shrink + tl.sum(exponent, axis=0)
        present_exponent = tl.where(is_present, exponent, 0.0)
        means = means * shrink + tl.sum(values * present_exponent[:, None], axis=0)
        largest = larger
    # Where nothing is present attention is 0, as torch's is, whatever the softmax of the fill is.
    means = tl.where(tl.max(seen.to(tl.int32), axis=0) > 0, means / everything, 0.0)
    is_known = tl.max(unknown.to(tl.int32), axis=0) == 0
    sums = tl.where(is_known, sums, float("nan"))
    means = tl.where(is_known, means, float("nan"))
    tl.store(total + n * width + columns, sums, mask=inside)
    tl.store(attended + n * width + columns, means, mask=inside)


def launch(
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
    """Run the kernel, one program for each row of `ids` `[N, L]`; return `[N, W]` twice.

    Both are of the dtype of `table` `[V, W]`. What `composition` calls `[N, L]` may be strided; the
    kernel takes the rest for contiguous, and sums in float32.
    """
    rows, length = ids.shape
    width = table.shape[1]
    total, attended = table.new_empty((rows, width)), table.new_empty((rows, width))
    wrap_triton(attention_pooling_kernel)[(rows,)](
        table, ids, categories, kinds, gate, weight, target, present, total, attended,
        ids.stride(0), ids.stride(1), kinds.stride(0), kinds.stride(1),
        weight.stride(0), weight.stride(1), present.stride(0), present.stride(1),
        table.shape[0], categories.shape[0], length, width, mix, slope, scale, fill,
        BLOCK_L=BLOCK_LENGTH, BLOCK_W=triton.next_power_of_2(width),
    )  # fmt: skip
    return total, attended
