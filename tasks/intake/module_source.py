"""What `module.py` says, as plain values: the layers it makes, and the steps of its forward."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ref:
    """The value of an earlier step, by the name that it was given."""

    name: str


@dataclass(frozen=True)
class StepSource:
    """One node of the graph to be: torch.fx's op, target and arguments, and the line it is on."""

    op: str
    name: str
    target: object
    args: tuple[object, ...]
    kwargs: dict[str, object]
    line: int


@dataclass(frozen=True)
class LayerSource:
    """A child written as its repr, such as `Linear(in_features=8, out_features=4, bias=True)`."""

    kind: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


@dataclass(frozen=True)
class ChildSource:
    """A direct child: a layer, or None where it lies in `<name>.pt`."""

    name: str
    layer: LayerSource | None
    line: int


@dataclass(frozen=True)
class TensorSource:
    """A parameter or buffer of the module itself: its shape and the name of its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    is_parameter: bool
    line: int


@dataclass(frozen=True)
class ModuleSource:
    """All that `module.py` says; `folder` is where it says that its `.pt` files lie."""

    class_name: str
    children: tuple[ChildSource, ...]
    tensors: tuple[TensorSource, ...]
    steps: tuple[StepSource, ...]
    wrapped: tuple[str, ...] = ()
    folder: str = ""
