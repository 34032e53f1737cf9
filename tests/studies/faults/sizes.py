"""How small a fault may be: each is made smaller until it passes.

What just passes is what the gate can't see: with the default tolerances, on the default plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

import torch

from tests.studies.faults.kinds import Bench
from tests.studies.faults.planting import (
    CodeFault,
    Fault,
    GraphFault,
    with_argument,
    with_changed,
    with_text,
)

_RELATIVE = tuple(digit * 10.0**-power for power in range(1, 9) for digit in (3.0, 1.0))
_SHARES = (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4)


@dataclass(frozen=True)
class Size:
    """A fault of a size that can be chosen; `sizes` go from the plainest to the subtlest."""

    name: str
    what: str
    model: str
    plant: Callable[[float], Fault]
    sizes: tuple[float, ...] = _RELATIVE
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Limit:
    """Between which sizes a fault stops being caught; None where all or none are.

    `rule` is the first reason for the last that was caught.
    """

    size: Size
    last_caught: float | None
    first_passed: float | None
    rule: str


def _weight(
    name: str, model: str, change: Callable[[torch.Tensor, float], torch.Tensor]
) -> Callable[[float], Fault]:
    def plant(size: float) -> Fault:
        return GraphFault(
            name, "", model, with_changed(name, lambda weight: change(weight, size))
        )  # fmt: skip

    return plant


def _argument(
    operator: str, place: int, model: str, value: Callable[[float], float], which: int = 0
) -> Callable[[float], Fault]:
    def plant(size: float) -> Fault:
        return GraphFault(
            operator, "", model, with_argument(operator, place, value(size), which)
        )  # fmt: skip

    return plant


def _text(pattern: str, instead: str, model: str) -> Callable[[float], Fault]:
    """Return what replaces C++; SIZE in `instead` stands for the size."""

    def plant(size: float) -> Fault:
        changed = instead.replace("SIZE", repr(float(size)))
        return CodeFault(pattern, f"{size:g}", model, with_text(pattern, changed))

    return plant


def _one_element(weight: torch.Tensor, size: float) -> torch.Tensor:
    place = weight.abs().argmax()
    weight.view(-1)[place] *= 1.0 + size
    return weight


def _some_rows(table: torch.Tensor, share: float) -> torch.Tensor:
    chosen = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    table[chosen[: round(share * len(table))]] *= 1.01
    return table


def _scaled(weight: torch.Tensor, size: float) -> torch.Tensor:
    return weight * (1.0 + size)


_LAST_STORE = r"(inductor_cpu_integer_div_error_flag = nullptr;)"
_FIRST_OUTPUT = r"tmp(\d+)\.store\(out_ptr0"
_BEYOND = (
    "(decltype(tmp0)::blendv(tmp\\1, tmp\\1 * decltype(tmp0)(1.01f), "
    "tmp0 > decltype(tmp0)((float)SIZE))).store(out_ptr0"
)

SIZES: tuple[Size, ...] = (
    *(
        Size(
            f"a layer's weights, {name}", "all of `value.weight` times 1 + size", "attention",
            _weight("value.weight", "attention", _scaled), sizes, dtype,
        )
        for name, dtype, sizes in (
            ("float32", torch.float32, _RELATIVE),
            # No smaller ones: the weights themselves are held to 0.2 to 0.4 %.
            ("bfloat16", torch.bfloat16, (0.3, 0.1, 0.05, 0.03, 0.02, 0.01, 5e-3, 3e-3)),
            ("float64", torch.float64, tuple(10.0**-power for power in range(4, 16))),
        )
    ),
    Size(
        "one weight of 1024", "the largest of `middle.weight` times 1 + size", "perceptron",
        _weight("middle.weight", "perceptron", _one_element),
    ),
    Size(
        "a bias", "`last.bias` plus size", "perceptron",
        _weight("last.bias", "perceptron", lambda bias, size: bias + size),
    ),
    Size(
        "an LSTM's weights", "all of `weight_hh_l0` times 1 + size", "recurrent",
        _weight("lstm.weight_hh_l0", "recurrent", _scaled),
    ),
    Size(
        "a constant", "0.5 times 1 + size", "perceptron",
        _argument("aten.mul.Tensor", 1, "perceptron", lambda size: 0.5 * (1.0 + size)),
    ),
    Size(
        "attention's scale", "0.25 times 1 + size", "attention",
        _argument("aten.mul.Tensor", 1, "attention", lambda size: 0.25 * (1.0 + size)),
    ),
    Size(
        "a norm's eps", "1e-5 plus size", "attention",
        _argument("aten.layer_norm.default", 4, "attention", lambda size: 1e-5 + size),
    ),
    Size(
        "a bound of clamp", "0.5 times 1 + size", "arithmetic",
        _argument("aten.clamp.default", 2, "arithmetic", lambda size: 0.5 * (1.0 + size)),
    ),
    Size(
        "a mask's value", "minus size for minus 10 000", "attention",
        _argument("aten.masked_fill.Scalar", 2, "attention", lambda size: -size),
        (3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0, 24.0, 30.0),
    ),
    Size(
        "one element of an output", "the first one times 1 + size", "elementwise",
        _text(_LAST_STORE, r"\1 out_ptr1[0] *= (float)(1.0 + SIZE);", "elementwise"),
    ),
    Size(
        "rare inputs", "1 % off where an element of x is above size", "elementwise",
        _text(_FIRST_OUTPUT, _BEYOND, "elementwise"), (1.0, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 8.0),
    ),
    Size(
        "rare sizes", "1 % off from this batch on, of 1 to 64", "elementwise",
        _text(_LAST_STORE, r"\1 if (ks0 >= SIZE) out_ptr1[0] *= 1.01f;", "elementwise"),
        (8.0, 18.0, 33.0, 64.0),
    ),
    Size(
        "one size only", "1 % off at this batch alone", "elementwise",
        _text(_LAST_STORE, r"\1 if (ks0 == SIZE) out_ptr1[0] *= 1.01f;", "elementwise"),
        (17.0, 18.0),
    ),
    Size(
        "stale rows of a table", "this share of 10 000 rows times 1.01", "large-table",
        _weight("items.weight", "large-table", _some_rows), _SHARES,
    ),
)  # fmt: skip


def find_limits(chosen: Iterable[Size], folder: Path) -> list[Limit]:
    """Return for each fault where it stops being caught, by halving the sizes in question."""
    bench = Bench(folder)
    limits = []
    try:
        for size in chosen:
            limit = _find_limit(size, bench)
            bounds = (
                f"caught to {limit.last_caught or 0:g}, passed from {limit.first_passed or 0:g}"
            )
            print(f"{size.name}: {bounds}: {limit.rule}", file=sys.stderr, flush=True)
            limits.append(limit)
    finally:
        bench.close()
    return limits


def _find_limit(size: Size, bench: Bench) -> Limit:
    rule = ""
    # All before `caught` are taken to be caught, and all from `passed` on to pass.
    caught, passed = -1, len(size.sizes)
    while passed - caught > 1:
        middle = (caught + passed) // 2
        row = bench.judge(size.plant(size.sizes[middle]), size.dtype)
        if row.caught:
            caught, rule = middle, row.result.reasons[0]
        else:
            passed = middle
    return Limit(
        size,
        size.sizes[caught] if caught >= 0 else None,
        size.sizes[passed] if passed < len(size.sizes) else None,
        rule,
    )


def sizes_table(limits: Iterable[Limit]) -> list[str]:
    """Return what is just caught and what just passes, as Markdown."""
    lines = [
        "| fault | what size means | model | still caught | passes | by |",
        "|---|---|---|---|---|---|",
    ]
    for limit in limits:
        bounds = [
            f"{value:g}" if value is not None else "-"
            for value in (limit.last_caught, limit.first_passed)
        ]
        lines.append(
            f"| {limit.size.name} | {limit.size.what} | {limit.size.model} | {' | '.join(bounds)} "
            f"| {shorten(limit.rule, 150, placeholder=' …')} |"
        )
    return lines
