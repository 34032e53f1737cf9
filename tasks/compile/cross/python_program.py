"""The program that Inductor writes for a GPU in Python: the calls around its Triton kernels.

AOTInductor writes the same calls in C++, for the package. Both are made of the same scheduled graph
by the same kernels, whose sources are compared (`kernel_digest`); in Python they can be read, and
carried out where no GPU is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn

import torch
import torch._inductor
from torch._inductor.graph import GraphLowering
from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused, HandoffError
from handoff.artifacts.machine.gpu import GpuProfile
from handoff.tasks.compile.cross.build import NEED_A_GPU, inductor_options
from handoff.tasks.compile.cross.retarget import Weights, retarget
from handoff.tasks.compile.cross.simulated_gpu import pretend_gpu
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.compile.reading.literals import refusal_within
from handoff.tasks.compile.reading.source_words import prefix_weight_names

# What differs between writing C++ and writing Python, and would change a kernel or the calls. The
# first is left out where C++ is written; the last adds nothing but measuring.
_OPTIONS_AS_FOR_CPP = {
    "triton.mix_order_reduction": False,
    "triton.store_cubin": False,
    "triton.autotune_at_compile_time": False,
    "cpp_wrapper": False,
    "graph_partition": False,
    "benchmark_harness": False,
}


@dataclass(frozen=True)
class PythonProgram:
    """What Inductor wrote, the weights that it names, and the graph that it wrote it of.

    `graph` takes the program's inputs; `attributes` are the values of what it gets of its module,
    on the CPU, as `weights` are. `nodes` are the names of its nodes by those of the buffers that
    hold their values.
    """

    text: str
    weights: Mapping[str, torch.Tensor]
    graph: torch.fx.GraphModule
    attributes: Mapping[str, torch.Tensor]
    nodes: Mapping[str, str]


# Where the package would go, if the compilation came to its end.
_UNUSED_PATH = "model.pt2"


class _ProgramWrittenError(Exception):
    """Ends a compilation when the program is there."""


def write_python_program(
    program: ExportedProgram, profile: GpuProfile, options: Mapping[str, object]
) -> PythonProgram:
    """Return the Python program of `program` for this GPU; nothing of it is run or compiled.

    `options` are the recipe's; `program` is left as it is. Raises `EnvironmentLacking` for a torch
    that isn't known, and `BlessingRefused` where Inductor writes none.
    """
    usable = {name: value for name, value in options.items() if name not in NEED_A_GPU}
    retargeted = retarget(program)
    weights = Weights(program, retargeted)
    written: list[PythonProgram] = []
    with (
        torch.no_grad(), pretend_gpu(profile, weights=weights), prefix_weight_names(),
        _capture_program(written, weights),
    ):  # fmt: skip
        try:
            torch._inductor.aoti_compile_and_package(
                retargeted, package_path=_UNUSED_PATH,
                inductor_configs=inductor_options(usable, ptx=False),
            )  # fmt: skip
        except HandoffError:
            raise
        except Exception as error:
            if not written:
                raise refusal_within(error) or _not_written_error(error) from error
    if not written:
        raise _not_written_error(RuntimeError("it ended without one"))
    return written[0]


@contextmanager
def _capture_program(written: list[PythonProgram], weights: Weights) -> Iterator[None]:
    """Have the graph written in Python where it would be in C++, and end the compilation there."""

    def write(lowered: Any) -> NoReturn:  # noqa: ANN401 - Inductor's GraphLowering
        lowered.cpp_wrapper = lowered.aot_mode = False
        with torch._inductor.config.patch(_OPTIONS_AS_FOR_CPP):
            code, _ = lowered.codegen()
        constants = {name: weights.value(tensor) for name, tensor in lowered.constants.items()}
        nodes = {
            buffer.get_name(): origin.name
            for buffer in lowered.buffers
            if (origin := buffer.get_origin_node()) is not None
        }
        graph = lowered.orig_gm
        values_by_name = {
            str(node.target): attrgetter(str(node.target))(graph)
            for node in graph.graph.find_nodes(op="get_attr")
        }
        attributes = {
            name: weights.value(value)
            for name, value in values_by_name.items()
            if isinstance(value, torch.Tensor)
        }
        written.append(PythonProgram(code.value, constants, graph, attributes, nodes))
        raise _ProgramWrittenError

    with patch_attribute(GraphLowering, "codegen_with_cpp_wrapper", write):
        yield


def _not_written_error(error: Exception) -> BlessingRefused:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return BlessingRefused(
        "Inductor wrote no Python program of the model", expected="the calls around its kernels",
        got=f"{type(error).__name__}: {' '.join(lines[:2])[:300]}",
        remedy="Leave it unchecked, or verify the package on the GPU",
    )  # fmt: skip
