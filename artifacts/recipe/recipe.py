"""The recipe: what the deploy engineer asks for. Targets, passes, tolerances, options; TOML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Literal

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.metric import MetricRule
from handoff.artifacts.delivery.signature import require_identifier
from handoff.artifacts.errors import UsageProblem, did_you_mean
from handoff.artifacts.recipe.choices import DEFAULT_PASSES, OPTIONS, PassChoice, require_known
from handoff.artifacts.recipe.search import NO_SEARCH, Search
from handoff.artifacts.recipe.target import Target, parse_target, require_target
from handoff.artifacts.recipe.tolerance import (
    CUDA_TOLERANCES,
    DEFAULT_TOLERANCES,
    EXACT,
    SPACING,
    Tolerance,
    why_too_fine,
)
from handoff.artifacts.record import added_field

_EXTENSION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*(@sha256:[0-9a-f]{64})?")

_TORCH = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){2}")


@dataclass(frozen=True)
class VerifyPlan:
    """How much is compared."""

    seeds: int = 2
    """Random draws at the middle size of the dynamic dimensions, 1 to 100."""
    max_bytes: int = 6 * 2**30
    """A size of a dynamic dimension is left out, and said to be, where the float64 reference's
    intermediate results would together take more."""
    propagation: Literal["refuse", "note"] = added_field("refuse")
    """What happens to a package that makes something else of NaN and infinite inputs than eager
    does."""

    localize_seconds: float = added_field(240.0)
    """How long, for each refused target, it is looked for where the numbers go wrong, 0 to 3600;
    with 0 it isn't."""
    interpret_seconds: float = added_field(180.0)
    """How long the kernels of a GPU that isn't here are run by Triton's interpreter, 0 to 3000; the
    smallest case is run in any case."""

    emulated_seconds: float = added_field(1500.0)
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


@dataclass(frozen=True)
class Promotion:
    """How much worse than the version that it replaces a promoted one may be."""

    slowdown: float = 1.05
    """It may be this many times as slow, as far as that is known with confidence
    (`tasks.registry.promotion` tells by what), 1 to 1000."""
    error_growth: float = 2.0
    """Each target's error to float64, in multiples of eager's, may be this many times as large, 1
    to 1000."""
    emulated: bool = added_field(True)
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
    required_lineage: tuple[str, ...] = added_field(())
    """What a delivery has to say of where it comes from."""
    extensions: tuple[str, ...] = added_field(())
    """Python modules, `MODULE@sha256:DIGEST` each, that register operators or bring passes; the
    digest is that of their code, and the refusal of one without it prints it."""
    broken_passes: Literal["auto", "refuse", "leave out"] = added_field("auto")
    """What happens if a pass breaks the tolerance: the release is refused, or the pass left out.
    `auto` refuses for passes that the recipe names, and leaves out those that run by default."""
    search: Search = added_field(NO_SEARCH)
    """Which variants are tried beside the plain package."""
    promotion: Promotion = added_field(USUAL_PROMOTION)
    """How much worse than what it replaces a promoted version may be."""
    metric: MetricRule | None = added_field(None)
    """How much of the delivery's metric may be lost; then passes that round may move its output
    beyond the tolerance."""
    torch: OtherTorch = added_field(NO_OTHER_TORCH)
    """With which other versions of torch the packages for processors are tried."""
    captures: bool = added_field(False)
    """Whether the capture table is filled, which the report shows: what each capture technology
    makes of the model. That takes half a minute or more."""

    def __post_init__(self) -> None:
        """Check targets, options, lineage, extensions and the dtypes that have tolerances."""
        if not self.targets:
            raise ValueError("expected at least one target, got none")
        # Targets are not resolved here: a recipe is read on machines that it does not build for.
        for slug in self.targets:
            if slug != "cpu":
                require_target(slug)
        require_known("options", self.options, OPTIONS)
        for name in self.tolerance:
            require_identifier(name, "a dtype or an output under [tolerance]")
        require_known(
            "required_lineage", self.required_lineage, [field.name for field in fields(Lineage)]
        )
        for name, value in self.options.items():
            if type(value) is not OPTIONS[name]:
                raise ValueError(f"expected option {name} to be true or false, got {value!r}")
        for extension in self.extensions:
            if not _EXTENSION.fullmatch(extension):
                raise ValueError(
                    f"expected MODULE@sha256:DIGEST under extensions, got {extension[:60]!r}"
                )

    @property
    def refuses_broken_passes(self) -> bool:
        """Return whether a release is refused if one of its passes breaks the tolerance."""
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
        declared = [(dtype, dtype, 0.0) for dtype in SPACING if dtype in self.tolerance]
        for name, dtype, size in (*declared, *outputs):
            agreed = self.tolerance.get(name) or self.tolerance.get(dtype)
            mismatch = why_too_fine(agreed, dtype, size) if agreed else None
            if mismatch and agreed:
                expected, got = mismatch
                usual = DEFAULT_TOLERANCES[dtype]
                where = name if name in self.tolerance else dtype
                raise UsageProblem(
                    f"the recipe's tolerance for {name} is finer than {dtype} is",
                    expected=expected,
                    got=got,
                    remedy=f"Fix it under [tolerance.{where}]; without it, {dtype} has "
                    f"rtol = {usual.rtol:g} and atol = {usual.atol:g}",
                )
