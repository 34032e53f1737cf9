"""Where a fault is planted: in the graph that is compiled, or in the C++ that Inductor generates.

Both are shown to be planted: a graph or a source text that is as before is a `NotPlanted`, and so
the end of the run. A package that is then accepted was wrong, and not merely left alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch._inductor.codecache import AotCodeCompiler
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument

from handoff.tasks.compile.caching.cache import digest_weights
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.optimize.programs import load_program, save_program


class NotPlanted(Exception):
    """A fault found nothing to change: the model or this torch's code is another than thought."""


@dataclass(frozen=True)
class Source:
    """The C++ of a package: what calls the kernels, and the kernels."""

    wrapper: str
    kernel: str


@dataclass(frozen=True)
class GraphFault:
    """A miscompilation of the graph: `plant` changes the program after the reference was taken."""

    name: str
    what: str
    model: str
    plant: Callable[[ExportedProgram], None]


@dataclass(frozen=True)
class CodeFault:
    """A miscompilation of the code: `plant` changes the C++ before g++ is given it."""

    name: str
    what: str
    model: str
    plant: Callable[[Source], Source]


Fault = GraphFault | CodeFault


def plant_in_graph(fault: GraphFault, original: Path, planted: Path) -> None:
    """Write the program of the file `original` with the fault to the file `planted`.

    Raises `NotPlanted` where what is read back from there is the same as before: an argument that
    an operator doesn't have is left out without a word when a program is saved.
    """
    program = load_program(original)
    fault.plant(program)
    program.graph.lint()
    program.graph_module.recompile()
    save_program(program, planted)
    if _contents(load_program(planted)) == _contents(load_program(original)):
        raise NotPlanted(f"{fault.name}: the graph is as it was")


@contextmanager
def planted_in_code(fault: CodeFault) -> Iterator[None]:
    """Let what is compiled in the body have the fault; raise `NotPlanted` where it hasn't."""
    original = AotCodeCompiler.compile
    planted = []

    def compile_changed(graph: Any, wrapper: str, kernel: str, *args: Any, **kwargs: Any) -> Any:
        changed = fault.plant(Source(wrapper, kernel))
        planted.append(changed != Source(wrapper, kernel))
        return original(graph, changed.wrapper, changed.kernel, *args, **kwargs)

    with patch_attribute(AotCodeCompiler, "compile", staticmethod(compile_changed)):
        yield
    if planted != [True]:
        raise NotPlanted(f"{fault.name}: the C++ is as it was")


def _contents(program: ExportedProgram) -> object:
    calls = [(n.name, str(n.target), str(n.args), str(n.kwargs)) for n in program.graph.nodes]
    return calls, digest_weights(program)


def calls_of(program: ExportedProgram, operator: str) -> list[torch.fx.Node]:
    """Return the calls of `operator` (`aten.sub.Tensor`), in order; `NotPlanted` for none."""
    found = [node for node in program.graph.nodes if str(node.target) == operator]
    if not found:
        names = sorted({str(n.target) for n in program.graph.nodes if n.op == "call_function"})
        raise NotPlanted(f"expected a call of {operator}, got {', '.join(names)}")
    return found


def with_argument(
    operator: str, place: int, value: object, which: int = 0
) -> Callable[[ExportedProgram], None]:
    """Return what gives a call of `operator` another argument."""

    def plant(program: ExportedProgram) -> None:
        node = calls_of(program, operator)[which]
        arguments = list(node.args)
        schema = node.target._schema.arguments  # type: ignore[union-attr]
        # Those that the graph leaves out stand for their defaults.
        arguments += [argument.default_value for argument in schema[len(arguments) : place]]
        node.args = (*arguments[:place], value, *arguments[place + 1 :])  # type: ignore[arg-type]

    return plant


def with_keyword(operator: str, name: str, value: object) -> Callable[[ExportedProgram], None]:
    """Return what gives a call of `operator` another keyword argument."""

    def plant(program: ExportedProgram) -> None:
        node = calls_of(program, operator)[0]
        node.kwargs = {**node.kwargs, name: value}  # type: ignore[dict-item]

    return plant


def without_call(operator: str, which: int = 0) -> Callable[[ExportedProgram], None]:
    """Return what leaves a call out: its first argument stands for its result."""

    def plant(program: ExportedProgram) -> None:
        node = calls_of(program, operator)[which]
        stand_in(program, node, node.args[0])

    return plant


def with_swapped_operands(operator: str, which: int = 0) -> Callable[[ExportedProgram], None]:
    """Return what swaps the first two arguments of a call."""

    def plant(program: ExportedProgram) -> None:
        node = calls_of(program, operator)[which]
        node.args = (node.args[1], node.args[0], *node.args[2:])

    return plant


def insert_behind(
    program: ExportedProgram, node: torch.fx.Node, *calls: tuple[Any, tuple[Any, ...]]
) -> None:
    """Put calls behind `node`, each on the one before, and the last one in the place of `node`.

    A call is an operator and the arguments after the first one.
    """
    uses, last = list(node.users), node
    for operator, arguments in calls:
        with program.graph.inserting_after(last):
            following = program.graph.call_function(operator, (last, *arguments))
        following.meta["val"] = operator(last.meta["val"], *arguments)
        last = following
    for use in uses:
        use.replace_input_with(node, last)
    _rename_output(program, node, last)


def stand_in(program: ExportedProgram, node: torch.fx.Node, other: Any) -> None:
    """Let `other` stand for `node`, which goes."""
    node.replace_all_uses_with(other)
    program.graph.erase_node(node)
    _rename_output(program, node, other)


def _rename_output(program: ExportedProgram, old: torch.fx.Node, new: torch.fx.Node) -> None:
    # What the graph's signature says of its outputs goes by their nodes' names.
    for spec in program.graph_signature.output_specs:
        if isinstance(spec.arg, TensorArgument) and spec.arg.name == old.name:
            spec.arg = TensorArgument(new.name)


def with_changed(
    name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[ExportedProgram], None]:
    """Return what gives a weight other values."""

    def plant(program: ExportedProgram) -> None:
        if name not in program.state_dict:
            raise NotPlanted(f"expected {name}, got {', '.join(program.state_dict)}")
        with torch.no_grad():
            changed = change(program.state_dict[name].detach().clone()).contiguous()
            program.state_dict[name].copy_(changed)

    return plant


def with_text(
    pattern: str, instead: str, *, count: int = 0, where: str = "kernel"
) -> Callable[[Source], Source]:
    """Return what replaces a regular expression in the C++: everywhere, or `count` times."""

    def plant(source: Source) -> Source:
        text = re.sub(pattern, instead, getattr(source, where), count=count)
        return replace(source, **{where: text})

    return plant
