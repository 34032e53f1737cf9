"""What the original model gave, beside what another machine or a package gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# The golden outputs were computed on the training side's machine, whose kernels sum in another
# order; a float32 network of a hundred layers moves by less than this from that alone.
_RTOL = {"float32": 1e-3, "float64": 1e-6, "float16": 5e-2, "bfloat16": 1e-1}


def golden_difference(got: torch.Tensor, want: torch.Tensor, *, room: float = 0.0) -> str:
    """Return how `got` differs from `want` beyond what another machine explains, or nothing.

    They may be of any shape and dtype. `room` is by how much more each element may be off.
    """
    import torch

    if want.shape != got.shape or want.dtype != got.dtype:
        return f"{got.dtype} of shape {list(got.shape)}"
    finite = torch.isfinite(want)
    got_special, want_special = got[~finite], want[~finite]
    same = (got_special == want_special) | (got_special.isnan() & want_special.isnan())
    if not bool(same.all()):
        return "other elements that are NaN or infinite"
    # Infinities stay out of the bound's size: with one in it, any number would do.
    actual, expected = got[finite].double(), want[finite].double()
    rtol = _RTOL.get(str(want.dtype).removeprefix("torch."), 0.0)
    atol = room + (rtol * float(expected.abs().max()) if expected.numel() else 0.0)
    if torch.allclose(actual, expected, rtol=rtol, atol=atol):
        return ""
    return f"a difference of {float((actual - expected).abs().max()):.3g}"
