"""The form of what a model gives, read off a result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch.utils import _pytree as pytree

from handoff.artifacts.delivery.result import A_TENSOR, ResultForm, is_record_of

_UNKNOWN_VALUE = ResultForm("value")
_LONGEST_TEXT = 200


def form_of(result: object, losses: Sequence[int]) -> ResultForm | None:
    """Return the form of a result whose tensors at the places `losses` no package gives.

    None stands there, and where there is another value that can't be written. Returns None for a
    result that holds its tensors in a way, or an order, that no form has.
    """
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    tensors: list[torch.Tensor] = []
    form = _read_form(result, tensors, frozenset(losses))
    in_order = len(tensors) == len(leaves) and all(
        a is b for a, b in zip(tensors, leaves, strict=True)
    )
    return form if in_order else None


def _read_form(value: object, tensors: list[torch.Tensor], losses: frozenset[int]) -> ResultForm:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _UNKNOWN_VALUE if len(tensors) - 1 in losses else A_TENSOR
    fields = _fields_of(value)
    if fields is not None:
        parts = tuple((name, _read_form(part, tensors, losses)) for name, part in fields)
        names = [name for name, _ in fields]
        kind = type(value).__name__
        if is_record_of(kind, names):
            return ResultForm("record", name=kind, parts=parts)
        return ResultForm("dict", parts=parts)
    if isinstance(value, Mapping):
        entries = tuple(
            (key if isinstance(key, str | int) else str(key), _read_form(part, tensors, losses))
            for key, part in value.items()
        )
        return ResultForm("dict", parts=entries)
    if isinstance(value, list | tuple) or type(value) in pytree.SUPPORTED_NODES:
        children = value if isinstance(value, list | tuple) else _container_children(value)
        items = tuple(
            (index, _read_form(part, tensors, losses)) for index, part in enumerate(children)
        )
        return ResultForm("list" if isinstance(value, list) else "tuple", parts=items)
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        is_short = not isinstance(value, str) or (len(value) <= _LONGEST_TEXT)
        return ResultForm("value", value) if is_short else _UNKNOWN_VALUE
    return _UNKNOWN_VALUE


def _fields_of(value: object) -> list[tuple[str, object]] | None:
    """Return the fields of a named tuple, one of torch's own, or a dataclass; None for another.

    A dataclass that is a mapping, as Hugging Face's outputs are, is taken as that.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        if names is None and type(value).__module__ == "torch.return_types":
            names = getattr(type(value), "__match_args__", None)
        return None if names is None else list(zip(names, value, strict=True))
    return None


def _container_children(value: object) -> Sequence[object]:
    node = pytree.SUPPORTED_NODES[type(value)]
    children, _ = node.flatten_fn(value)
    return list(children)
