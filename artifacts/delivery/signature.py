"""What a model takes and gives: named tensors whose shapes may hold named dynamic dimensions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from handoff.artifacts.record import added_field

# The dtypes that AOTInductor packages take and give on every target, by torch's own names.
DTYPES = (
    "float64", "float32", "float16", "bfloat16",
    "int64", "int32", "int16", "int8", "uint8", "bool",
)  # fmt: skip

# What to do about a complex tensor at the edge of a model; inside of it, any may be.
REAL_INPUTS = "Take real pairs, and begin the forward with torch.view_as_complex"
REAL_OUTPUTS = "End the forward with torch.view_as_real, which gives real and imaginary parts"

# Where a range or a size comes from: somebody said so, or the example happened to have it. Of the
# second kind nobody knows whether it is meant; any other origin says what it was read off.
DECLARED = "declared"
FROM_EXAMPLE = "example"
_ORIGIN_LIMIT = 300
_LARGEST = 2**63 - 1

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def require_identifier(name: str, what: str) -> None:
    """Raise `ValueError` unless `name` is an identifier of at most 100 characters."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected an identifier as {what}, got {name[:60]!r}")


def _require_origin(origin: str) -> None:
    if len(origin) > _ORIGIN_LIMIT or not origin.isprintable():
        raise ValueError(
            f"expected at most {_ORIGIN_LIMIT} printable characters as origin, got {origin[:60]!r}"
        )


@dataclass(frozen=True)
class Dimension:
    """The range of a dynamic dimension, both ends included; in elements.

    With `multiple_of`, its sizes are those in the range that this number divides: a network that
    halves an image four times takes multiples of 16. `origin` says where it comes from; empty
    where nothing was recorded.
    """

    min: int = 1
    max: int = 1024
    origin: str = added_field("", compare=False)
    multiple_of: int = added_field(1)

    def __post_init__(self) -> None:
        """Check that the range holds at least one size, and that both its ends are sizes."""
        _require_origin(self.origin)
        if not 0 <= self.min <= self.max:
            raise ValueError(f"expected 0 <= min <= max, got min {self.min} and max {self.max}")
        if self.multiple_of < 1:
            raise ValueError(f"expected a multiple_of of 1 or more, got {self.multiple_of}")
        if self.min % self.multiple_of or self.max % self.multiple_of:
            raise ValueError(
                f"expected min and max that are multiples of {self.multiple_of}, got min "
                f"{self.min} and max {self.max}"
            )

    def __contains__(self, size: int) -> bool:
        """Return whether `size` is one of its sizes."""
        return self.min <= size <= self.max and size % self.multiple_of == 0

    def __str__(self) -> str:
        """Return the sizes as people read them: `16 to 512 in steps of 16`; `5` for one alone."""
        if self.min == self.max:
            return str(self.min)
        steps = f" in steps of {self.multiple_of}" if self.multiple_of > 1 else ""
        return f"{self.min} to {self.max}{steps}"

    @property
    def second(self) -> int:
        """The size after the smallest; the smallest where there is no other."""
        return min(self.min + self.multiple_of, self.max)

    def nearest(self, steps: int) -> int:
        """Return the size that is `steps` times `multiple_of`, or else the end next to it."""
        return min(max(steps * self.multiple_of, self.min), self.max)

    def among(self, *steps: int) -> list[int]:
        """Return those of `steps`, times `multiple_of`, that are sizes of it; in their order."""
        return [size for step in steps if (size := step * self.multiple_of) in self]

    def restrict_to_multiples(self, multiple_of: int) -> Dimension | None:
        """Return what is left of it in multiples of this number; None where nothing is.

        The number is 1 or more.
        """
        shared = math.lcm(self.multiple_of, multiple_of)
        low, high = -(-self.min // shared) * shared, self.max // shared * shared
        return Dimension(low, high, self.origin, shared) if low <= high else None


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor: its dtype, and per axis a size or the name of a dynamic dimension.

    `low` and `high` bound the values that random inputs may take, both ends included (an
    embedding's ids, for one); without them floating-point inputs are drawn from a standard normal
    distribution and booleans evenly. `origin` says where they come from: `declared`, `example`, or
    what they were read off; empty where nothing was recorded.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None
    origin: str = added_field("", compare=False)

    def __post_init__(self) -> None:
        """Check the name, the dtype, the axes and the value range."""
        _require_origin(self.origin)
        require_identifier(self.name, "a tensor's name")
        if self.dtype not in DTYPES:
            raise ValueError(f"expected a dtype among {', '.join(DTYPES)}, got {self.dtype[:40]!r}")
        for axis in self.shape:
            if isinstance(axis, str):
                require_identifier(axis, "a dynamic dimension")
            elif axis < 0:
                raise ValueError(f"expected sizes of 0 or more in {self.name}, got {axis}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"expected both low and high for {self.name}, or neither")
        if self.low is not None and self.high is not None:
            self._require_values(self.low, self.high)

    def _require_values(self, low: float, high: float) -> None:
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError(f"expected finite values for {self.name}, got {low} to {high}")
        if not low <= high:
            raise ValueError(f"expected low <= high for {self.name}, got {low} and {high}")
        if "int" in self.dtype and math.ceil(low) > math.floor(high):
            raise ValueError(
                f"expected a whole number between low and high for {self.name}, got {low}, {high}"
            )

    def __str__(self) -> str:
        """Return the spec as people write it: `x float32 [batch, 3, 224, 224]`."""
        return f"{self.name} {self.dtype} [{', '.join(str(axis) for axis in self.shape)}]"

    @property
    def is_guessed(self) -> bool:
        """Return whether its values are the example's, and nothing says that they alone count."""
        return self.origin.partition(":")[0] == FROM_EXAMPLE

    @property
    def is_unlimited(self) -> bool:
        """Return whether it is of floating-point numbers, and any of them may come."""
        return "float" in self.dtype and self.low is None

    @property
    def values(self) -> str:
        """The values as people read them: `0 to 49999`; empty without limits."""
        if self.low is None or self.high is None:
            return ""
        if "int" in self.dtype:
            # All digits, since the last ones tell a table's end; a float64 rounds the largest up.
            return f"{math.ceil(self.low)} to {min(math.floor(self.high), _LARGEST)}"
        return f"{self.low:g} to {self.high:g}"

    def sizes(self, dimensions: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape with each dynamic dimension replaced by its size in `dimensions`."""
        return tuple(dimensions[axis] if isinstance(axis, str) else axis for axis in self.shape)


class HasShape(Protocol):
    """What has a shape: a tensor of torch's, which this module doesn't import."""

    @property
    def shape(self) -> Sequence[int]:
        """Its size along each axis."""


@dataclass(frozen=True)
class ModelSignature:
    """Inputs and outputs in the order of the call, and the ranges of their dynamic dimensions."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = ()
    dimensions: Mapping[str, Dimension] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that names are unique and plain, and every dynamic dimension has a range."""
        for name in self.dimensions:
            require_identifier(name, "a dynamic dimension")
        names = [spec.name for spec in self.inputs]
        if len(set(names)) != len(names):
            raise ValueError(f"expected inputs of different names, got {', '.join(names)}")
        for spec in (*self.inputs, *self.outputs):
            for axis in spec.shape:
                if isinstance(axis, str) and axis not in self.dimensions:
                    raise ValueError(
                        f"expected a range for dimension {axis!r} of {spec.name} under "
                        "[dimensions], got none"
                    )

    def measure_inputs(self, inputs: Iterable[HasShape]) -> dict[str, int]:
        """Return what `measure` does for tensors, which are given in the inputs' order.

        Raises `ValueError` as that does, and for another number of them.
        """
        shapes = {
            spec.name: tuple(tensor.shape)
            for spec, tensor in zip(self.inputs, inputs, strict=True)
        }  # fmt: skip
        return self.measure(shapes)

    def measure(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the size of each dynamic dimension, read off the inputs' actual shapes.

        `shapes` maps an input's name to its shape. Raises `ValueError` when a rank or a fixed
        size differs, when two inputs disagree on a dimension, or when a size leaves its range.
        """
        sizes: dict[str, int] = {}
        for spec in self.inputs:
            shape = shapes[spec.name]
            if len(shape) != len(spec.shape):
                raise ValueError(
                    f"{spec.name}: expected shape {list(spec.shape)}, got {list(shape)}"
                )
            for axis, size in zip(spec.shape, shape, strict=True):
                if isinstance(axis, int):
                    if axis != size:
                        raise ValueError(
                            f"{spec.name}: expected shape {list(spec.shape)}, got {list(shape)}"
                        )
                elif size not in self.dimensions[axis]:
                    limits = self.dimensions[axis]
                    raise ValueError(f"{spec.name}: expected {axis} from {limits}, got {size}")
                elif sizes.setdefault(axis, size) != size:
                    raise ValueError(
                        f"{spec.name}: expected {axis} = {sizes[axis]} as in another input, "
                        f"got {size}"
                    )
        return sizes
