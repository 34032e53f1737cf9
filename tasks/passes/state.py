"""An exported program's lifted state: which placeholder is which tensor; dropping unused ones."""

from __future__ import annotations

import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


def state_name(program: ExportedProgram, node: torch.fx.Node) -> str:
    """Return the key in `program.state_dict` that the placeholder `node` stands for, or ''."""
    for spec in program.graph_signature.input_specs:
        if spec.arg.name == node.name and spec.kind in _STATE and spec.target is not None:
            return spec.target if spec.target in program.state_dict else ""
    return ""


def drop_unused_state(program: ExportedProgram) -> None:
    """Drop parameters and buffers that no node uses any more, so that they are not shipped."""
    signature = program.graph_signature
    nodes = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    for spec in list(signature.input_specs):
        node = nodes[spec.arg.name]
        if spec.kind in _STATE and not node.users:
            program.graph.erase_node(node)
            signature.input_specs.remove(spec)
            if not any(other.target == spec.target for other in signature.input_specs):
                program.state_dict.pop(str(spec.target), None)
