"""Runs the Triton kernel in Triton's interpreter; prints a verdict for each shape and fill.

    TRITON_INTERPRET=1 python -m tests.tasks.optimize.kernels.interpret_attention_pooling LIBRARY

Then come a row with an id outside its table and one with a kind outside, which are to be NaN and
alone in that, and one with an id changed behind the kernel's back, which is to be refused. Last,
since starting a process takes seconds, come the two lines of `calling_pooling` on the library.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor

ITEMS, KINDS = 40, 5
FILLS = (-1e9, -math.inf)
# Of rows, lengths and widths, with how many places at the left are absent in every row. The kernel
# takes 64 places at once: it meets blocks with none present before others, and behind them.
SHAPES = (
    (3, 50, 32, 0),
    (5, 7, 20, 0),
    (2, 130, 16, 0),
    (2, 64, 64, 0),
    (3, 150, 32, 70),
    (3, 200, 16, 130),
)


def draw(rows: int, length: int, width: int, absent: int = 0) -> dict[str, Tensor]:
    """Return the operator's tensors; the first row is all padding, and so are `absent` columns."""
    generator = torch.Generator().manual_seed(rows * length * width)
    ids = torch.randint(1, ITEMS, (rows, length), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.4] = 0
    ids[0] = 0
    ids[:, :absent] = 0
    return {
        "table": torch.randn(ITEMS, width, generator=generator),
        "ids": ids,
        "categories": torch.randn(KINDS, width, generator=generator),
        "kinds": torch.randint(KINDS, ids.shape, generator=generator),
        "gate": torch.rand(width, generator=generator),
        "weight": torch.rand(ids.shape, generator=generator),
        "target": torch.randn(rows, 1, width, generator=generator),
        "present": ids > 0,
    }


def _interpret(given: dict[str, Tensor], fill: float) -> tuple[Tensor, Tensor]:
    import triton

    from handoff.tasks.optimize.kernels.attention_pooling_triton import (
        BLOCK_LENGTH,
        attention_pooling_kernel,
    )

    (rows, length), width = given["ids"].shape, given["table"].shape[1]
    pooled = torch.empty(rows, width), torch.empty(rows, width)
    strided = [given[name] for name in ("ids", "kinds", "weight", "present")]
    attention_pooling_kernel[(rows,)](
        *given.values(), *pooled, *[stride for t in strided for stride in t.stride()],
        ITEMS, KINDS, length, width, 0.5, 0.2, 0.25, fill,
        BLOCK_L=BLOCK_LENGTH, BLOCK_W=triton.next_power_of_2(width),
    )  # fmt: skip
    return pooled


def _eager(given: dict[str, Tensor], fill: float) -> tuple[Tensor, Tensor]:
    from handoff.tasks.optimize.kernels.attention_pooling import attention_pooling

    pooled: tuple[Tensor, Tensor] = attention_pooling(*given.values(), 0.5, 0.2, 0.25, fill)
    return pooled


def _verdict(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor]) -> str:
    close = all(
        torch.allclose(g, w, rtol=1e-5, atol=1e-5, equal_nan=True)
        for g, w in zip(got, want, strict=True)
    )
    return "accepted" if close else "refused"


def _verdict_outside(name: str, value: int) -> str:
    given = draw(3, 50, 32)
    want = _eager(given, FILLS[0])
    given[name][1, given["present"][1].nonzero()[0]] = value
    for result in want:
        result[1] = math.nan
    return _verdict(_interpret(given, FILLS[0]), want)


def _verdict_changed() -> str:
    given = draw(3, 50, 32)
    result = _interpret(given, FILLS[0])
    given["ids"][1, given["present"][1].nonzero()[0]] += 1
    return _verdict(result, _eager(given, FILLS[0]))


if __name__ == "__main__":
    for shape in SHAPES:
        drawn = draw(*shape)
        print(*(_verdict(_interpret(drawn, fill), _eager(drawn, fill)) for fill in FILLS))
    print(_verdict_outside("ids", ITEMS), _verdict_outside("kinds", -1))
    print(_verdict_changed())
    from tests.tasks.optimize.kernels.calling_pooling import print_outcomes

    print_outcomes(Path(sys.argv[1]))
