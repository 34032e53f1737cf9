"""Finds which of a model's outputs are losses: no package gives those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary


class LossWatch(TorchDispatchMode):
    """Follows what was computed from a loss module's result, in an eager run.

    Such a module gives its first argument while training's parts are left out, so that a loss in a
    dictionary of outputs would come out as a copy of that.
    """

    def __init__(self) -> None:
        """Begin with nothing marked."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._losses: Any = WeakTensorKeyDictionary()

    def mark(self, value: object) -> object:
        """Return a tensor of the same values that counts as a loss; what is no tensor as it is."""
        if not isinstance(value, torch.Tensor):
            return value
        alias = value.view_as(value)
        self._losses[alias] = True
        return alias

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: Any,  # noqa: ANN401 - as torch calls it
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator gives
        """Run the operator; what is computed from a loss is one."""
        result = func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, torch.Tensor) and leaf in self._losses for leaf in leaves):
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self._losses[leaf] = True
        return result

    def loss_indices(self, outputs: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Return the places of the outputs that are losses; none where all are.

        They may be of any shapes and dtypes.
        """
        found = tuple(index for index, one in enumerate(outputs) if one in self._losses)
        return found if len(found) < len(outputs) else ()
