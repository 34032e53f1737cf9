"""Finds the layers that can compute in int8, and how far each alone would move the outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.passes.following import is_sum
from handoff.tasks.optimize.passes.state import lifted_tensors, state_name
from handoff.tasks.verify.float64 import flatten_tensors, graph_arguments

# Of each tensor so many values are looked at in a batch, evenly spread, and so many batches.
_VALUES_A_BATCH = 1 << 14
_BATCHES = 64
# Beside the whole range: parts of it, and percentiles at both ends.
_PARTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_TAILS = (1e-4, 1e-3, 1e-2)
LEVELS = 255


@dataclass(frozen=True)
class Grid:
    """The 256 numbers that a tensor can hold: `(q - zero) * scale` for q from 0 to 255."""

    scale: float
    zero: int

    def round(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the grid that are nearest, in the tensor's own shape and dtype."""
        steps = torch.clamp(torch.round(tensor / self.scale) + self.zero, 0, LEVELS)
        return (steps - self.zero) * self.scale


def grid_of(low: float, high: float) -> Grid:
    """Return the grid that spans both and has a zero of its own, as padding asks for."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / LEVELS, torch.finfo(torch.float32).tiny)
    return Grid(scale, round(-low / scale))


class Observer:
    """Sees a tensor's values batch by batch, and chooses the grid that rounds them least.

    Method: minimal mean squared error among clippings (Sung et al., 2015; MSE observer), of which
    the whole range (min-max) and percentiles are some, so that each is taken where it wins.
    """

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._low, self._high = 0.0, 0.0
        self._samples: list[torch.Tensor] = []

    def observe(self, tensor: torch.Tensor) -> None:
        """Take in a batch's values: a floating-point tensor of any shape; what isn't finite not."""
        flat = tensor.detach().flatten()
        flat = flat[flat.isfinite()]
        if not flat.numel():
            return
        self._low = min(self._low, float(flat.min()))
        self._high = max(self._high, float(flat.max()))
        if len(self._samples) < _BATCHES:
            step = -(-flat.numel() // _VALUES_A_BATCH)
            self._samples.append(flat[::step].double())

    def grid(self) -> Grid:
        """Return the grid to use; one of zeros alone where nothing else was seen."""
        min_max = grid_of(self._low, self._high)
        if not self._samples:
            return min_max
        values = torch.cat(self._samples)
        ends = torch.tensor([end for tail in _TAILS for end in (tail, 1 - tail)]).double()
        # torch.quantile takes 16 million elements at most.
        percentiles = torch.quantile(values[: 1 << 24], ends).tolist()
        ranges = [(self._low * part, self._high * part) for part in _PARTS]
        ranges += list(zip(percentiles[::2], percentiles[1::2], strict=True))
        grids = [min_max, *(grid_of(low, high) for low, high in ranges)]
        return min(grids, key=lambda grid: float((grid.round(values) - values).square().mean()))


_ATEN = torch.ops.aten
CONVOLUTION = _ATEN.conv2d.default
LINEAR = _ATEN.linear.default
_WITH_WEIGHTS = {
    LINEAR, CONVOLUTION, _ATEN.conv2d.padding, _ATEN.conv1d.default, _ATEN.conv1d.padding,
    _ATEN.conv3d.default, _ATEN.conv3d.padding, _ATEN.conv_transpose1d.default,
    _ATEN.conv_transpose2d.input, _ATEN.conv_transpose3d.input, _ATEN.convolution.default,
}  # fmt: skip
_LARGEST = 127

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Layer:
    """A convolution or a linear layer: its call, its input, and its weight.

    `source` is what has made the input's values, however they were laid out in memory since.
    """

    node: torch.fx.Node
    source: torch.fx.Node
    weight: torch.fx.Node


def find_layers(program: ExportedProgram) -> list[Layer]:
    """Return the float32 convolutions of images and linear layers whose weights are constants.

    Of one channel, how an image lies in memory is ambiguous, and oneDNN's result lies otherwise
    than Inductor (2.15) takes for granted: such a convolution, which is a small one, is left out.
    """
    return [
        Layer(node, source, weight)
        for node in program.graph.nodes
        if node.target in (CONVOLUTION, LINEAR)
        and isinstance(source := source_of(node.args[0]), torch.fx.Node)
        and isinstance(weight := node.args[1], torch.fx.Node)
        and state_name(program, weight)
        and all(map(_is_float32, (source, weight)))
        and weight.meta["val"].dim() == (4 if node.target is CONVOLUTION else 2)
        and not (node.target is CONVOLUTION and source.meta["val"].shape[1] == 1)
    ]


def find_float_layers(
    program: ExportedProgram, layers: Collection[torch.fx.Node]
) -> list[torch.fx.Node]:
    """Return the float32 convolutions and linear layers beside `layers`, of whatever kind."""
    return [
        node for node in program.graph.nodes
        if node.target in _WITH_WEIGHTS and node not in layers and _is_float32(node)
    ]  # fmt: skip


def source_of(value: object) -> object:
    """Return what has made a tensor's values, behind calls that lay them out in memory."""
    while isinstance(value, torch.fx.Node) and value.target is _ATEN.contiguous.default:
        value = value.args[0]
    return value


def _is_float32(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def find_summands(layers: Sequence[Layer]) -> list[torch.fx.Node]:
    """Return what is added to a convolution's result where that goes nowhere else.

    These are the tensors that have a grid beside the layers' own inputs: of such sums int8 is made.
    """
    summands: dict[torch.fx.Node, None] = {}
    for layer in layers:
        only, *more = [*layer.node.users, None]
        if layer.node.target is CONVOLUTION and more == [None] and is_sum(only):
            sources = [source_of(one) for one in only.args if one is not layer.node]
            summands |= dict.fromkeys(one for one in sources if isinstance(one, torch.fx.Node))
    return list(summands)


@dataclass(frozen=True)
class Int8Weight:
    """A weight `[out, ...]` as int8 of the same shape, with a float32 scale for each output."""

    steps: torch.Tensor
    scales: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """Return the weight that is computed with, float32 `[out, ...]`."""
        return self.steps.float() * self.scales.view(-1, *[1] * (self.steps.dim() - 1))


def quantize_weight(weight: torch.Tensor) -> Int8Weight:
    """Return a float32 weight `[out, ...]` as int8, symmetrically by its largest of each output."""
    value = weight.detach()
    # A row of zeros has no scale of its own, and needs none.
    tiny = torch.finfo(torch.float32).tiny
    scales = (value.flatten(1).abs().amax(dim=1) / _LARGEST).clamp(min=tiny)
    wide = scales.view(-1, *[1] * (value.dim() - 1))
    steps = (value / wide).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
    return Int8Weight(steps, scales)


class _ObservingInterpreter(torch.fx.Interpreter):
    """Shows the values of each observed node to its observer."""

    def __init__(
        self, module: torch.fx.GraphModule, observers: Mapping[torch.fx.Node, Observer]
    ) -> None:
        super().__init__(module)
        self._observers = observers

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        value = super().run_node(n)
        if n in self._observers:
            self._observers[n].observe(value)
        return value


def observe_grids(
    program: ExportedProgram, tensors: Iterable[torch.fx.Node], batches: Sequence[Tensors]
) -> dict[torch.fx.Node, Grid]:
    """Return the grid of each of the tensors, by what it held on `batches`.

    These are the program's inputs, of its own shapes and dtypes.
    """
    observers = {tensor: Observer() for tensor in tensors}
    observing = _ObservingInterpreter(program.graph_module, observers)
    with torch.no_grad():
        for batch in batches:
            observing.run(*[tensor.clone() for tensor in graph_arguments(program, batch)])
    return {node: observer.grid() for node, observer in observers.items()}


class _RoundingInterpreter(torch.fx.Interpreter):
    """Computes some layers as int8 would: their inputs on a grid, their weights on theirs."""

    def __init__(
        self, module: torch.fx.GraphModule, weights: Mapping[torch.fx.Node, torch.Tensor],
        grids: Mapping[torch.fx.Node, Grid],
    ) -> None:  # fmt: skip
        super().__init__(module)
        self._weights, self._grids = weights, grids

    def run_node(self, n: torch.fx.Node) -> Any:  # noqa: ANN401 - whatever the node returns
        if n not in self._weights:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        value = args[0]
        source = source_of(n.args[0])
        assert isinstance(source, torch.fx.Node)
        grid = self._grids.get(source) or grid_of(float(value.min()), float(value.max()))
        return self.call_function(n.target, (grid.round(value), self._weights[n], *args[2:]),
                                  kwargs)  # fmt: skip


def measure_influence(
    program: ExportedProgram,
    layers: Collection[Layer],
    grids: Mapping[torch.fx.Node, Grid],
    batch: Tensors,
) -> dict[Layer, float]:
    """Return how far each layer alone would move the outputs on `batch`, relative to their RMS.

    `batch` is of the program's own shapes and dtypes; a tensor without a grid gets that of its own
    values, as it will at each call.
    """
    tensors = lifted_tensors(program)
    exact = _run(program, {}, grids, batch)
    distances = {}
    for layer in layers:
        weights = {layer.node: quantize_weight(tensors[layer.weight.name]).dequantize()}
        distances[layer] = _relative_distance(_run(program, weights, grids, batch), exact)
    return distances


def _run(
    program: ExportedProgram, weights: Mapping[torch.fx.Node, torch.Tensor],
    grids: Mapping[torch.fx.Node, Grid], batch: Tensors,
) -> Tensors:  # fmt: skip
    rounding = _RoundingInterpreter(program.graph_module, weights, grids)
    with torch.no_grad():
        return flatten_tensors(
            rounding.run(*[tensor.clone() for tensor in graph_arguments(program, batch)])
        )


def _relative_distance(got: Tensors, exact: Tensors) -> float:
    """Return the largest relative RMS distance among the floating-point outputs."""
    largest = 0.0
    for one, other in zip(got, exact, strict=True):
        if other.is_floating_point() and other.numel():
            size = float(other.double().square().mean().sqrt())
            distance = float((one.double() - other.double()).square().mean().sqrt())
            largest = max(largest, distance / size if size else distance)
    return largest
