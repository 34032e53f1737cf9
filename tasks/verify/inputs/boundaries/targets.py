"""At which values an operator decides: its constants, and the steps of what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from handoff.tasks.verify.inputs.boundaries.tracing import OperatorUse

# What a case is about, in the order of the plan. `edges`, `beyond` and `large quotients` leave what
# was drawn; the others lie where drawn numbers lie.
Kind = Literal[
    "constants", "multiples", "steps", "equal inputs", "edges", "beyond", "large quotients"
]

_BETWEEN_ZEROS = frozenset({
    "abs", "sign", "sgn", "relu", "leaky_relu", "elu", "celu", "selu", "heaviside", "log", "log2",
    "log10", "sqrt", "rsqrt", "reciprocal", "sinc", "xlogy", "copysign", "signbit", "logical_not",
    "prelu", "_prelu_kernel", "lgamma", "digamma",
})  # fmt: skip
_AT_ONES = frozenset({"acos", "asin", "atanh", "acosh", "logit", "erfinv"})
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_CHOICES = frozenset({"maximum", "minimum", "fmax", "fmin", "clamp_min", "clamp_max"})
_DIVISIONS = frozenset({"remainder", "fmod", "floor_divide"})
_STEPS = frozenset({"floor", "ceil", "trunc", "fix", "frac", "round"})
# Where functions saturate, overflow float32, lose digits, or change the formula that computes them.
_EDGES: dict[str, tuple[float, ...]] = {
    "exp": (88.7, 89.0, -87.4, -103.0, 1e-8), "exp2": (127.9, 128.1, -126.5, -149.0),
    "expm1": (1e-8, -1e-8, 88.8, -20.0), "log1p": (1e-8, -1e-8, -0.9999999, 1e8),
    "log": (1.0000001, 0.9999999, 1e-38, 1e30), "log2": (1.0000001, 1e-38, 1e30),
    "log10": (1.0000001, 1e-38, 1e30), "sigmoid": (17.0, -17.0, 89.0, -89.0, -104.0),
    "log_sigmoid_forward": (-20.0, 20.0, -104.0, 104.0), "tanh": (9.0, -9.0, 1e-5, 90.0),
    "softplus": (19.9, 20.1, -20.0, -104.0), "gelu": (-6.0, 6.0, -13.0, 1e4),
    "silu": (-20.0, 20.0, -89.0, -104.0), "mish": (20.0, -20.0, -104.0), "erf": (4.0, -4.0, 1e-6),
    "erfc": (9.0, 10.1, -6.0), "erfinv": (0.9999999, -0.9999999, 1e-8), "sinh": (89.0, -89.0, 1e-5),
    "cosh": (89.0, -89.0, 1e-5), "sin": (3.1415927, 1e4, 1e5), "cos": (1.5707964, 1e4, 1e5),
    "tan": (1.5707964, 3.1415927, 1e4), "atan": (1e-8, 1e8), "asinh": (1e-8, 1e30, -1e30),
    "acosh": (1.0000001, 1e30), "lgamma": (1.0, 2.0, -0.5, 1e-8, 1e30), "digamma": (1.0, 1e-8, 1e8),
    "sqrt": (1e-38, 1e38), "rsqrt": (1e-38, 1e38), "reciprocal": (1e-38, 1e38),
    "square": (1e19, 2e19, 1e-23), "hypot": (1e19, 2e19, 1e-23), "logaddexp": (1e4, -1e4, 88.0),
    "pow": (1.0, 1e-38, 1e19), "elu": (-20.0, -104.0), "celu": (-20.0, -104.0), "sinc": (1.0, 1e-8),
}  # fmt: skip
_MOST_SHOWN = 3
# Quotients of which float32 keeps no digit behind the point, and float64 many.
_FAR = 100_000.0


@dataclass(frozen=True)
class Target:
    """Values that a use's operand is to have: one for each of its elements, in its own dtype.

    They have the operand's shape. `label` names them in the report: `0.3`.
    """

    kind: Kind
    label: str
    use: OperatorUse
    values: torch.Tensor


def find_targets(use: OperatorUse) -> list[Target]:
    """Return the values at which the operator of `use` decides, for the operand of that use."""
    kind = use.operand.value.dtype
    if kind is torch.bool or kind.is_complex:
        # Truths have nothing between them or beyond, and complex numbers no order.
        return []
    targets = [
        *_constant_targets(use), *_multiple_targets(use), *_step_targets(use),
        *_overflow_targets(use), *_equal_input_targets(use), *_edge_targets(use),
    ]  # fmt: skip
    return [target for target in targets if target.values.shape == use.operand.value.shape]


def _constant_targets(use: OperatorUse) -> list[Target]:
    value, name, args = use.operand.value, use.name, use.args
    others: list[Any] = []
    if name in _COMPARISONS or name in _CHOICES:
        others = [args[1 - use.argument]] if len(args) > 1 else []
        others = [] if (1 - use.argument) in use.derived else others
    elif name in ("clamp", "hardtanh"):
        bounds = {"min": -1.0, "max": 1.0} if name == "hardtanh" else {}
        bounds |= dict(zip(("min", "max"), args[1:3], strict=False))
        bounds |= {k: v for k, v in use.kwargs.items() if k.startswith(("min", "max"))}
        others = [v for v in bounds.values() if v is not None]
    elif name in ("hardsigmoid", "hardswish"):
        others = [-3.0, 3.0]
    elif name == "threshold":
        others = [args[1]]
    elif name in ("softshrink", "hardshrink"):
        level = args[1] if len(args) > 1 else 0.5
        others = [-level, level]
    elif name in _BETWEEN_ZEROS:
        others = [0.0]
    elif name in _AT_ONES:
        others = [-1.0, 1.0]
    elif name == "div" and use.argument == 1:
        others = [0.0]
    elif name == "bucketize" and use.argument == 0 and isinstance(args[1], torch.Tensor):
        return [_table_target(use, args[1])]
    elif name == "searchsorted" and use.argument == 1 and args[0].dim() == 1:
        return [_table_target(use, args[0])]
    targets = [_constant_target("constants", use, other, value) for other in others]
    return [target for target in targets if target is not None]


def _table_target(use: OperatorUse, bounds: torch.Tensor) -> Target:
    value, table = use.operand.value, bounds.flatten()
    indices = torch.arange(value.numel()) % max(1, table.numel())
    chosen = table[indices] if table.numel() else value.flatten()
    values = chosen.reshape(value.shape).to(value.dtype)
    return Target("constants", _format_values(table), use, values)


def _constant_target(
    kind: Kind,
    use: OperatorUse,
    other: Any,  # noqa: ANN401 - a number or a tensor
    value: torch.Tensor,
) -> Target | None:
    constant = torch.as_tensor(other)
    if constant.dtype.is_complex:
        return None
    try:
        values = constant.to(value.dtype).expand(value.shape)
    except RuntimeError:
        return None
    return Target(kind, _format_values(constant), use, values)


def _multiple_targets(use: OperatorUse) -> list[Target]:
    """Return multiples of a divisor near what was drawn, and some that are thousands of it."""
    mode = use.kwargs.get("rounding_mode") if use.name == "div" else None
    if use.argument != 0 or not (use.name in _DIVISIONS or mode) or len(use.args) < 2:
        return []
    value, divisor = use.operand.value, use.args[1]
    if 1 in use.derived:
        return []
    constant = _constant_target("multiples", use, divisor, value)
    if constant is None:
        return []
    dividend, divisors = value.double(), constant.values.double()
    quotients = torch.round(torch.where(divisors == 0, 0.0, dividend / divisors)) + _steps_away(
        value
    )
    near = (quotients * divisors).to(value.dtype)
    far = ((_FAR * quotients + torch.sign(quotients) * 499.0 + 0.25) * divisors).to(value.dtype)
    return [
        Target("multiples", constant.label, use, near),
        Target("large quotients", constant.label, use, far),
    ]


def _steps_away(value: torch.Tensor) -> torch.Tensor:
    """Return how many multiples further than what was drawn each element is to be: -20 to 20.

    They are whole numbers in float64, of the value's shape.
    """
    return (torch.arange(value.numel()) * 7 % 41 - 20).reshape(value.shape).double()


def _equal_input_targets(use: OperatorUse) -> list[Target]:
    """Return what makes an input equal to another one, or to multiples of it."""
    operand, other = use.operand, use.derived.get(1 - use.argument)
    if (
        operand.length
        or other is None
        or len(use.derived) != 2
        or other.input_index == operand.input_index
    ):
        return []
    mode = use.kwargs.get("rounding_mode") if use.name == "div" else None
    value = operand.value
    if other.value.dtype is torch.bool or other.value.is_complex():
        return []
    try:
        by = other.value.expand(value.shape)
    except RuntimeError:
        return []
    if use.argument != 0:
        return []
    if not (use.name in _DIVISIONS or mode):
        is_elementwise = torch.Tag.pointwise in use.operator.tags
        return [Target("equal inputs", use.name, use, by.to(value.dtype))] if is_elementwise else []
    divisors = by.double()
    quotients = torch.round(torch.where(divisors == 0, 0.0, value.double() / divisors)).nan_to_num()
    quotients += _steps_away(value)
    far = (_FAR * quotients + torch.sign(quotients) * 499.0 + 0.25) * divisors
    return [
        Target("multiples", "another input", use, (quotients * divisors).to(value.dtype)),
        Target("large quotients", "another input", use, far.to(value.dtype)),
    ]


def _step_targets(use: OperatorUse) -> list[Target]:
    value = use.operand.value
    if not value.is_floating_point():
        return []
    wide = value.double()
    if use.name in _STEPS:
        scale = 10.0 ** int(use.kwargs.get("decimals", 0))
        floors = torch.floor(wide * scale)
        halves = floors + (0.5 if use.name == "round" else 0.0)
        return [Target("steps", use.name, use, (halves / scale).to(value.dtype))]
    kind = use.kwargs.get("dtype") if use.name == "_to_copy" else None
    if not isinstance(kind, torch.dtype) or kind in (value.dtype, torch.bool) or kind.is_complex:
        return []
    name = str(kind).removeprefix("torch.")
    if not kind.is_floating_point:
        return [Target("steps", f"to {name}", use, torch.round(wide).to(value.dtype))]
    if torch.finfo(kind).eps <= torch.finfo(value.dtype).eps:
        return []
    rounded = value.to(kind).double()
    tie = rounded * (1.0 + torch.finfo(kind).eps / 2)
    return [Target("steps", f"to {name}", use, tie.to(value.dtype))]


def _overflow_targets(use: OperatorUse) -> list[Target]:
    """Return values beyond the range of the type that they are cast to, and at its ends."""
    kind = use.kwargs.get("dtype") if use.name == "_to_copy" else None
    value = use.operand.value
    if not isinstance(kind, torch.dtype) or kind is torch.bool or kind.is_complex:
        return []
    if kind.is_floating_point:
        if not value.is_floating_point():
            return []
        largest = float(torch.finfo(kind).max)
        if largest >= float(torch.finfo(value.dtype).max):
            return []
        ends = [largest, -largest, 1.01 * largest, -1.01 * largest]
    else:
        low, high = float(torch.iinfo(kind).min), float(torch.iinfo(kind).max)
        # Beyond 32 bits it is the processor that says what happens to it.
        if torch.iinfo(kind).bits > 16:
            return []
        ends = [low, high, low - 1.0, high + 1.0, high + 45.0]
    if not value.is_floating_point() and torch.iinfo(value.dtype).max <= ends[-1]:
        return []
    table = torch.tensor(ends, dtype=torch.float64).to(value.dtype)
    indices = torch.arange(value.numel()) % len(ends)
    chosen = table[indices].reshape(value.shape)
    return [Target("beyond", str(kind).removeprefix("torch."), use, chosen)]


def _edge_targets(use: OperatorUse) -> list[Target]:
    value, edges = use.operand.value, _EDGES.get(use.name)
    if edges is None or not value.is_floating_point():
        return []
    table = torch.tensor(edges, dtype=torch.float64)
    chosen = table[torch.arange(value.numel()) % len(edges)].reshape(value.shape).to(value.dtype)
    return [Target("edges", use.name, use, chosen)]


def _format_values(values: torch.Tensor) -> str:
    """Return the values, of any shape, as people read them, the first few of a table."""
    flat = values.flatten()[: _MOST_SHOWN + 1].tolist()
    texts = [f"{value:g}" for value in flat[:_MOST_SHOWN]]
    # No commas: behind one stands the manner in which a case was called.
    return " and ".join(dict.fromkeys(texts)) + (" and more" if len(flat) > _MOST_SHOWN else "")
