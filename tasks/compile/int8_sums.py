"""How Inductor compiles a convolution in int8 that adds what goes past it.

oneDNN writes the sum to where the summand was: as `handoff::int8_convolution_packed` says, the
operator in the graph takes a copy, and Inductor leaves that out where nobody else reads the summand
any more.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def lower_int8_sums() -> None:
    """Have Inductor lower such convolutions to oneDNN's own; once in a process is enough.

    Seen with torch 2.15; its own lowering of `onednn::qconv2d_pointwise.binary` is what is called.
    """
    # Inductor is imported by whoever compiles alone.
    from torch._inductor.lowering import lowerings, register_lowering

    @register_lowering(
        torch.ops.handoff.int8_convolution_packed.default, type_promotion_kind=None
    )  # fmt: skip
    def lower(*arguments: Any) -> Any:  # noqa: ANN401 - Inductor's own values
        *layer, added, added_scale, added_zero, onto, activation = arguments
        copied = lowerings[torch.ops.aten.clone](added, memory_format=torch.channels_last)
        layer[_BIAS:_BIAS] = [copied]
        return lowerings[torch.ops.onednn.qconv2d_pointwise.binary](
            *layer, onto[0], int(onto[1]), torch.uint8, added_scale, added_zero, "sum", 1.0,
            activation, [], "",
        )  # fmt: skip


# The bias' place among the arguments of both.
_BIAS = 6
