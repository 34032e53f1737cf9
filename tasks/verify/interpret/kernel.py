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
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.verify.interpret.language import Handle, NotInterpretedError
from handoff.tasks.verify.interpret.memory import Memory, OutOfBoundsError


class KernelFailedError(Exception):
    """A kernel does what it may not; the message names it, its line, and what."""


@dataclass(frozen=True)
class Kernel:
    """A kernel as it was compiled: its function, what Inductor says of it, and its block sizes.

    `file` is where its source lies; failures are reported by its lines.
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
        declared = inspect.signature(self.function.fn).parameters
        constants = {
            name for name, parameter in declared.items()
            if str(parameter.annotation).endswith("constexpr")
            or getattr(parameter.annotation, "__name__", "") == "constexpr"
        }  # fmt: skip
        return [name for name in declared if name not in constants]

    @property
    def written(self) -> list[str]:
        """The names of the parameters that it stores to."""
        changed = set(self.inductor.get("mutated_arg_names", ()))
        return [name for name in self.parameters if name in changed or "out_ptr" in name]

    def run(
        self,
        interpreter: Handle,
        memory: Memory,
        launch_arguments: Sequence[object],
        *,
        backwards: bool = False,
    ) -> int:
        """Run the whole grid on `launch_arguments`, one value for each parameter; return its size.

        A GPU runs the grid's programs in any order: here from the first to the last, or backwards.

        Raises `KernelFailedError` where it leaves its buffers or breaks an assertion of its own,
        and `NotInterpretedError` for what Triton's interpreter hasn't.
        """
        names = [*self.parameters, *self.inductor.get("extra_launcher_args", ())]
        values = dict(zip(names, launch_arguments, strict=True))
        grid = self._evaluate_grid(values)
        arguments = self._convert_arguments(interpreter, memory, values)
        builder = interpreter.interpreter_builder
        builder.set_grid_dim(*grid)
        function = self.function.rewrite()
        try:
            for position in reversed(_grid_positions(grid)) if backwards else _grid_positions(grid):
                builder.set_grid_idx(*position)
                function(**arguments)
        except NotInterpretedError:
            raise
        except (OutOfBoundsError, AssertionError) as error:
            problem = str(error) or "an assertion of its own doesn't hold"
            raise KernelFailedError(f"{self._location_of(error)}: {problem}") from error
        except Exception as error:
            raise NotInterpretedError(
                f"{self._location_of(error)}: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        return grid[0] * grid[1] * grid[2]

    def _evaluate_grid(self, values: Mapping[str, object]) -> tuple[int, int, int]:
        heuristics = import_module("torch._inductor.runtime.triton_heuristics")
        expression = heuristics.GridExpr.from_meta(self.inductor, dict(self.blocks))
        x, y, z = expression.eval_slow({**values, **self.blocks})
        return int(x), int(y), int(z)

    def _convert_arguments(
        self, interpreter: Handle, memory: Memory, values: Mapping[str, object]
    ) -> dict[str, Any]:  # fmt: skip
        tensors = [(name, v) for name, v in values.items() if isinstance(v, torch.Tensor)]
        addresses = memory.map_arguments(tensors)
        language = import_module("triton.language")
        converted: dict[str, Any] = {}
        for name in inspect.signature(self.function.fn).parameters:
            if name in addresses:
                tensor = values[name]
                assert isinstance(tensor, torch.Tensor)
                converted[name] = _make_pointer(interpreter, language, tensor, addresses[name])
            elif name in values:
                converted[name] = interpreter._implicit_cvt(values[name])
            elif name in self.blocks:
                converted[name] = self.blocks[name]
            else:
                converted[name] = self.meta["constants"][name]
        return converted

    def _location_of(self, error: BaseException) -> str:
        """Return the kernel's name, with the line of its source that an error came from."""
        lines = [
            frame.lineno for cause in _exception_chain(error)
            for frame in traceback.extract_tb(cause.__traceback__)
            if frame.filename == str(self.file) and frame.lineno
        ]  # fmt: skip
        if not lines:
            return self.name
        number = lines[-1]
        return f"{self.name}, line {number} ({linecache.getline(str(self.file), number).strip()})"

    def describe_stores(self, parameter: str) -> str:
        """Return the kernel's name and the lines that store to a parameter, with their numbers."""
        stores = [
            f"line {number} ({line.strip()})"
            for number, line in enumerate(self.file.read_text(encoding="utf-8").splitlines(), 1)
            if f"tl.store({parameter} " in line or f"tl.atomic_add({parameter} " in line
        ]
        return f"{self.name}, {'; '.join(stores[:3]) or parameter}"


def _exception_chain(error: BaseException | None) -> list[BaseException]:
    errors = []
    while error is not None:
        errors.append(error)
        error = error.__cause__ or error.__context__
    return errors


def _grid_positions(grid: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    return [(x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])]


def _make_pointer(
    interpreter: Handle, language: Handle, tensor: torch.Tensor, address: int
) -> Handle:
    numpy = import_module("numpy")
    runtime = import_module("triton.runtime.jit")
    kind = language.str_to_ty(runtime.mangle_type(tensor), None)
    handle = interpreter.TensorHandle(numpy.array([address], dtype=numpy.uint64), kind)
    return language.tensor(handle, kind)


def define_kernel(name: str, source: str, folder: Path, blocks: Mapping[str, int]) -> Kernel:
    """Return the kernel of that name, whose source has been read; it is written to `folder`.

    Triton reads a function's text from its file. What Inductor decorates it with is kept beside it.
    """
    file = folder / f"{name}.py"
    file.write_text(source, encoding="utf-8")
    linecache.checkcache(str(file))
    heuristics = import_module("torch._inductor.runtime.triton_heuristics")
    signature = inspect.signature(heuristics.cached_autotune)
    captured: list[tuple[Any, Mapping[str, Any], Mapping[str, Any]]] = []

    def capture(*args: Handle, **kwargs: Handle) -> Callable[[Handle], Handle]:
        bound = signature.bind(*args, **kwargs).arguments

        def decorate(function: Handle) -> Handle:
            captured.append((function, bound["triton_meta"], bound.get("inductor_meta") or {}))
            return function

        return decorate

    helpers = import_module("torch._inductor.runtime.triton_helpers")
    with (
        patch_attribute(heuristics, "cached_autotune", capture),
        patch_attribute(helpers, "set_driver_to_gpu", lambda: None),
    ):
        scope: dict[str, Any] = {"__name__": name, "__file__": str(file)}
        exec(compile(source, str(file), "exec"), scope)  # noqa: S102 - Inductor's own code, and read
    if len(captured) != 1:
        raise NotInterpretedError(f"{name}, which has {len(captured)} kernels in one")
    function, meta, inductor = captured[0]
    return Kernel(name, function, meta, inductor, blocks, file)
