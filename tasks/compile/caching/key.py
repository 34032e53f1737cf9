"""The key of a compilation: one digest of all that its code depends on, weight values left out."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.recipe.target import host_cpu_model
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.compile.own_code import digest_sources
from handoff.tasks.compile.weights import first_of_storage, weight_bytes

# Operators whose code is torch's or ours; that of others may change behind their names.
_OWN_NAMESPACES = {"aten", "prims", "prim", "handoff"}
_SUBNORMAL_SHARE = 1e-3


def compilation_key(program: ExportedProgram, job: CompileJob, toolchain: dict[str, str]) -> Digest:
    """Return the digest of graph, shapes, layouts, options, target, toolchain and our own code."""
    plain = {
        "graph": str(program.graph),
        "values": [_describe(node.meta.get("val")) for node in program.graph.nodes],
        "ranges": {str(k): str(v) for k, v in program.range_constraints.items()},
        "signature": str(program.graph_signature),
        # The names of a dictionary's entries are written into the package.
        "structure": [str(program.call_spec.in_spec), str(program.call_spec.out_spec)],
        "state": {name: _layout(tensor) for name, tensor in program.state_dict.items()},
        "tied": first_of_storage(program),
        "constants": {
            name: _digest_value(value) for name, value in sorted(program.constants.items())
        },
        "options": {name: str(value) for name, value in sorted(job.options.items())},
        "target": repr(job.target),
        "toolchain": toolchain,
        # Inductor sizes the blocks of its matrix products by the machine's caches, and shares work
        # out by the threads.
        "machine": [host_cpu_model(), torch.get_num_threads()],
        "code": digest_sources("tasks.compile.step", "tasks.optimize.kernels"),
    }
    return digest_bytes(json.dumps(plain, sort_keys=True, default=str).encode())


def digest_weights(program: ExportedProgram) -> dict[str, str]:
    """Return the digest of each weight's bytes."""
    return {
        name: hashlib.sha256(weight_bytes(tensor)).hexdigest()
        for name, tensor in program.state_dict.items()
    }


def digest_code(code: Digest, program: ExportedProgram) -> str:
    """Return the digest of a library's code with the weights that its speed may depend on.

    Integers and booleans decide what is read and computed. Subnormal numbers take a processor many
    times as long: where more than a thousandth of a weight is subnormal, nothing is returned.
    """
    parts: list[str] = [code]
    for name in sorted(_used_weights(program)):
        tensor = program.state_dict[name]
        if not tensor.is_floating_point():
            parts.append(f"{name} {_digest_value(tensor)}")
        elif _is_subnormal(tensor):
            return ""
    return digest_bytes("\n".join(parts).encode())


def _used_weights(program: ExportedProgram) -> set[str]:
    """Return the weights that anything is computed from: batch norms count their batches, too."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    nodes = (node for node in program.graph.nodes if node.op == "placeholder" and node.users)
    used = {names[node.name] for node in nodes if node.name in names}
    return {name for name in program.state_dict if name in used}


def _is_subnormal(tensor: torch.Tensor) -> bool:
    smallest = torch.finfo(tensor.dtype).tiny
    sizes = tensor.detach().abs()
    return int(((sizes > 0) & (sizes < smallest)).sum()) > _SUBNORMAL_SHARE * sizes.numel()


def has_own_operators_only(program: ExportedProgram) -> bool:
    """Tell whether everything that the graph calls is torch's own, and nothing is nested."""
    for node in program.graph.nodes:
        target = node.target
        if node.op == "get_attr" or isinstance(target, torch._ops.HigherOrderOperator):
            return False
        if isinstance(target, torch._ops.OpOverload) and target.namespace not in _OWN_NAMESPACES:
            return False
    return True


def _describe(value: Any) -> Any:  # noqa: ANN401 - a node's value may be anything
    return [
        (str(leaf.dtype), str(tuple(leaf.shape)), str(leaf.stride()), str(leaf.device))
        if isinstance(leaf, torch.Tensor) else str(leaf)
        for leaf in pytree.tree_leaves(value)
    ]  # fmt: skip


def _layout(tensor: torch.Tensor) -> list[str]:
    storage = tensor.untyped_storage()
    return [
        str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.stride()),
        str(tensor.storage_offset()), str(storage.nbytes()), str(tensor.requires_grad),
    ]  # fmt: skip


def _digest_value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_layout(value)} {hashlib.sha256(weight_bytes(value)).hexdigest()}"
    return str(value)
