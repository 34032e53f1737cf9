"""What a model is judged by where it is used: a metric, of one output, over samples with labels."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.record import added_field

EVALUATION_FILE = "evaluation.safetensors"
EVALUATION_BATCHES = 4096
EVALUATION_BYTES = 1 << 30

_WITH_COUNT = re.compile(r"(top-|ndcg@)([1-9][0-9]{0,3})")
# An extension's.
_EXTENSION_NAME = re.compile(r"own:[a-z][a-z0-9_.-]{0,62}")
# What labels hold that counts for nothing: as in torch's losses.
IGNORED = -100


@dataclass(frozen=True)
class MetricKind:
    """What sets a metric apart: what it is compared with, and what a drop of it means.

    `labels` says whether samples have labels; without, eager's own output stands for them. With
    `is_error` smaller is better, and a drop is reported as a share of eager's own error.
    """

    labels: bool = True
    is_error: bool = False


# `top-K` and `ndcg@K` are there for every K.
KINDS: dict[str, MetricKind] = {
    "top-K": MetricKind(),
    "auc": MetricKind(),
    "log-loss": MetricKind(is_error=True),
    "log-loss-of-probabilities": MetricKind(is_error=True),
    "rmse": MetricKind(is_error=True),
    "mae": MetricKind(is_error=True),
    "ndcg@K": MetricKind(),
    "cosine": MetricKind(labels=False),
    "agreement": MetricKind(labels=False),
}
# One of an extension's is a share of 0 to 1, of which more is better.
_EXTENSIONS = MetricKind()


@dataclass(frozen=True)
class Metric:
    """Which metric, of which output: the first one where none is named.

    `top-K` (labels among the K highest classes), `auc`, `log-loss` (of logits, or
    `log-loss-of-probabilities`), `rmse`, `mae`, `ndcg@K` (labels are relevances), `cosine` and
    `agreement` (with eager itself, no labels), or `own:NAME` for a metric of an extension's.
    """

    name: str
    output: str = ""

    def __post_init__(self) -> None:
        """Check the name."""
        if not ((self.is_known and "K" not in self.name) or _EXTENSION_NAME.fullmatch(self.name)):
            raise ValueError(
                f"expected a metric among {', '.join(KINDS)}, or own:NAME for an extension's, "
                f"got {self.name[:60]!r}"
            )

    @property
    def family(self) -> str:
        """Its name in `KINDS`: `top-K` for `top-5`."""
        return _WITH_COUNT.sub(r"\1K", self.name)

    @property
    def count(self) -> int:
        """Its K; 0 for one without."""
        counted = _WITH_COUNT.fullmatch(self.name)
        return int(counted[2]) if counted else 0

    @property
    def kind(self) -> MetricKind:
        """What sets it apart."""
        return KINDS.get(self.family, _EXTENSIONS)

    @property
    def is_known(self) -> bool:
        """Return whether it is one of ours."""
        return self.family in KINDS

    def place(self, outputs: tuple[str, ...]) -> int:
        """Return the place of its output among those names; raise `ValueError` for none of them."""
        if not self.output:
            return 0
        if self.output not in outputs:
            raise ValueError(f"expected an output among {', '.join(outputs)}, got {self.output!r}")
        return outputs.index(self.output)


Standing = Literal["kept", "broken", "not known", "not agreed"]


@dataclass(frozen=True)
class MetricRule:
    """How much of the delivery's metric a package may lose, and how sure that has to be.

    For shares (top-K, AUC, NDCG, cosine, agreement) the drop is the difference: 0.97 to 0.965 is
    0.005. For errors (log loss, RMSE, MAE) it is the growth relative to eager's own.
    """

    max_drop: float
    """From 0 to 1."""
    confidence: float = 0.95
    """With this probability the drop on all that is like these samples is below the bound that has
    to be below `max_drop`; 0.5 to 0.9999."""

    def __post_init__(self) -> None:
        """Check both ranges."""
        if not 0.0 <= self.max_drop <= 1.0:
            raise ValueError(f"expected max_drop from 0 to 1, got {self.max_drop}")
        if not 0.5 <= self.confidence <= 0.9999:
            raise ValueError(f"expected confidence from 0.5 to 0.9999, got {self.confidence}")


@dataclass(frozen=True)
class MeasuredMetric:
    """A metric of eager and of a package on the same samples, and what the package loses of it.

    `low` and `high` bound the drop, each with the probability `confidence`; `max_drop` is what was
    agreed, None where nothing was. `enough` is how many such samples would show it, if these don't:
    0 where no number would, or none is asked for. `data` is the digest of the samples. `output` is
    the name of the output at `place`; where the package rounds on purpose, and a drop was agreed
    on, the metric `decides` about that output, and no tolerance does. `changed` counts the samples
    whose value isn't eager's; None where a sample has none of its own (AUC), and in older records.
    """

    name: str
    output: str
    samples: int
    eager: float
    package: float
    drop: float
    low: float
    high: float
    is_error: bool
    confidence: float
    data: str
    max_drop: float | None = None
    enough: int = 0
    place: int = 0
    decides: bool = False
    changed: int | None = added_field(None)

    @property
    def standing(self) -> Standing:
        """What the samples say about what was agreed."""
        if self.max_drop is None:
            return "not agreed"
        if self.high <= self.max_drop:
            return "kept"
        return "broken" if self.low > self.max_drop else "not known"

    @property
    def has_too_few_samples(self) -> bool:
        """Return whether a package that changes nothing would be refused, too, for want of them."""
        # For some numbers of samples there is no bound, whatever they say.
        return self.standing == "not known" and (self.changed == 0 or math.isinf(self.high))

    @property
    def shown_name(self) -> str:
        """Its name for MLflow, which takes no other marks: `ndcg at 5`."""
        return self.name.replace("@", " at ").replace(":", " ")

    @property
    def lost(self) -> str:
        """What is lost: `0.0012`, or of an error `1.20%`, by which it has grown."""
        return self._format_drop(self.drop)

    @property
    def bounds(self) -> str:
        """Between what the drop lies."""
        return f"{self._format_drop(self.low)} to {self._format_drop(self.high)}"

    @property
    def agreed(self) -> str:
        """How much may be lost; `-` where nothing was agreed."""
        return "-" if self.max_drop is None else self._format_drop(self.max_drop)

    @property
    def brief(self) -> str:
        """The package's value and what may be lost: `top-1 0.970, at most 0.0040 lost`."""
        return (
            f"{self.name} {self.package:.4g}, at most {self._format_drop(max(self.high, 0.0))} lost"
        )

    def is_beaten_by(self, other: MeasuredMetric) -> bool | None:
        """Return whether the other package's value is better by more than may be lost.

        None where the two can't be compared: other samples, another metric, or nothing agreed.
        """
        if (self.name, self.output, self.data) != (other.name, other.output, other.data):
            return None
        if self.max_drop is None:
            return None
        if self.is_error:
            return self.package > other.package * (1.0 + self.max_drop)
        return self.package < other.package - self.max_drop

    @property
    def figures(self) -> str:
        """Both values and the drop: `0.972 by eager, 0.970 by the package, ...`."""
        unit = "of eager's " if self.is_error else ""
        return (
            f"{self.name} of {self.samples} samples is {self.eager:.4g} by eager and "
            f"{self.package:.4g} by the package: a drop of {self.lost} {unit}"
            f"({self.bounds}, {self.confidence:.4g} sure)"
        )

    @property
    def text(self) -> str:
        """The figures with what they mean for what was agreed."""
        if self.max_drop is None:
            return f"{self.figures}; the recipe agrees on no max_drop under [metric]"
        agreed = f"{self.agreed} is agreed"
        if self.standing == "kept":
            return f"{self.figures}; at most {agreed}"
        if self.standing == "broken":
            return f"{self.figures}, which is more than the recipe allows: {agreed}"
        if self.enough:
            unchanged = ", though none changed" if self.changed == 0 else ""
            return (
                f"{self.figures}, which is not enough samples to tell{unchanged}: {agreed}, and "
                f"some {self.enough} samples like these would show it. Deliver more of them"
            )
        return (
            f"{self.figures}, which is not enough samples to tell, and more of them would not "
            f"help as it looks: {agreed}"
        )

    def _format_drop(self, drop: float) -> str:
        if self.is_error:
            return f"{drop:.2%}"
        return f"{drop:.0e}" if 1e-9 < abs(drop) < 5e-5 else f"{drop:.4f}"
