"""Compute convolutions and linear layers in int8."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.fx
from torch.export import ExportedProgram

from handoff.tasks.optimize.int8.layers import (
    LINEAR,
    Layer,
    find_float_layers,
    find_layers,
    find_summands,
    measure_influence,
    observe_grids,
)
from handoff.tasks.optimize.int8.rewriting import Rewriter
from handoff.tasks.optimize.passes.base import Calibration
from handoff.tasks.optimize.passes.layout import LayoutPass
from handoff.tasks.optimize.passes.purity import is_written_behind, last_writes
from handoff.tasks.optimize.passes.state import drop_unused_state

_SUMS, _DYNAMIC = "static-sums", "dynamic"
_NAMES_AT_MOST = 12
_STATIC_KINDS = "convolutions of images and linear layers"
_DYNAMIC_KINDS = "linear layers"


class QuantizeInt8(LayoutPass):
    """Compute convolutions of images and linear layers in int8, each output's weights on a scale.

    Before: `y = relu(conv2d(x, W, b))`. After: `y = qconv(uint8(x / s + z), s, z, int8(W), ...)`,
    by oneDNN's own int8 operators, with the activation inside; a result that only such layers take
    stays int8.

    With `activations = "static"`, a tensor's scale and zero are chosen by what it held on the
    delivery's calibration batches (its examples, without any); with `"static-sums"` the sum of a
    convolution and of what goes past it stays int8, too; with `"dynamic"` scale and zero are found
    at each call, for linear layers alone. The layers that move the outputs most stay in float32, as
    many as `keep` says: `0.1` keeps a tenth.

    Conditions: float32 layers whose weights are constants. It rounds to 256 steps, which moves
    outputs by some percent of their size: the recipe's tolerance or its metric has to have room for
    it. Fast on processors with VNNI or AMX alone (`cpu-avx512-vnni`), and compiled with `freezing`.
    """

    name: ClassVar[str] = "quantize-int8"
    rounds: ClassVar[bool] = True
    parameters: ClassVar[Mapping[str, str]] = {
        "activations": "static, static-sums or dynamic",
        "keep": "the share of the layers that stays in float32, from 0 to 0.9",
    }
    forms: ClassVar[Mapping[str, str]] = {
        "activations": "static(-sums)?|dynamic",
        "keep": r"0\.?|0?\.([0-8][0-9]*|90*)",
    }

    def __init__(self, parameters: Mapping[str, str]) -> None:
        """Check the parameters; `UsageProblem` for a kind or a share that there isn't."""
        super().__init__(parameters)
        self._share = float(self.given["keep"])
        self._is_static = self.given["activations"] != _DYNAMIC
        self._fuses_sums = self.given["activations"] == _SUMS
        self._calibration = Calibration((), "")
        self._float_layers: dict[str, float] = {}
        self._notes: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """How many layers compute in int8, and which don't, with what they would have moved."""
        return self._notes

    def calibrate(self, calibration: Calibration) -> None:
        """Keep the batches to choose ranges by."""
        self._calibration = calibration

    def choose(self, program: ExportedProgram) -> list[torch.fx.Node]:
        """Return the layers to change."""
        nodes = [layer.node for layer in self._eligible_layers(program)]
        return [node for node in nodes if node.name not in self._float_layers]

    def call(self, program: ExportedProgram) -> bool:
        """Choose ranges and layers, and put int8 operators in their places."""
        self._float_layers, self._notes = {}, ()
        layers, batches = self._eligible_layers(program), self._calibration.batches
        observed = [layer.source for layer in layers]
        observed += find_summands(layers) if self._fuses_sums else ()
        grids = observe_grids(program, observed, batches) if self._is_static else {}
        count = math.ceil(self._share * len(layers))
        if count:
            moved = measure_influence(program, layers, grids, batches[0])
            worst = sorted(layers, key=lambda layer: -moved[layer])[:count]
            self._float_layers = {layer.node.name: moved[layer] for layer in worst}
        self._rewriter = Rewriter(program, grids, fuses_sums=self._fuses_sums)
        sources = (self._calibration.source,) if self._is_static and layers else ()
        others = find_float_layers(program, [layer.node for layer in layers])
        kinds = _STATIC_KINDS if self._is_static else _DYNAMIC_KINDS
        described = _describe_layers(layers, self._float_layers, others, kinds)
        self._notes = (*described, *sources)
        return super().call(program)

    def change(self, program: ExportedProgram, node: torch.fx.Node) -> None:
        """Replace one of them."""
        self._rewriter.replace(node)

    def clean_up(self, program: ExportedProgram) -> None:
        """Let int8 results stay int8 between such layers, and drop the float32 weights."""
        self._rewriter.connect()
        super().clean_up(program)
        drop_unused_state(program)

    def _eligible_layers(self, program: ExportedProgram) -> list[Layer]:
        # What is written to later holds something else then.
        writers = last_writes(program.graph)
        return [
            layer for layer in find_layers(program)
            if (self._is_static or layer.node.target is LINEAR)
            and not is_written_behind(layer.source, writers)
        ]  # fmt: skip


def _describe_layers(
    layers: Sequence[Layer], kept: Mapping[str, float], others: Sequence[torch.fx.Node], kinds: str
) -> list[str]:
    """Say how many of a program's layers compute in int8, and which don't, and why.

    `kept` are those of `layers` that could, with what they would have moved; `others` can't, since
    they are none of the `kinds` that do.
    """
    count, total = len(layers) - len(kept), len(layers) + len(others)
    notes = [f"{count} of {total} layers compute in int8"] if total else []
    if kept:
        notes.append(
            "in float32, since each alone would move the outputs by that share of their size: "
            + _enumerate([f"{name} ({moved:.2g})" for name, moved in kept.items()])
        )
    if others:
        notes.append(
            f"in float32, since this int8 is for {kinds} whose weights are the model's own as they "
            f"are: {_enumerate([node.name for node in others])}"
        )
    return notes


def _enumerate(names: Sequence[str]) -> str:
    left = len(names) - _NAMES_AT_MOST
    return ", ".join(names[:_NAMES_AT_MOST]) + (f" and {left} more" if left > 0 else "")
