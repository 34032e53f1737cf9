"""Kinds of miscompilation that are planted in the graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.export import ExportedProgram

from tests.studies.faults.planting import (
    GraphFault,
    calls_of,
    insert_behind,
    stand_in,
    with_argument,
    with_changed,
    with_keyword,
    with_swapped_operands,
    without_call,
)

aten = torch.ops.aten


def _with_a_call_behind(
    operator: str, call: object, *arguments: object
) -> Callable[[ExportedProgram], None]:
    def plant(program: ExportedProgram) -> None:
        insert_behind(program, calls_of(program, operator)[0], (call, arguments))

    return plant


def _through(operator: str, low: torch.dtype, back: torch.dtype) -> Callable[..., None]:
    """Return what rounds the result of the last call to another type, and back."""

    def plant(program: ExportedProgram) -> None:
        node = calls_of(program, operator)[-1]
        insert_behind(program, node, (aten.to.dtype, (low,)), (aten.to.dtype, (back,)))

    return plant


def _by_another(operator: str, other: torch._ops.OpOverload) -> Callable[..., None]:
    def plant(program: ExportedProgram) -> None:
        calls_of(program, operator)[0].target = other

    return plant


def _without_residual(program: ExportedProgram) -> None:
    node = calls_of(program, "aten.add.Tensor")[0]
    stand_in(program, node, node.args[1])


def _with_other_order(program: ExportedProgram) -> None:
    node = calls_of(program, "aten.cat.default")[0]
    parts = node.args[0]
    assert isinstance(parts, list | tuple)
    node.args = (list(parts)[::-1], *node.args[1:])


def _with_last_of_equals(program: ExportedProgram) -> None:
    """Take the last of equal largest elements: the place from the other end, of what is flipped."""
    node = calls_of(program, "aten.argmax.default")[0]
    values = node.args[0]
    assert isinstance(values, torch.fx.Node)
    with program.graph.inserting_before(node):
        flipped = program.graph.call_function(aten.flip.default, (values, [1]))
    flipped.meta["val"] = aten.flip.default(values.meta["val"], [1])
    node.replace_input_with(values, flipped)
    last = values.meta["val"].shape[1] - 1
    insert_behind(program, node, (aten.rsub.Scalar, (last,)))


def _with_shifted_ids(program: ExportedProgram) -> None:
    node = calls_of(program, "aten.embedding.default")[0]
    ids = node.args[1]
    assert isinstance(ids, torch.fx.Node)
    insert_behind(program, ids, (aten.add.Scalar, (1,)), (aten.clamp_max.default, (49,)))


def _with_padding_row(table: torch.Tensor) -> torch.Tensor:
    table[0] = table[1:].mean(0)
    return table


def _with_swapped_gates(weight: torch.Tensor) -> torch.Tensor:
    first, second, *others = weight.chunk(4)
    return torch.cat([second, first, *others])


def _in_bfloat16(program: ExportedProgram) -> None:
    """Compute a linear layer in bfloat16. A cast there and back is what Inductor leaves out."""
    node = calls_of(program, "aten.linear.default")[1]
    for operand in node.all_input_nodes:
        with program.graph.inserting_before(node):
            low = program.graph.call_function(aten.to.dtype, (operand, torch.bfloat16))
        low.meta["val"] = operand.meta["val"].to(torch.bfloat16)
        node.replace_input_with(operand, low)
    insert_behind(program, node, (aten.to.dtype, (torch.float32,)))


def _with_a_nan_for_numbers(program: ExportedProgram) -> None:
    insert_behind(program, calls_of(program, "aten.log.default")[0], (aten.nan_to_num.default, ()))


GRAPH_KINDS: tuple[GraphFault, ...] = (
    GraphFault(
        "wrong constant", "A factor of 0.5 is 0.51.", "perceptron",
        with_argument("aten.mul.Tensor", 1, 0.51),
    ),
    GraphFault(
        "swapped operands of sub", "a - b is b - a.", "arithmetic",
        with_swapped_operands("aten.sub.Tensor"),
    ),
    GraphFault(
        "swapped operands of div", "a / b is b / a.", "arithmetic",
        with_swapped_operands("aten.div.Tensor"),
    ),
    GraphFault(
        "wrong eps in layer norm", "1e-5 is 1e-3.", "attention",
        with_argument("aten.layer_norm.default", 4, 1e-3),
    ),
    GraphFault(
        "wrong eps in batch norm", "1e-5 is 1e-3.", "perceptron",
        with_argument("aten.batch_norm.default", 7, 1e-3),
    ),
    GraphFault(
        "lost mask", "Attention takes padding in.", "attention",
        without_call("aten.masked_fill.Scalar"),
    ),
    GraphFault(
        "truncated to bfloat16", "A linear layer is computed in bfloat16.", "perceptron",
        _in_bfloat16,
    ),
    GraphFault(
        "truncated to int32", "64-bit numbers lose their upper half.", "discrete",
        _through("aten.mul.Tensor", torch.int32, torch.int64),
    ),
    GraphFault(
        "stale weights", "One tensor is of an earlier step of training.", "attention",
        with_changed("value.weight", lambda weight: weight * 0.999),
    ),
    GraphFault(
        "transposed weight", "A square weight is read by columns.", "perceptron",
        with_changed("middle.weight", lambda weight: weight.T),
    ),
    GraphFault(
        "swapped gates", "An LSTM's input and forget gates have each other's weights.", "recurrent",
        with_changed("lstm.weight_ih_l0", _with_swapped_gates),
    ),
    GraphFault(
        "padding row not zero", "Id 0, which stands for none, has a vector.", "embedded",
        with_changed("items.weight", _with_padding_row),
    ),
    GraphFault(
        "running mean left out", "Batch norm is folded without its mean.", "convolutional",
        with_changed("norm.running_mean", torch.zeros_like),
    ),
    GraphFault(
        "wrong softmax dimension", "Scores are normalised over the queries.", "attention",
        with_argument("aten.softmax.int", 1, -2),
    ),
    GraphFault(
        "broadcast over the wrong axis", "A mean over columns is taken off the rows.", "arithmetic",
        with_argument("aten.mean.dim", 1, [-2]),
    ),
    GraphFault(
        "dropped bias", "A linear layer is left without its bias.", "attention",
        with_argument("aten.linear.default", 2, None, which=2),
    ),
    GraphFault(
        "dropped activation", "A GELU is left out.", "perceptron",
        without_call("aten.gelu.default"),
    ),
    GraphFault(
        "GELU by tanh", "The approximation stands for the function.", "attention",
        with_keyword("aten.gelu.default", "approximate", "tanh"),
    ),
    GraphFault(
        "sigmoid approximated", "Three straight lines stand for a sigmoid.", "perceptron",
        _by_another("aten.sigmoid.default", aten.hardsigmoid.default),
    ),
    GraphFault(
        "missing residual", "What goes around a block is not added.", "attention",
        _without_residual,
    ),
    GraphFault(
        "truncating division", "-1 // 3 is 0 and not -1.", "discrete",
        with_keyword("aten.div.Tensor_mode", "rounding_mode", "trunc"),
    ),
    GraphFault(
        "halves rounded down", "1.5 is rounded to 1: another mode.", "discrete",
        _by_another("aten.round.default", aten.floor.default),
    ),
    GraphFault(
        "wrong bound of clamp", "The upper bound is not applied.", "arithmetic",
        with_argument("aten.clamp.default", 2, None),
    ),
    GraphFault(
        "off-by-one slice", "1:5 is 0:4.", "arithmetic",
        lambda program: (with_argument("aten.slice.Tensor", 2, 0)(program),
                         with_argument("aten.slice.Tensor", 3, 4)(program))[0],
    ),
    GraphFault(
        "joined in another order", "cat([a, b]) is cat([b, a]).", "arithmetic",
        _with_other_order,
    ),
    GraphFault(
        "wrong divisor of a variance", "n stands for n - 1.", "arithmetic",
        with_argument("aten.var.dim", 2, False),
    ),
    GraphFault(
        "cumulated along another axis", "Rows are added up and not columns.", "arithmetic",
        with_argument("aten.cumsum.default", 1, 2),
    ),
    GraphFault(
        "NaN made a number", "log(-1) is 0.", "arithmetic",
        _with_a_nan_for_numbers,
    ),
    GraphFault(
        "last of equals", "argmax gives the last of the largest, not the first.", "discrete",
        _with_last_of_equals,
    ),
    GraphFault(
        "shifted ids", "Each id takes the next one's row.", "embedded",
        _with_shifted_ids,
    ),
    GraphFault(
        "padding left out of a mean", "Average pooling divides by what lies inside.",
        "convolutional", with_argument("aten.avg_pool2d.default", 5, False),
    ),
    GraphFault(
        "corners aligned", "Interpolation takes another grid.", "convolutional",
        with_argument("aten.upsample_bilinear2d.vec", 2, True),
    ),
)  # fmt: skip
