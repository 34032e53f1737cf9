"""Compare a call's inputs with a model's signature, in less than a microsecond for each input.

A pass over the values of an input takes longer, and grows with it; see `InputChecks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.artifacts.errors import InputsRefused, format_names, suggest_tensor_inputs

if TYPE_CHECKING:
    import torch

_REMEDY = "Give the model what its signature declares (manifest.json)"
_INTEGERS = {"int64", "int32", "int16", "int8", "uint8"}


class _InputRule(NamedTuple):
    """What one input has to be; `dynamic` names each dynamic axis' dimension and range."""

    dtype: torch.dtype
    rank: int
    fixed: tuple[tuple[int, int], ...]
    dynamic: tuple[tuple[int, str, int, int, int], ...]
    values: tuple[float, float] | None


class InputChecks:
    """The checks of one model's inputs, worked out once.

    Whole numbers are compared with their declared range only with `values`: a pass over the
    tensor. Floating-point ranges bound what random inputs are drawn from, and are not checked.
    """

    def __init__(self, signature: ModelSignature, *, device: str, values: bool) -> None:
        """Work out what to compare for inputs on `device`, `cpu` or `cuda`."""
        import torch

        self.signature = signature
        self.device = device
        self._tensor = torch.Tensor
        self._strided = torch.strided
        self._aminmax = torch.aminmax
        self._rules = tuple(
            _make_rule(getattr(torch, spec.dtype), spec, signature, values)
            for spec in signature.inputs
        )

    def fit(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Return whether the inputs are what the signature declares: of its shapes and dtypes.

        They also have to be contiguous, on the device, and with `values` in their ranges.
        """
        try:
            return self._fit(inputs)
        except (AttributeError, RuntimeError):
            # What is no tensor lacks what is asked for here; so do some layouts.
            return False

    def _fit(self, inputs: Sequence[torch.Tensor]) -> bool:
        # One loop, since each function that it called would take a tenth of a microsecond more.
        if len(inputs) != len(self._rules):
            return False
        strided, on_cpu = self._strided, self.device == "cpu"
        sizes: dict[str, int] = {}
        for tensor, (dtype, rank, fixed, dynamic, values) in zip(inputs, self._rules, strict=True):
            shape = tensor.shape
            if (
                tensor.dtype is not dtype
                or len(shape) != rank
                or not (tensor.is_cpu if on_cpu else tensor.is_cuda)
                or tensor.layout is not strided
            ):
                return False
            for axis, size in fixed:
                if shape[axis] != size:
                    return False
            for axis, name, low, high, step in dynamic:
                size = shape[axis]
                if not low <= size <= high or size % step or sizes.setdefault(name, size) != size:
                    return False
            if not tensor.is_contiguous():
                return False
            if values is not None and tensor.numel():
                least, most = self._aminmax(tensor)
                if least.item() < values[0] or most.item() > values[1]:
                    return False
        return True

    def order_inputs(
        self, inputs: Sequence[torch.Tensor], named: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """Return all inputs in the signature's order; they may be of any shapes and dtypes.

        Raises `InputsRefused` for a name that isn't an input's, an input that is given twice, and
        one that lacks.
        """
        names = [spec.name for spec in self.signature.inputs]
        if len(inputs) > len(names):
            raise self._wrong_count(len(inputs) + len(named))
        unknown = [name for name in named if name not in names]
        if unknown:
            raise InputsRefused(
                f"the model has no input {unknown[0][:60]}", expected=format_names(names),
                got=format_names([f"{len(inputs)} without a name"] * bool(inputs) + list(named)),
                remedy=suggest_tensor_inputs(
                    unknown[0], names, "Name the inputs as model.signature does"
                ),
            )  # fmt: skip
        if twice := [name for name in names[: len(inputs)] if name in named]:
            raise InputsRefused(
                f"the input {twice[0]} is given twice", expected="each input once",
                got=f"{len(inputs)} without a name, which are "
                f"{format_names(names[: len(inputs)])}, and {format_names(list(named))} by name",
                remedy="Leave one of the two out",
            )  # fmt: skip
        if missing := [name for name in names[len(inputs) :] if name not in named]:
            raise InputsRefused(
                f"the call lacks {format_names(missing)}", expected=format_names(names),
                got=format_names([*names[: len(inputs)], *named]),
                remedy=f"Give {format_names(missing)} too",
            )  # fmt: skip
        return (*inputs, *(named[name] for name in names[len(inputs) :]))

    def _wrong_count(self, count: int) -> InputsRefused:
        names = [spec.name for spec in self.signature.inputs]
        return InputsRefused(
            "the call has another number of inputs",
            expected=f"{len(names)}: {format_names(names)}", got=str(count),
            remedy="Give each of them, in this order or by name; the tensors of a dictionary, a "
            "tuple or a dataclass one by one",
        )  # fmt: skip

    def make_contiguous(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Return the inputs as the package takes them: those in another layout are copied.

        They become contiguous; shapes and dtypes, which may be any, stay.
        """
        return tuple(
            value.contiguous()
            if isinstance(value, self._tensor) and value.layout is self._strided else value
            for value in inputs
        )  # fmt: skip

    def refusal(self, inputs: Sequence[object]) -> InputsRefused:
        """Return the error for inputs that don't fit, which names the first one that is wrong."""
        if len(inputs) != len(self._rules):
            return self._wrong_count(len(inputs))
        shapes: dict[str, tuple[int, ...]] = {}
        for spec, value in zip(self.signature.inputs, inputs, strict=True):
            if problem := self._kind_problem(spec, value):
                return _input_refusal(spec.name, *problem)
            assert isinstance(value, self._tensor)
            shapes[spec.name] = tuple(value.shape)
        try:
            self.signature.measure(shapes)
        except ValueError as error:
            expected, _, got = str(error).partition(", got ")
            name, _, limits = expected.partition(": expected ")
            return _input_refusal(name, limits, got, self._remedy_of_shape(shapes))
        return self._values_problem(inputs)

    def _remedy_of_shape(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Return what to do about a wrong size; a single example lacks the axis of the batch."""
        for spec in self.signature.inputs:
            lacks_one = len(shapes.get(spec.name, ())) == len(spec.shape) - 1
            if lacks_one and isinstance(spec.shape[0], str):
                return f"Give {spec.name}[None]: its first axis is {spec.shape[0]}"
        return _REMEDY

    def _kind_problem(self, spec: TensorSpec, value: object) -> tuple[str, str, str] | None:
        """Return what is expected of a tensor of its kind, what was given, and what to do."""
        name = spec.name
        if not isinstance(value, self._tensor):
            kind = type(value).__name__
            function = "from_numpy" if kind == "ndarray" else "as_tensor"
            return "a torch.Tensor", kind, f"Give torch.{function}({name})"
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype != spec.dtype:
            return spec.dtype, dtype, f"Give {name}.to(torch.{spec.dtype})"
        if value.device.type != self.device:
            remedy = f"Give {name}.to({self.device!r})"
            return f"a tensor on {self.device}", f"one on {value.device}", remedy
        if value.layout is not self._strided:
            return "a dense tensor", str(value.layout), f"Give {name}.to_dense()"
        return None

    def _values_problem(self, inputs: Sequence[object]) -> InputsRefused:
        for spec, rule, tensor in zip(self.signature.inputs, self._rules, inputs, strict=True):
            assert isinstance(tensor, self._tensor)
            if not tensor.is_contiguous():
                return _input_refusal(
                    spec.name, "a contiguous tensor: the last axis side by side in memory",
                    f"strides {tuple(tensor.stride())} for the shape {list(tensor.shape)}",
                    f"Give {spec.name}.contiguous(), or load the model with layouts='copy', which "
                    "does that for each call",
                )  # fmt: skip
            if rule.values is not None and tensor.numel():
                low, high = (int(bound.item()) for bound in self._aminmax(tensor))
                if low < rule.values[0] or high > rule.values[1]:
                    return _input_refusal(
                        spec.name, f"values from {spec.values}", f"{low} to {high}"
                    )
        raise AssertionError("these inputs fit")


def _make_rule(
    dtype: torch.dtype, spec: TensorSpec, signature: ModelSignature, values: bool
) -> _InputRule:
    bounds = None
    if values and spec.dtype in _INTEGERS and spec.low is not None and spec.high is not None:
        bounds = (spec.low, spec.high)
    return _InputRule(
        dtype,
        len(spec.shape),
        tuple((axis, size) for axis, size in enumerate(spec.shape) if isinstance(size, int)),
        tuple(
            (axis, name, limits.min, limits.max, limits.multiple_of)
            for axis, name in enumerate(spec.shape)
            if isinstance(name, str) and (limits := signature.dimensions[name])
        ),
        bounds,
    )


def _input_refusal(name: str, expected: str, got: str, remedy: str = _REMEDY) -> InputsRefused:
    what = f"{name} is not what the model takes"
    return InputsRefused(what, expected=expected, got=got, remedy=remedy)
