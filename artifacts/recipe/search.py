"""The search: which variants of a package are tried, and the words that they are written in."""

from __future__ import annotations

from dataclasses import dataclass, field

from handoff.artifacts.recipe.choices import PassChoice, require_known
from handoff.artifacts.record import added_field
from handoff.artifacts.release.evidence import Goal


@dataclass(frozen=True)
class Variation:
    """What sets a variant of a package apart: further options and further passes.

    `leaves_out` names passes of the words beside it that it has no use for.
    """

    options: dict[str, object] = field(default_factory=dict)
    passes: tuple[PassChoice, ...] = ()
    leaves_out: tuple[str, ...] = ()


_LOWERED = "linear,convolution,matmul,attention"
# For float32: int8 convolutions are packed for any batch as they are, and int8 doesn't find a layer
# whose weight is the model's own in another shape.
_TO_LINEAR = "pointwise-to-linear"
# What a candidate of the search is made of: words, joined by '+', and what they stand for.
KNOBS: dict[str, Variation] = {
    "freezing": Variation({"freezing": True}),
    "max-autotune": Variation({"max_autotune": True}),
    "no-epilogue-fusion": Variation({"epilogue_fusion": False}),
    "channels-last": Variation(
        passes=(
            PassChoice("widen-conv1d"),
            PassChoice("squeeze-excite"),
            PassChoice("channels-last"),
            PassChoice(_TO_LINEAR),
        )
    ),
    "carry-nan": Variation(passes=(PassChoice("carry-nan"),)),
    "pool-with-attention": Variation(passes=(PassChoice("pool-with-attention"),)),
    "cpu-attention": Variation(passes=(PassChoice("cpu-attention"),)),
    "cpu-convolution": Variation(passes=(PassChoice("cpu-convolution"),)),
    "cpu-linear": Variation(passes=(PassChoice("cpu-linear"),)),
    "int8-weights": Variation(passes=(PassChoice("quantize-weights"),)),
    "int8-tables": Variation(passes=(PassChoice("quantize-tables"),)),
} | {
    f"{dtype}{suffix}": Variation(
        passes=(PassChoice("lower-precision", {"dtype": dtype, "operators": f"{_LOWERED}{more}"}),)
    )
    for dtype in ("bfloat16", "float16")
    for suffix, more in (("", ""), ("-between", ",between"))
}
# Int8 pays where weights are packed once, and may leave the layers that hurt most in float32: as
# many as the percentage says.
INT8_QUANTIZER = "quantize-int8"
_KEEP_PERCENTS = (0, 10, 25, 50)
_INT8 = {"int8": "static", "int8-dynamic": "dynamic"}
KNOBS |= {
    f"{word}-keep-{percent}" if percent else word: Variation(
        {"freezing": True},
        (PassChoice(INT8_QUANTIZER, {"activations": kind, "keep": f"{percent / 100:g}"}),),
        leaves_out=(_TO_LINEAR,) if kind == "static" else (),
    )
    for word, kind in _INT8.items()
    for percent in _KEEP_PERCENTS
}
# Sums of convolutions in int8, too: faster, and less exact.
INT8_SUMS = "int8-sums"
KNOBS[INT8_SUMS] = Variation(
    {"freezing": True},
    (PassChoice(INT8_QUANTIZER, {"activations": "static-sums", "keep": "0"}),),
    leaves_out=(_TO_LINEAR,),
)


@dataclass(frozen=True)
class Search:
    """Which variants of the package are tried beside the plain one.

    Each is compiled and verified, those that are accepted are timed in turns, and the fastest is
    released.
    """

    seconds: float = 0.0
    """For each target, 0 to 86400; with 0 there is no search."""
    candidates: tuple[str, ...] = (
        "freezing", "channels-last+freezing", "carry-nan+channels-last+freezing",
        "cpu-convolution+channels-last+freezing", "cpu-linear+freezing", "cpu-attention+freezing",
        "pool-with-attention", "max-autotune", "freezing+max-autotune",
    )  # fmt: skip
    """Each is one of the words below, or some of them joined by `+`."""
    goal: Goal = added_field("all")
    """Which sizes decide: the plan's smallest for `latency`, its largest for `throughput`, the
    delivery's first example for `example`; for `all`, a variant has to be faster at one of the
    three and slower at none."""

    def __post_init__(self) -> None:
        """Check the budget and that every candidate is known."""
        if not 0 <= self.seconds <= 86_400:
            raise ValueError(f"expected 0 to 86400 seconds for the search, got {self.seconds}")
        for candidate in self.candidates:
            require_known("a search's candidates", candidate.split("+"), KNOBS)

    @staticmethod
    def variation(candidate: str) -> Variation:
        """Return what a candidate stands for."""
        words = [KNOBS[word] for word in candidate.split("+")]
        options = {name: value for word in words for name, value in word.options.items()}
        left_out = {name for word in words for name in word.leaves_out}
        passes = [chosen for word in words for chosen in word.passes]
        return Variation(options, tuple(one for one in passes if one.name not in left_out))

    @staticmethod
    def milder(candidate: str) -> str:
        """Return the candidate that keeps more in float32; '' where there is none."""
        words = candidate.split("+")
        if INT8_SUMS in words:
            return "+".join("int8" if word == INT8_SUMS else word for word in words)
        for place, word in enumerate(words):
            stem, _, percent = word.partition("-keep-")
            if stem in _INT8 and (more := [k for k in _KEEP_PERCENTS if k > int(percent or 0)]):
                return "+".join((*words[:place], f"{stem}-keep-{more[0]}", *words[place + 1 :]))
        return ""


NO_SEARCH = Search()
