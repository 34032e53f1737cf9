"""Runs the Triton kernel in Triton's interpreter; prints a verdict for each shape.

    TRITON_INTERPRET=1 python -m tests.tasks.kernels.interpret_attention_pooling

The last one has an id changed behind the kernel's back, and is to be refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

ITEMS, KINDS = 40, 5


def draw(rows: int, length: int, width: int) -> dict[str, Tensor]:
    """Return the operator's tensors; the first row is all padding."""
    generator = torch.Generator().manual_seed(rows * length * width)
    ids = torch.randint(1, ITEMS, (rows, length), generator=generator)
    ids[torch.rand(ids.shape, generator=generator) < 0.4] = 0
    ids[0] = 0
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


def _interpret(given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    import triton

    from tasks.kernels.attention_pooling_triton import BLOCK_LENGTH, attention_pooling_kernel

    (rows, length), width = given["ids"].shape, given["table"].shape[1]
    pooled = torch.empty(rows, width), torch.empty(rows, width)
    strided = [given[name] for name in ("ids", "kinds", "weight", "present")]
    attention_pooling_kernel[(rows,)](
        *given.values(), *pooled, *[stride for t in strided for stride in t.stride()],
        length, width, 0.5, 0.2, 0.25, -1e9,
        BLOCK_L=BLOCK_LENGTH, BLOCK_W=triton.next_power_of_2(width),
    )  # fmt: skip
    return pooled


def _verdict(got: tuple[Tensor, Tensor], given: dict[str, Tensor]) -> str:
    from tasks.kernels.attention_pooling import attention_pooling

    want = attention_pooling(*given.values(), 0.5, 0.2, 0.25, -1e9)
    close = all(torch.allclose(g, w, rtol=1e-5, atol=1e-5) for g, w in zip(got, want, strict=True))
    return "accepted" if close else "refused"


if __name__ == "__main__":
    for shape in ((3, 50, 32), (5, 7, 20), (2, 130, 16), (2, 64, 64)):
        drawn = draw(*shape)
        print(_verdict(_interpret(drawn), drawn))
    changed = draw(3, 50, 32)
    result = _interpret(changed)
    changed["ids"][1, changed["present"][1].nonzero()[0]] += 1
    print(_verdict(result, changed))
