"""What a recipe chooses among: passes with their parameters, and AOTInductor's options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# AOTInductor options that a recipe may set, each with the type of its value. The list is closed:
# most of Inductor's options are not about what is shipped, and some run code.
OPTIONS: dict[str, type] = {
    "freezing": bool,
    "max_autotune": bool,
    "epilogue_fusion": bool,
    "shape_padding": bool,
}


@dataclass(frozen=True)
class PassChoice:
    """A pass by name, its parameters, and whether a change of the numbers is what is wanted."""

    name: str
    """One of the passes below, or of an extension's."""
    parameters: dict[str, str] = field(default_factory=dict)
    """All that the pass has, and no others."""
    intended: bool = False
    """Whether the numbers may change: the changed model is the reference then. Else the pass is
    held to the tolerance."""


DEFAULT_PASSES = tuple(
    PassChoice(name)
    for name in (
        "drop-inference-noops", "eliminate-dead-code", "fold-constants", "common-subexpressions",
        "fold-batch-norm", "fold-leading-batch-norm", "convolution-to-linear",
        "contiguous-linear", "reciprocal-root", "tanh-gelu",
    )
)  # fmt: skip


def require_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise `ValueError` for the first of `names` that is none of the `known` ones."""
    for name in names:
        if name not in known:
            raise ValueError(f"expected {what} among {', '.join(known)}, got {name[:60]!r}")
