"""Casts whose result nothing defines: comparing those compares nothing.

What a cast gives of numbers that the whole type doesn't hold, and of NaN, C++ leaves open, and so
does PyTorch's documentation (`torch.Tensor.to`). Processors, and vectors beside single numbers,
give different ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OpenCasts(TorchDispatchMode):
    """While it is entered, notes the first cast whose result is left open: `float32 to int8`."""

    def __init__(self) -> None:
        """Begin with none noted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's own signature
        """Run the operator, and look at what it converts."""
        kwargs = kwargs or {}
        if not self.found:
            self._look(func._schema.name, args, kwargs)
        return func(*args, **kwargs)

    def _look(self, name: str, args: Any, kwargs: Any) -> None:  # noqa: ANN401
        if name == "aten::_to_copy":
            given, kind = args[0], kwargs.get("dtype")
        elif name == "aten::copy_":
            given, kind = args[1], args[0].dtype
        else:
            return
        if isinstance(kind, torch.dtype) and not _is_held(given, kind):
            of = str(given.dtype).removeprefix("torch.")
            self.found = f"{of} to {str(kind).removeprefix('torch.')}"


def _is_held(given: torch.Tensor, kind: torch.dtype) -> bool:
    """Tell whether a whole type holds all of some floating-point numbers, cut to whole ones.

    They may be of any shape; of other dtypes than floating-point all counts as held.
    """
    if not given.is_floating_point() or not given.numel():
        return True
    if kind.is_floating_point or kind.is_complex or kind is torch.bool:
        return True
    limits, wide = torch.iinfo(kind), given.double().trunc()
    return bool(((wide >= limits.min) & (wide <= limits.max)).all())
