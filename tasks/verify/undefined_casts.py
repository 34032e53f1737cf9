"""Casts whose result nothing defines: comparing those compares nothing.

What a cast gives of numbers that the whole type doesn't hold, and of NaN, C++ leaves open, and so
does PyTorch's documentation (`torch.Tensor.to`). Processors, and vectors beside single numbers,
give different ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class UndefinedCasts(TorchDispatchMode):
    """While it is entered, notes the first cast whose result is left open: `float32 to int8`."""

    def __init__(self) -> None:
        """Begin with none noted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.first_cast = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator, and look at what it converts."""
        kwargs = kwargs or {}
        if not self.first_cast:
            self._inspect_cast(func._schema.name, args, kwargs)
        return func(*args, **kwargs)

    def _inspect_cast(self, name: str, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        if name == "aten::_to_copy":
            source, dtype = args[0], kwargs.get("dtype")
        elif name == "aten::copy_":
            source, dtype = args[1], args[0].dtype
        else:
            return
        if isinstance(dtype, torch.dtype) and not _fits(source, dtype):
            source_name = str(source.dtype).removeprefix("torch.")
            self.first_cast = f"{source_name} to {str(dtype).removeprefix('torch.')}"


def _fits(source: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a whole type holds all of some floating-point numbers, cut to whole ones.

    They may be of any shape; of other dtypes than floating-point all counts as held.
    """
    if not source.is_floating_point() or not source.numel():
        return True
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return True
    limits, numbers = torch.iinfo(dtype), source.double().trunc()
    return bool(((numbers >= limits.min) & (numbers <= limits.max)).all())
