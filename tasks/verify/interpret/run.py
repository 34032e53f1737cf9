"""The whole program of a GPU, on the CPU: its kernels interpreted, all else done by ATen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._inductor.select_algorithm import extern_kernels
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from handoff.artifacts.errors import first_line
from handoff.tasks.compile.cross.python_program import PythonProgram
from handoff.tasks.verify.float64 import flatten_tensors
from handoff.tasks.verify.interpret.kernel import Kernel, define_kernel
from handoff.tasks.verify.interpret.language import interpreting
from handoff.tasks.verify.interpret.memory import Memory
from handoff.tasks.verify.interpret.program import LAUNCH, WROTE, NotCheckableError, ProgramParts

_ATEN = torch.ops.aten


def find_operator(name: str) -> OpOverload:
    """Return the operator of that name: `aten::mm.default`."""
    qualified, _, overload = name.partition(".")
    namespace, _, plain = qualified.partition("::")
    operator: OpOverload = getattr(getattr(getattr(torch.ops, namespace), plain), overload)
    return operator


def on_cpu(operator: OpOverload) -> Callable[..., Any]:
    """Return what computes the operator on the CPU.

    It takes tensors on the CPU of the shapes and dtypes that the operator takes; devices among its
    arguments become the CPU.
    """
    function = _CPU_SUBSTITUTES.get(operator, operator)

    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - an operator's
        args, kwargs = pytree.tree_map_only(
            torch.device, lambda _: torch.device("cpu"), (args, kwargs)
        )
        return function(*args, **kwargs)

    return call


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    *, causal: bool, scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """Return attention `[N, H, L, E]`, by ATen's own composition of products and a softmax."""
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, bias, is_causal=causal, scale=scale
    )


def _unused_output() -> torch.Tensor:
    # Log-sums, seeds and offsets are for the backward pass, which no package has.
    return torch.full((), float("nan"))


def _efficient_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    _logsumexp: bool, _dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attended = _attention(query, key, value, bias, causal=causal, scale=scale)
    return attended, _unused_output(), _unused_output(), _unused_output()


def _flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _dropout: float = 0.0,
    causal: bool = False, _mask: bool = False, *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attended = _attention(query, key, value, None, causal=causal, scale=scale)
    return (attended, *(_unused_output() for _ in range(8)))


def _cudnn_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None,
    _logsumexp: bool, _dropout: float = 0.0, causal: bool = False, _mask: bool = False,
    *, scale: float | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    attended = _attention(query, key, value, bias, causal=causal, scale=scale)
    return (attended, *(_unused_output() for _ in range(8)))


# Operators that are for GPUs alone.
_CPU_SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    _ATEN._scaled_dot_product_efficient_attention.default: _efficient_attention,
    _ATEN._scaled_dot_product_flash_attention.default: _flash_attention,
    _ATEN._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
}


Tensors = tuple[torch.Tensor, ...]
# Called with a buffer's name, what is in it, and what has written it.
Watch = Callable[[str, torch.Tensor, str], None]

_BUILTINS = {"max": max, "min": min, "abs": abs, "int": int, "float": float, "bool": bool,
             "range": range, "len": len, "round": round, "sum": sum, "pow": pow}  # fmt: skip


@dataclass
class InterpretedProgram:
    """A program that can be called on the CPU, and what its calls have taken.

    With `backwards`, the programs of each grid are run from the last to the first.
    """

    kernels: Mapping[str, Kernel]
    call: Any
    external: tuple[str, ...]
    weights: Mapping[str, torch.Tensor]
    watch: Watch | None = None
    backwards: bool = False
    launched: set[str] = field(default_factory=set)
    programs: int = 0
    _memory: Memory = field(default_factory=Memory)
    _interpreter: Any = None

    def __call__(self, inputs: Tensors) -> Tensors:
        """Return the outputs for inputs of the program's shapes and dtypes, flattened.

        Raises `KernelFailedError` for a kernel that does what it may not, `NotInterpretedError` and
        `NotCheckableError` for what can't be carried out here.
        """
        # Storages of their own, so that what lies beyond an input is seen to.
        arguments = [_copy_storage(tensor) for tensor in inputs]
        with torch.no_grad(), interpreting(self._memory) as interpreter:
            self._interpreter = interpreter
            try:
                outputs = self.call(arguments)
            except (NameError, AttributeError, TypeError, RuntimeError) as error:
                raise NotCheckableError(
                    f"the calls around the kernels aren't carried out: {first_line(error)}"
                ) from error
        return tuple(one.clone() for one in flatten_tensors(outputs))

    def launch(self, name: str, names: Sequence[str], *arguments: object) -> None:
        """Run a kernel, on behalf of the program."""
        kernel = self.kernels[name]
        self.launched.add(name)
        self.programs += kernel.run(
            self._interpreter, self._memory, arguments, backwards=self.backwards
        )
        if self.watch is not None:
            passed = dict(zip(kernel.parameters, zip(names, arguments, strict=True), strict=False))
            for parameter in kernel.written:
                buffer, value = passed.get(parameter, ("", None))
                if buffer and isinstance(value, torch.Tensor):
                    self.watch(buffer, value, kernel.describe_stores(parameter))

    def record_write(self, buffer: str, value: object, by: str) -> None:
        """Take note of a buffer that something else than a kernel has filled."""
        if self.watch is not None and isinstance(value, torch.Tensor):
            self.watch(buffer, value, by)


def prepare(
    program: PythonProgram,
    parts: ProgramParts,
    blocks: Mapping[str, Mapping[str, int]],
    folder: Path,
) -> InterpretedProgram:
    """Return what runs the program, whose parts have been read; kernels' files go to `folder`.

    `blocks` are the block sizes that each kernel was compiled with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kernels = {
        name: define_kernel(name, source, folder, blocks.get(name, {}))
        for name, source in parts.kernels.items()
    }
    weights = {name: _copy_storage(value) for name, value in program.weights.items()}
    interpreted = InterpretedProgram(kernels, None, parts.operators, weights)
    scope: dict[str, Any] = {
        "__builtins__": _BUILTINS,
        **_program_globals(),
        **weights,
        "aten": [on_cpu(find_operator(name)) for name in parts.operators],
        LAUNCH: interpreted.launch,
        WROTE: interpreted.record_write,
    }
    exec(compile(parts.call, "call", "exec"), scope)  # noqa: S102 - Inductor's own code, and read
    interpreted.call = scope["call"]
    return interpreted


def _program_globals() -> dict[str, Any]:
    """Return what the program has of torch, under the names that Inductor gives it."""
    guards: Any = torch._C._dynamo.guards

    class _Torch:
        """Torch's dtypes, for the program names them so."""

        inf, nan = math.inf, math.nan

    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            setattr(_Torch, name, value)
    return {
        "torch": _Torch,
        "math": math,
        "inf": math.inf,
        "nan": math.nan,
        "device": lambda *_args, **_kwargs: torch.device("cpu"),
        "extern_kernels": extern_kernels,
        "empty_strided_cuda": make_poisoned_buffer,
        "empty_strided_cpu": make_poisoned_buffer,
        "empty_strided": make_poisoned_buffer,
        "reinterpret_tensor": guards._reinterpret_tensor,
        "assert_size_stride": guards.assert_size_stride,
        "assert_size_stride_grouped": getattr(guards, "assert_size_stride_grouped", _no_op),
        # Of what the CPU's ATen gives: its strides and places are its own.
        "assert_tensor_metadata": _no_op,
        "assert_alignment": _no_op,
        "copy_if_misaligned": lambda tensor: tensor,
    }


def _no_op(*_args: object, **_kwargs: object) -> None:
    return None


def make_poisoned_buffer(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, **_: object
) -> torch.Tensor:
    """Return a buffer whose values nobody should use: NaN, or whole numbers far from any index."""
    extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    count = extent if math.prod(size) else 0
    if dtype.is_floating_point or dtype.is_complex:
        storage = torch.full((count,), math.nan, dtype=dtype)
    elif dtype is torch.bool:
        storage = torch.full((count,), fill_value=True, dtype=dtype)
    else:
        storage = torch.full((count,), torch.iinfo(dtype).min // 3 * 2, dtype=dtype)
    return storage.as_strided(tuple(size), tuple(stride))


def _copy_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in a storage of its own, of the same strides, which ends where it ends."""
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    extent = 1 + sum((n - 1) * step for n, step in steps) if tensor.numel() else 0
    storage = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset()).clone()
    return storage.as_strided(tensor.size(), tensor.stride())
