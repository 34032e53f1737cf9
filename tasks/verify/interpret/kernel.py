"""One Triton kernel of Inductor's, run by the interpreter over its whole grid."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from handoff.artifacts.digest import Digest
from handoff.tasks.compile.cross.kernels import kernel_digest
from handoff.tasks.compile.patching import replaced
from handoff.tasks.verify.interpret.language import Handle, NotInterpretedError
from handoff.tasks.verify.interpret.memory import Memory, OutOfBoundsError


class KernelFailedError(Exception):
    """A kernel does what it may not; the message names it, its line, and what."""


@dataclass(frozen=True)
class Kernel:
    """A kernel as it was compiled: its function, what Inductor says of it, and its block sizes.

    `file` is where its source lies, by whose lines it is told.
    """

    name: str
    function: Handle
    meta: Mapping[str, Any]
    inductor: Mapping[str, Any]
    blocks: Mapping[str, int]
    file: Path

    @property
    def digest(self) -> Digest:
        """What stands for its source, as it does for the compiled one's."""
        return kernel_digest(self.file.read_text(encoding="utf-8"), self.meta)

    @property
    def parameters(self) -> list[str]:
        """The names of what a launch gives: all but the constants of the compilation."""
        found = inspect.signature(self.function.fn).parameters
        annotated = {
            name for name, one in found.items() if str(one.annotation).endswith("constexpr")
            or getattr(one.annotation, "__name__", "") == "constexpr"
        }  # fmt: skip
        return [name for name in found if name not in annotated]

    @property
    def written(self) -> list[str]:
        """The names of the parameters that it stores to."""
        changed = set(self.inductor.get("mutated_arg_names", ()))
        return [name for name in self.parameters if name in changed or "out_ptr" in name]

    def run(
        self,
        interpreter: Handle,
        memory: Memory,
        given: Sequence[object],
        *,
        backwards: bool = False,
    ) -> int:
        """Run the whole grid on `given`, one value for each parameter; return its size.

        A GPU runs the grid's programs in any order: here from the first to the last, or backwards.

        Raises `KernelFailedError` where it leaves its buffers or breaks an assertion of its own,
        and `NotInterpretedError` for what Triton's interpreter hasn't.
        """
        names = [*self.parameters, *self.inductor.get("extra_launcher_args", ())]
        values = dict(zip(names, given, strict=True))
        grid = self._grid(values)
        arguments = self._arguments(interpreter, memory, values)
        builder = interpreter.interpreter_builder
        builder.set_grid_dim(*grid)
        function = self.function.rewrite()
        try:
            for place in reversed(_places(grid)) if backwards else _places(grid):
                builder.set_grid_idx(*place)
                function(**arguments)
        except NotInterpretedError:
            raise
        except (OutOfBoundsError, AssertionError) as error:
            raise KernelFailedError(f"{self._where(error)}: {_what(error)}") from error
        except Exception as error:
            raise NotInterpretedError(
                f"{self._where(error)}: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        return grid[0] * grid[1] * grid[2]

    def _grid(self, values: Mapping[str, object]) -> tuple[int, int, int]:
        heuristics = import_module("torch._inductor.runtime.triton_heuristics")
        expression = heuristics.GridExpr.from_meta(self.inductor, dict(self.blocks))
        x, y, z = expression.eval_slow({**values, **self.blocks})
        return int(x), int(y), int(z)

    def _arguments(
        self, interpreter: Handle, memory: Memory, values: Mapping[str, object]
    ) -> dict[str, Any]:  # fmt: skip
        tensors = [(name, v) for name, v in values.items() if isinstance(v, torch.Tensor)]
        addresses = memory.let_in(tensors)
        language = import_module("triton.language")
        made: dict[str, Any] = {}
        for name in inspect.signature(self.function.fn).parameters:
            if name in addresses:
                tensor = values[name]
                assert isinstance(tensor, torch.Tensor)
                made[name] = _pointer(interpreter, language, tensor, addresses[name])
            elif name in values:
                made[name] = interpreter._implicit_cvt(values[name])
            elif name in self.blocks:
                made[name] = self.blocks[name]
            else:
                made[name] = self.meta["constants"][name]
        return made

    def _where(self, error: BaseException) -> str:
        """Return the kernel's name, with the line of its source that an error came from."""
        lines = [
            frame.lineno for one in _chain(error)
            for frame in traceback.extract_tb(one.__traceback__)
            if frame.filename == str(self.file) and frame.lineno
        ]  # fmt: skip
        if not lines:
            return self.name
        number = lines[-1]
        return f"{self.name}, line {number} ({linecache.getline(str(self.file), number).strip()})"

    def stores(self, parameter: str) -> str:
        """Return the kernel's name and the lines that store to a parameter, with their numbers."""
        found = [
            f"line {number} ({line.strip()})"
            for number, line in enumerate(self.file.read_text(encoding="utf-8").splitlines(), 1)
            if f"tl.store({parameter} " in line or f"tl.atomic_add({parameter} " in line
        ]
        return f"{self.name}, {'; '.join(found[:3]) or parameter}"


def _what(error: BaseException) -> str:
    return str(error) or "an assertion of its own doesn't hold"


def _chain(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _places(grid: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    return [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]


def _pointer(interpreter: Handle, language: Handle, tensor: torch.Tensor, address: int) -> Handle:
    numpy = import_module("numpy")
    runtime = import_module("triton.runtime.jit")
    kind = language.str_to_ty(runtime.mangle_type(tensor), None)
    handle = interpreter.TensorHandle(numpy.array([address], dtype=numpy.uint64), kind)
    return language.tensor(handle, kind)


def define(name: str, source: str, folder: Path, blocks: Mapping[str, int]) -> Kernel:
    """Return the kernel of that name, whose source has been read; it is written to `folder`.

    Triton reads a function's text from its file. What Inductor decorates it with is kept beside it.
    """
    file = folder / f"{name}.py"
    file.write_text(source, encoding="utf-8")
    linecache.checkcache(str(file))
    heuristics = import_module("torch._inductor.runtime.triton_heuristics")
    signature = inspect.signature(heuristics.cached_autotune)
    kept: list[tuple[Any, Mapping[str, Any], Mapping[str, Any]]] = []

    def keep(*args: Handle, **kwargs: Handle) -> Callable[[Handle], Handle]:
        given = signature.bind(*args, **kwargs).arguments

        def decorate(function: Handle) -> Handle:
            kept.append((function, given["triton_meta"], given.get("inductor_meta") or {}))
            return function

        return decorate

    helpers = import_module("torch._inductor.runtime.triton_helpers")
    with (
        replaced(heuristics, "cached_autotune", keep),
        replaced(helpers, "set_driver_to_gpu", lambda: None),
    ):
        scope: dict[str, Any] = {"__name__": name, "__file__": str(file)}
        exec(compile(source, str(file), "exec"), scope)  # noqa: S102 - Inductor's own code, and read
    if len(kept) != 1:
        raise NotInterpretedError(f"{name}, which has {len(kept)} kernels in one")
    function, meta, inductor = kept[0]
    return Kernel(name, function, meta, inductor, blocks, file)
