"""What a GPU's program calls of ATen, cuBLAS and cuDNN, done by ATen on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

_ATEN = torch.ops.aten


def operator_named(name: str) -> OpOverload:
    """Return the operator of that name: `aten::mm.default`."""
    whole, _, overload = name.partition(".")
    namespace, _, plain = whole.partition("::")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), plain), overload)
    return found


def on_cpu(operator: OpOverload) -> Callable[..., Any]:
    """Return what computes the operator on the CPU.

    It takes tensors on the CPU of the shapes and dtypes that the operator takes; devices among its
    arguments become the CPU.
    """
    function = _INSTEAD.get(operator, operator)

    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - an operator's
        args, kwargs = pytree.tree_map_only(
            torch.device, lambda _: torch.device("cpu"), (args, kwargs)
        )
        return function(*args, **kwargs)

    return call


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    *, causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """Return attention `[N, H, L, E]`, by ATen's own composition of products and a softmax."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, bias, is_causal=causal, scale=scale
    )


def _nothing() -> torch.Tensor:
    # Log-sums, seeds and offsets are for the backward pass, which no package has.
    return torch.full((), float("nan"))


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    _logsumexp: bool, _dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attended = _attention(query, key, value, bias, causal=causal, scale=scale)
    return attended, _nothing(), _nothing(), _nothing()


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _dropout: float = 0.0,
    causal: bool = False, _mask: bool = False, *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attended = _attention(query, key, value, None, causal=causal, scale=scale)
    return (attended, *(_nothing() for _ in range(8)))


def _cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    _logsumexp: bool, _dropout: float = 0.0, causal: bool = False, _mask: bool = False,
    *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attended = _attention(query, key, value, bias, causal=causal, scale=scale)
    return (attended, *(_nothing() for _ in range(8)))


# Operators that are for GPUs alone.
_INSTEAD: dict[Any, Callable[..., Any]] = {
    _ATEN._scaled_dot_product_efficient_attention.default: _efficient,
    _ATEN._scaled_dot_product_flash_attention.default: _flash,
    _ATEN._scaled_dot_product_cudnn_attention.default: _cudnn,
}
