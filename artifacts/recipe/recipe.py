"""The recipe: what the deploy engineer asks for. Targets, passes, tolerances, options; TOML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.metric import MetricRule
from handoff.artifacts.delivery.signature import require_identifier
from handoff.artifacts.errors import UsageProblem, did_you_mean, told_place
from handoff.artifacts.files.strict import parse_toml
from handoff.artifacts.recipe.target import Target, named_target, parse_target
from handoff.artifacts.recipe.tolerance import (
    CUDA_TOLERANCES,
    DEFAULT_TOLERANCES,
    EXACT,
    SPACING,
    Tolerance,
    why_too_fine,
)
from handoff.artifacts.record import RecordInvalid, from_plain, later
from handoff.artifacts.release.evidence import Goal

_EXTENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*(@sha256:[0-9a-f]{64})?")

# As tomllib ends a message.
_SYNTAX = re.compile(r"(?P<told>.+) \(at line (?P<line>[0-9]+), column (?P<column>[0-9]+)\)")

_TORCH = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){2}")

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
        "contiguous-linear", "reciprocal-root",
    )
)  # fmt: skip


@dataclass(frozen=True)
class VerifyPlan:
    """How much is compared."""

    seeds: int = 2
    """Random draws at the middle size of the dynamic dimensions, 1 to 100."""
    max_bytes: int = 6 * 2**30
    """A size of a dynamic dimension is left out, and said to be, where the float64 reference's
    intermediate results would together take more."""
    propagation: Literal["refuse", "note"] = later("refuse")
    """What happens to a package that makes something else of NaN and infinite inputs than eager
    does."""

    localize_seconds: float = later(240.0)
    """How long, for each refused target, it is looked for where the numbers go wrong, 0 to 3600;
    with 0 it isn't."""
    interpret_seconds: float = later(180.0)
    """How long the kernels of a GPU that isn't here are run by Triton's interpreter, 0 to 3000; the
    smallest case is run in any case."""

    emulated_seconds: float = later(1500.0)
    """How long a package for another processor is called under emulation with the plan's inputs, 0
    to 3000: small ones first, special values last. The two smallest sizes are compared in any case,
    and what there is no time for is listed."""

    def __post_init__(self) -> None:
        """Check that there is something to compare."""
        if not 1 <= self.seeds <= 100:
            raise ValueError(f"expected 1 to 100 seeds, got {self.seeds}")
        if not 0 <= self.localize_seconds <= 3600:
            raise ValueError(
                f"expected localize_seconds from 0 to 3600, got {self.localize_seconds}"
            )
        if not 0 <= self.interpret_seconds <= 3000:
            raise ValueError(
                f"expected interpret_seconds from 0 to 3000, got {self.interpret_seconds}"
            )
        if not 0 <= self.emulated_seconds <= 3000:
            raise ValueError(
                f"expected emulated_seconds from 0 to 3000, got {self.emulated_seconds}"
            )


def _require_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"expected {what} among {', '.join(known)}, got {name[:60]!r}")


@dataclass(frozen=True)
class Variation:
    """What sets a variant of a package apart: further options and further passes."""

    options: dict[str, object] = field(default_factory=dict)
    passes: tuple[PassChoice, ...] = ()


_BFLOAT16 = {"dtype": "bfloat16", "operators": "linear,convolution,matmul,attention"}
# What a candidate of the search is made of: words, joined by '+', and what they stand for.
KNOBS: dict[str, Variation] = {
    "freezing": Variation({"freezing": True}),
    "max-autotune": Variation({"max_autotune": True}),
    "no-epilogue-fusion": Variation({"epilogue_fusion": False}),
    "channels-last": Variation(
        passes=(
            PassChoice("widen-conv1d"),
            PassChoice("channels-last"),
            PassChoice("pointwise-to-linear"),
        )
    ),
    "carry-nan": Variation(passes=(PassChoice("carry-nan"),)),
    "pool-with-attention": Variation(passes=(PassChoice("pool-with-attention"),)),
    "cpu-attention": Variation(passes=(PassChoice("cpu-attention"),)),
    "int8-weights": Variation(passes=(PassChoice("quantize-weights"),)),
    "int8-tables": Variation(passes=(PassChoice("quantize-tables"),)),
    "bfloat16": Variation(passes=(PassChoice("lower-precision", _BFLOAT16),)),
    "bfloat16-between": Variation(
        passes=(
            PassChoice(
                "lower-precision",
                {**_BFLOAT16, "operators": f"{_BFLOAT16['operators']},between"},
            ),
        )
    ),
}
# Int8 pays where weights are packed once, and may leave the layers that hurt most in float32: as
# many as the percentage says.
INT8_QUANTIZER = "quantize-int8"
_KEPT = (0, 10, 25, 50)
_INT8 = {"int8": "static", "int8-dynamic": "dynamic"}
KNOBS |= {
    f"{word}-keep-{kept}" if kept else word: Variation(
        {"freezing": True},
        (PassChoice(INT8_QUANTIZER, {"activations": kind, "keep": f"{kept / 100:g}"}),),
    )
    for word, kind in _INT8.items()
    for kept in _KEPT
}
# Sums of convolutions in int8, too: faster, and less exact.
INT8_SUMS = "int8-sums"
KNOBS[INT8_SUMS] = Variation(
    {"freezing": True},
    (PassChoice(INT8_QUANTIZER, {"activations": "static-sums", "keep": "0"}),),
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
        "cpu-attention+freezing", "pool-with-attention", "max-autotune", "freezing+max-autotune",
    )  # fmt: skip
    """Each is one of the words below, or some of them joined by `+`."""
    goal: Goal = later("all")
    """Which sizes decide: the plan's smallest for `latency`, its largest for `throughput`, the
    delivery's first example for `example`; for `all`, a variant has to be faster at one of the
    three and slower at none."""

    def __post_init__(self) -> None:
        """Check the budget and that every candidate is known."""
        if not 0 <= self.seconds <= 86_400:
            raise ValueError(f"expected 0 to 86400 seconds for the search, got {self.seconds}")
        for candidate in self.candidates:
            _require_known("a search's candidates", candidate.split("+"), KNOBS)

    @staticmethod
    def variation(candidate: str) -> Variation:
        """Return what a candidate stands for."""
        words = [KNOBS[word] for word in candidate.split("+")]
        options = {name: value for word in words for name, value in word.options.items()}
        return Variation(options, tuple(chosen for word in words for chosen in word.passes))

    @staticmethod
    def milder(candidate: str) -> str:
        """Return the candidate that keeps more in float32; '' where there is none."""
        words = candidate.split("+")
        if INT8_SUMS in words:
            return "+".join("int8" if word == INT8_SUMS else word for word in words)
        for place, word in enumerate(words):
            stem, _, kept = word.partition("-keep-")
            if stem in _INT8 and (more := [k for k in _KEPT if k > int(kept or 0)]):
                return "+".join((*words[:place], f"{stem}-keep-{more[0]}", *words[place + 1 :]))
        return ""


NO_SEARCH = Search()


@dataclass(frozen=True)
class Promotion:
    """How much worse than the version that it replaces a promoted one may be."""

    slowdown: float = 1.05
    """It may be this many times as slow, as far as that is known with confidence
    (`tasks.registry.promotion` tells by what), 1 to 1000."""
    error_growth: float = 2.0
    """Each target's error to float64, in multiples of eager's, may be this many times as large, 1
    to 1000."""
    emulated: bool = later(True)
    """Whether a target may be promoted that an emulator alone has run, whose speed nobody
    measured."""

    def __post_init__(self) -> None:
        """Check that the factors allow an equal version."""
        for name in ("slowdown", "error_growth"):
            if not 1.0 <= getattr(self, name) <= 1000.0:
                raise ValueError(f"expected {name} from 1 to 1000, got {getattr(self, name)}")


USUAL_PROMOTION = Promotion()


@dataclass(frozen=True)
class OtherTorch:
    """With which torch, beside the one that builds, packages are loaded and compared."""

    also: tuple[str, ...] = ()
    """Whole versions, as `2.14.1`. An environment with each is made by uv once and kept; a package
    fits there, too, if it loads there and its numbers are right on the whole plan. What isn't right
    there is told, and refuses nothing."""

    def __post_init__(self) -> None:
        """Check that each is one version, so that what was compared is known."""
        for version in self.also:
            if not _TORCH.fullmatch(version):
                raise ValueError(
                    f"expected whole versions of torch such as 2.14.1 under also, "
                    f"got {version[:60]!r}"
                )


NO_OTHER_TORCH = OtherTorch()


@dataclass(frozen=True)
class Recipe:
    """What to build from a delivery and how exact it has to be."""

    # docs/recipe-reference.md is made from this class, what it holds, and the sentences below their
    # fields: `make reference` writes it again.
    targets: tuple[str, ...] = ("cpu",)
    """What to build for: `cpu` is the best level of the machine that builds; or of those below,
    GPUs of several generations in one package joined by `+`."""
    passes: tuple[PassChoice, ...] = DEFAULT_PASSES
    """Which passes run, in this order."""
    options: dict[str, object] = field(default_factory=dict)
    """AOTInductor's options, of those below."""
    tolerance: dict[str, Tolerance] = field(default_factory=dict)
    """How exact outputs have to be, by dtype or by an output's name, which counts more."""
    verify: VerifyPlan = VerifyPlan()
    """How much is compared."""
    required_lineage: tuple[str, ...] = later(())
    """What a delivery has to say of where it comes from."""
    extensions: tuple[str, ...] = later(())
    """Python modules, `MODULE@sha256:DIGEST` each, that register operators or bring passes; the
    digest is that of their code, and the refusal of one without it prints it."""
    broken_passes: Literal["auto", "refuse", "leave out"] = later("auto")
    """What happens if a pass breaks the tolerance: the release is refused, or the pass left out.
    `auto` refuses for passes that the recipe names, and leaves out those that run by default."""
    search: Search = later(NO_SEARCH)
    """Which variants are tried beside the plain package."""
    promotion: Promotion = later(USUAL_PROMOTION)
    """How much worse than what it replaces a promoted version may be."""
    metric: MetricRule | None = later(None)
    """How much of the delivery's metric may be lost; then passes that round may move its output
    beyond the tolerance."""
    torch: OtherTorch = later(NO_OTHER_TORCH)
    """With which other versions of torch the packages for processors are tried."""
    captures: bool = later(False)
    """Whether the capture table is filled, which the report shows: what each capture technology
    makes of the model. That takes half a minute or more."""

    def __post_init__(self) -> None:
        """Check targets, options, lineage, extensions and the dtypes that have tolerances."""
        if not self.targets:
            raise ValueError("expected at least one target, got none")
        # Targets are not resolved here: a recipe is read on machines that it does not build for.
        for slug in self.targets:
            if slug != "cpu":
                named_target(slug)
        _require_known("options", self.options, OPTIONS)
        for name in self.tolerance:
            require_identifier(name, "a dtype or an output under [tolerance]")
        _require_known(
            "required_lineage", self.required_lineage, [field.name for field in fields(Lineage)]
        )
        for name, value in self.options.items():
            if type(value) is not OPTIONS[name]:
                raise ValueError(f"expected option {name} to be true or false, got {value!r}")
        for named in self.extensions:
            if not _EXTENSION.fullmatch(named):
                raise ValueError(
                    f"expected MODULE@sha256:DIGEST under extensions, got {named[:60]!r}"
                )

    @property
    def refuses_broken_passes(self) -> bool:
        """Tell whether a release is refused if one of its passes breaks the tolerance."""
        is_named = self.passes != DEFAULT_PASSES
        return self.broken_passes == "refuse" or (self.broken_passes == "auto" and is_named)

    def resolved_targets(self) -> tuple[Target, ...]:
        """Return the targets, each once, `cpu` being this machine's level.

        Raises `ValueError` for `cpu` on a machine that has none of the levels.
        """
        return tuple(dict.fromkeys(parse_target(slug) for slug in self.targets))

    def tolerance_for(self, dtype: str, output: str = "", target: str = "") -> Tolerance:
        """Return the agreed tolerance for the output `output` of `dtype` on a target.

        The recipe's for that output, else its for the dtype, else the default of the target's kind;
        integers and booleans are exact unless the recipe names the output.
        """
        agreed = self.tolerance.get(output) or self.tolerance.get(dtype)
        defaults = CUDA_TOLERANCES if target.startswith("cuda") else DEFAULT_TOLERANCES
        return agreed or defaults.get(dtype, EXACT)

    def require_outputs(self, names: Iterable[str]) -> None:
        """Raise `UsageProblem` where a tolerance is for an output that the model doesn't have."""
        known = [*DEFAULT_TOLERANCES, *names]
        unknown = [name for name in self.tolerance if name not in known]
        if unknown:
            raise UsageProblem(
                "the recipe has a tolerance for an output that the model doesn't have",
                expected=f"a dtype or an output among {', '.join(known)}",
                got=unknown[0],
                remedy=did_you_mean(
                    unknown[0], known, "Fix that table's name under [tolerance] in the recipe"
                ),
            )

    def require_attainable(self, outputs: Iterable[tuple[str, str, float]] = ()) -> None:
        """Raise `UsageProblem` for a tolerance that is finer than the numbers it is for.

        `outputs` are the model's, by name, dtype and root mean square, as far as they are known.
        """
        asked = [(dtype, dtype, 0.0) for dtype in SPACING if dtype in self.tolerance]
        for name, dtype, size in (*asked, *outputs):
            agreed = self.tolerance.get(name) or self.tolerance.get(dtype)
            told = why_too_fine(agreed, dtype, size) if agreed else None
            if told and agreed:
                expected, got = told
                usual = DEFAULT_TOLERANCES[dtype]
                where = name if name in self.tolerance else dtype
                raise UsageProblem(
                    f"the recipe's tolerance for {name} is finer than {dtype} is",
                    expected=expected,
                    got=got,
                    remedy=f"Fix it under [tolerance.{where}]; without it, {dtype} has "
                    f"rtol = {usual.rtol:g} and atol = {usual.atol:g}",
                )


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in the TOML file `path`; raise `UsageProblem` with the place and reason."""
    try:
        plain = parse_toml(path.read_bytes())
        recipe = from_plain(Recipe, plain, path.name)
        _require_time(plain, path.name)
    except OSError as error:
        raise UsageProblem(
            f"the recipe {path} can't be read",
            expected="a TOML file",
            got=error.strerror or str(error),
            remedy="Name an existing recipe, or leave --recipe out for the defaults",
        ) from error
    except RecordInvalid as error:
        place, expected, got = told_place(str(error))
        if syntax := _SYNTAX.fullmatch(got):
            raise UsageProblem(
                "the recipe is no TOML", expected="TOML", got=syntax["told"],
                remedy="Fix that line, or the one before it",
                where=f"{path}:{syntax['line']}:{syntax['column']}",
            ) from error  # fmt: skip
        key = place.removeprefix(path.name).lstrip(".")
        raise UsageProblem(
            "the recipe is not valid" + (f" at {key}" if key else ""),
            expected=expected or "a recipe in TOML",
            got=got,
            remedy=_fix(key, expected, got),
            where=str(path),
        ) from error
    recipe.require_attainable()
    return recipe


def _require_time(plain: Mapping[str, Any], name: str) -> None:
    """Raise `RecordInvalid` for a search that is described, and would not be held."""
    told = plain.get("search")
    if told and "seconds" not in told:
        beside = " and ".join(told)
        raise RecordInvalid(
            f"{name}.search: expected seconds beside {beside}, 0 for no search, got none"
        )


_ANY_GPU = re.compile(r"gpu|nvidia|cuda.*|sm_?\d+", re.IGNORECASE)


def _fix(key: str, expected: str, got: str) -> str:
    """Return what to do about a wrong entry: to write the word that was meant, if one is near."""
    word = re.fullmatch(r"'([^']{1,60})'", got)
    known = re.split(r"[ ,']+", expected)
    if key == "search" and got == "none":
        return "Write seconds = 600 under [search], which does for most models"
    if re.fullmatch(r"tolerance\.(atol|rtol|rmse_factor)", key):
        return "Write it under a dtype or an output of the model, such as [tolerance.float32]"
    if re.fullmatch(r"passes(\[\d+\]|\.\d+)?", key) and "table" in expected:
        named = word[1] if word else "fold-batch-norm"
        return f'Write each pass as [[passes]] with name = "{named}" below it'
    is_gpu = word and "cuda-sm90" in known and _ANY_GPU.fullmatch(word[1])
    if word and is_gpu and word[1].casefold() not in known:
        return (
            "Name the GPU that serves by its compute capability: cuda-sm80 is an A100, cuda-sm86 "
            "an A10, cuda-sm89 an L4 or L40S, cuda-sm90 an H100 or H200, cuda-sm100 a B200"
        )
    return did_you_mean(word[1], known, "Fix that entry") if word else "Fix that entry"


def recipe_for(folder: Path, model: str) -> Recipe:
    """Return the recipe in `folder/MODEL.toml`, else the defaults; raise `UsageProblem`."""
    path = folder / f"{model}.toml"
    return read_recipe(path) if path.exists() else Recipe()
