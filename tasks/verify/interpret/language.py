"""What Triton's interpreter lacks of what Inductor's kernels are made of.

libdevice's functions are computed by torch on the CPU; reductions by a function of the kernel's own
go by halves of whole arrays, where the interpreter goes element by element in Python; bfloat16 is
rounded to the nearest, as a GPU does; a masked load without a value for the rest gives what nobody
should use; and the language's builtins are replaced once for a program, not at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from handoff.artifacts.errors import EnvironmentLacking
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.verify.interpret.memory import Memory

# An object of Triton's: a module of it, a handle, a type.
Handle = Any

_POISON = -0x5A5A5A5A


def _round_away(x: torch.Tensor) -> torch.Tensor:
    return torch.sign(x) * torch.floor(torch.abs(x) + 0.5)


# By the symbol without its beginning and the mark of its type.
_LIBDEVICE: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos",
        "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
        "erfc", "erfinv", "lgamma", "floor", "ceil", "trunc", "signbit", "atan2", "fmod", "hypot",
        "copysign", "nextafter", "pow", "fmax", "fmin",
    )},
    "fabs": torch.abs, "rint": torch.round, "nearbyint": torch.round, "round": _round_away,
    "isnan": torch.isnan, "isinf": torch.isinf, "finite": torch.isfinite,
    "isfinite": torch.isfinite, "normcdf": torch.special.ndtr, "normcdfinv": torch.special.ndtri,
    "j0": torch.special.bessel_j0, "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1,
    "cyl_bessel_i0": torch.special.i0, "cyl_bessel_i1": torch.special.i1,
    "erfcx": torch.special.erfcx, "exp10": lambda x: torch.pow(10.0, x),
    "cbrt": lambda x: torch.sign(x) * torch.abs(x).double().pow(1 / 3).to(x.dtype),
    "fma": lambda x, y, z: torch.addcmul(z.double(), x.double(), y.double()).to(z.dtype),
    "llrint": lambda x: torch.round(x).long(), "llround": lambda x: _round_away(x).long(),
    "ilogb": lambda x: torch.frexp(x).exponent - 1,
    "ldexp": lambda x, n: torch.ldexp(x.double(), n).to(x.dtype),
}  # fmt: skip


class NotInterpretedError(Exception):
    """What a kernel asks for has no interpretation here; the message names it."""


def require_interpreter() -> None:
    """Raise `EnvironmentLacking` unless Triton was imported to interpret (`TRITON_INTERPRET`)."""
    interpreter = import_module("triton.runtime.interpreter")
    standard = import_module("triton.language.standard")
    if not isinstance(standard.sum, interpreter.InterpretedFunction):
        raise EnvironmentLacking(
            "Triton doesn't interpret here", expected="TRITON_INTERPRET=1 when it is imported",
            got="a process without", remedy="Run the step 'interpret' through a release",
        )  # fmt: skip


@contextmanager
def interpreting(memory: Memory) -> Iterator[Handle]:
    """Let kernels be run by Triton's interpreter in the body, on `memory`; give its builder."""
    require_interpreter()
    interpreter = import_module("triton.runtime.interpreter")
    with ExitStack() as stack, np.errstate(all="ignore"):
        patches = [
            *_memory_patches(interpreter, memory), *_operation_patches(interpreter),
            *_libdevice_patches(interpreter),
        ]  # fmt: skip
        for owner, name, value in patches:
            stack.enter_context(patch_attribute(owner, name, value))
        scope = interpreter._patch_lang(
            import_module("torch._inductor.runtime.triton_helpers").max2.fn
        )
        stack.callback(scope.restore)
        yield interpreter


Patch = tuple[object, str, object]


# What no kernel of Inductor's that is checked here asks for.
_UNSUPPORTED = (
    "create_atomic_cas", "create_atomic_poll", "create_make_tensor_descriptor",
    "create_inline_asm", "create_dot_scaled",
)  # fmt: skip


def _memory_patches(interpreter: Handle, memory: Memory) -> list[Patch]:
    access = _MemoryAccess(interpreter, memory)
    builder = interpreter.InterpreterBuilder
    return [
        (builder, "create_masked_load", lambda _builder, *args: access.load(*args)),
        (builder, "create_masked_store", lambda _builder, *args: access.store(*args)),
        (builder, "create_atomic_rmw", lambda _builder, *args: access.atomic_rmw(*args)),
        *((builder, name, _refuse(name)) for name in _UNSUPPORTED),
    ]


@dataclass(frozen=True)
class _MemoryAccess:
    """How kernels load and store: in the memory of their arguments alone."""

    interpreter: Handle
    memory: Memory

    def load(self, ptrs: Handle, mask: Handle, other: Handle, *_policy: object) -> Handle:
        kind = ptrs.get_element_ty()
        dtype = self.interpreter._get_np_dtype(kind)
        real, allowed = self._real_addresses(ptrs, mask)
        rest = other.data if other is not None else _poison(ptrs.data.shape, kind, dtype)
        rest = np.ascontiguousarray(np.broadcast_to(rest, ptrs.data.shape))
        native = self.interpreter._interpreter
        return self.interpreter.TensorHandle(native.load(real, allowed, rest, dtype), kind)

    def store(self, ptrs: Handle, value: Handle, mask: Handle, *_policy: object) -> Handle:
        real, allowed = self._real_addresses(ptrs, mask)
        values = np.ascontiguousarray(np.broadcast_to(value.data, ptrs.data.shape))
        return self.interpreter._interpreter.store(real, values, allowed)

    def atomic_rmw(self, operation: Handle, ptr: Handle, *rest: Handle) -> Handle:
        val, mask, sem, _scope = rest
        real, allowed = self._real_addresses(ptr, mask)
        builder = self.interpreter.interpreter_builder
        kind = builder.ir_rmw_op_to_interpreter_rmw_op[operation]
        order = builder.ir_sem_to_interpreter_sem[sem]
        values = np.ascontiguousarray(np.broadcast_to(val.data, ptr.data.shape))
        previous = self.interpreter._interpreter.atomic_rmw(kind, real, values, allowed, order)
        return self.interpreter.TensorHandle(previous, val.dtype.scalar)

    def _real_addresses(self, ptrs: Handle, mask: Handle) -> tuple[Handle, Handle]:
        allowed = np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)
        width = int(self.interpreter._get_np_dtype(ptrs.get_element_ty()).itemsize)
        real = self.memory.real_addresses(ptrs.data, allowed, width)
        return real, np.ascontiguousarray(allowed)


def _poison(shape: tuple[int, ...], kind: Handle, dtype: np.dtype[Any]) -> Handle:
    if kind.name == "bf16":
        return np.full(shape, 0x7FC0, dtype)
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype)
    return np.full(shape, _POISON, np.int64).astype(dtype)


def _refuse(name: str) -> Callable[..., object]:
    def refuse(*_args: object, **_kwargs: object) -> object:
        raise NotInterpretedError(f"Triton's {name.removeprefix('create_')}")

    return refuse


def _operation_patches(interpreter: Handle) -> list[Patch]:
    handle, cast = interpreter.TensorHandle, interpreter.InterpreterBuilder.cast_impl

    def cast_nearest(self: Handle, src: Handle, dst_type: Handle) -> Handle:
        if dst_type.scalar.name == "bf16" and src.dtype.scalar.name in ("fp32", "fp16"):
            wide = torch.from_numpy(np.ascontiguousarray(src.data)).bfloat16()
            return handle(wide.view(torch.uint16).numpy(), dst_type.scalar)
        return cast(self, src, dst_type)

    def device_function(self: Handle, *args: Handle, **kwargs: Handle) -> Handle:
        return self.rewrite()(*args, **kwargs)

    return [
        (interpreter.InterpreterBuilder, "cast_impl", cast_nearest),
        (interpreter.InterpreterBuilder, "create_extern_elementwise", _extern_elementwise(handle)),
        (interpreter.InterpretedFunction, "__call__", device_function),
        (interpreter.ReduceOps, "generic_reduce", _reduce_by_halves),
        (interpreter.ScanOps, "generic_scan", _scan_by_slices),
    ]


def _extern_elementwise(handle: Handle) -> Callable[..., object]:
    def compute(
        _self: object, _library: str, _path: str, symbol: str, arguments: list[Handle],
        kind: Handle, _pure: bool,
    ) -> object:  # fmt: skip
        function = _host_function(symbol)
        tensors = [torch.from_numpy(np.ascontiguousarray(one.data)) for one in arguments]
        interpreter = import_module("triton.runtime.interpreter")
        result = function(*tensors).numpy()
        scalar = kind.scalar
        return handle(result.astype(interpreter._get_np_dtype(scalar)), scalar)

    return compute


def _host_function(symbol: str) -> Callable[..., torch.Tensor]:
    name = symbol.removeprefix("__nv_")
    for candidate in (name, name[:-1]):
        if candidate in _LIBDEVICE:
            return _LIBDEVICE[candidate]
    raise NotInterpretedError(f"libdevice's {symbol}")


def _libdevice_patches(interpreter: Handle) -> list[Patch]:
    generic = import_module("triton.language.extra.libdevice")
    device = import_module("triton.language.extra.cuda.libdevice")

    def bind_semantic(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            kwargs.pop("_semantic", None)
            return function(*args, **kwargs, _semantic=interpreter.interpreter_semantic)

        return call

    return [
        (generic, name, bind_semantic(getattr(device, name)))
        for name, function in vars(generic).items()
        if callable(function) and not name.startswith("_") and hasattr(device, name)
    ]


def _reduce_by_halves(self: Handle, input: Handle) -> list[Handle]:  # noqa: A002 - Triton's
    """Reduce neighbours by the kernel's function until one is left; of any shape, along one axis.

    Its order is kept, so that the function has to be associative alone, as Triton asks.
    """
    parts, axis = self.unravel(input, self.axis)
    kinds = [part.dtype for part in parts]
    data = [np.moveaxis(part.handle.data, axis, -1) for part in parts]
    while data[0].shape[-1] > 1:
        even = data[0].shape[-1] // 2 * 2
        rest = [one[..., even:] for one in data]
        left = [
            self.to_tensor(one[..., 0:even:2], kind) for one, kind in zip(data, kinds, strict=True)
        ]
        right = [
            self.to_tensor(one[..., 1:even:2], kind) for one, kind in zip(data, kinds, strict=True)
        ]
        combined = self.combine_fn.rewrite()(*left, *right)
        combined = combined if isinstance(combined, tuple) else (combined,)
        data = [
            np.concatenate([one.handle.data, tail], -1)
            for one, tail in zip(combined, rest, strict=True)
        ]
    return [
        self.to_tensor(_restore_axis(self, one, axis), kind)
        for one, kind in zip(data, kinds, strict=True)
    ]


def _restore_axis(reduction: Handle, data: Handle, axis: int) -> Handle:
    if reduction.axis is None:
        return data.reshape((1,) * data.ndim) if reduction.keep_dims else data[0]
    return np.moveaxis(data, -1, axis) if reduction.keep_dims else data[..., 0]


def _scan_by_slices(self: Handle, input: Handle) -> list[Handle]:  # noqa: A002 - Triton's
    """Scan by the kernel's function, all slices along the axis in their order."""
    kinds = [part.dtype for part in input]
    data = [np.moveaxis(part.handle.data, self.axis, -1) for part in input]
    scanned = [np.copy(one) for one in data]
    for index in range(1, data[0].shape[-1]):
        before = [
            self.to_tensor(one[..., index - 1], k) for one, k in zip(scanned, kinds, strict=True)
        ]
        here = [self.to_tensor(one[..., index], k) for one, k in zip(data, kinds, strict=True)]
        combined = self.combine_fn.rewrite()(*before, *here)
        combined = combined if isinstance(combined, tuple) else (combined,)
        for one, value in zip(scanned, combined, strict=True):
            one[..., index] = value.handle.data
    return [
        self.to_tensor(np.moveaxis(one, -1, self.axis), kind)
        for one, kind in zip(scanned, kinds, strict=True)
    ]
