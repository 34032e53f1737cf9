"""Lets torch.export follow what rounds as in training: it doesn't know what these operators give.

They are whole in libtorch, where eager and a package call them; only the shapes of their results,
which torch's fake tensors have for fixed sizes alone (2.11 to 2.15), are said here.
"""

from __future__ import annotations

import torch

_OPERATORS = (
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::fake_quantize_per_channel_affine_cachemask",
)


def _fake_cachemask(x: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors as the result, and the mask of what was within the range, are."""
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


for _operator in _OPERATORS:
    # A torch that knows them itself is left alone.
    if not torch._C._dispatch_has_kernel_for_dispatch_key(_operator, "Meta"):
        torch.library.register_fake(_operator, _fake_cachemask)
