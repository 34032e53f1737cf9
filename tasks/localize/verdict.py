"""Puts the answer of a localization into words; says of what is not known that it isn't."""

from __future__ import annotations

from handoff.tasks.localize.messages import FaultyNode, LocalizeJob, LocalizeResult

# What a part of the compiler is called: one use of it, by name, and all of them.
_SUBSYSTEMS = {
    "lowerings": ("lowering of {}", "lowerings"),
    "decomposition": ("decomposition of {}", "decompositions"),
    "joint_graph_passes": ("joint-graph pass {}", "joint-graph passes"),
    "post_grad_passes": ("post-grad pass {}", "post-grad passes"),
    "pre_grad_passes": ("pre-grad pass {}", "pre-grad passes"),
}
_MAX_NODES = 4
_NO_PASS = ("No pass breaks the tolerance on that case, so the capture or a rounding pass does",)


def format_verdict(job: LocalizeJob, result: LocalizeResult) -> str:
    """Return the verdict: what is wrong, where, by how much, and what makes it right."""
    match result.cause:
        case "not reproduced":
            sentences = _no_fault_sentences(result)
        case "program":
            sentences = [
                f"The program is wrong before it is compiled: on {result.case} it has a relative "
                f"RMSE to float64 of {result.rmse:.2g} in eager (the delivered model: "
                f"{result.rmse_eager:.2g})",
                *(map(_capitalise, result.notes) if result.at else _NO_PASS),
            ]
        case "rounding":
            sentences = [
                f"No part of it is wrong: on {result.case} the package has "
                f"{_format_errors(result)}",
                "The agreed tolerance has no room for that: agree on one that has",
            ]
        case "crash":
            sentences = [f"There are no numbers to look into: {'; '.join(result.notes)}"]
        case _:
            sentences = [
                *_option_sentences(result), *_node_sentences(result),
                *_subsystem_sentences(result), *_other_sentences(result),
                *_script_sentences(result),
            ]  # fmt: skip
    if not result.is_complete:
        sentences.append(f"The search ended with its budget of {job.budget}")
    return ". ".join(sentences) + "."


def _no_fault_sentences(result: LocalizeResult) -> list[str]:
    if not result.is_complete:
        return [f"Nothing was found: {'; '.join(result.notes)}"]
    return ["Not reproduced: compiled again, the package's numbers are right"]


def _option_sentences(result: LocalizeResult) -> list[str]:
    if not result.options:
        return []
    if len(result.options) == 1:
        return [f"The package is right without the option {result.options[0]}"]
    return [f"The package is right without the options {', '.join(result.options)}"]


def _node_sentences(result: LocalizeResult) -> list[str]:
    if not result.nodes:
        return [
            f"On {result.case} the package has {_format_errors(result)}",
            "No part of the program was seen to be wrong when it is compiled alone",
        ]
    shown = _format_nodes(result.nodes)
    alone = "alone, it has"
    if len(result.nodes) > 1:
        alone = "together and without the rest, they have"
    sentences = [f"{shown}: compiled {alone} {_format_errors(result)} on correct inputs"]
    if not result.is_complete:
        sentences.append("There may be a smaller such part")
    return sentences


def _format_errors(result: LocalizeResult) -> str:
    return f"a relative RMSE to float64 of {result.rmse:.2g} (eager: {result.rmse_eager:.2g})"


def _format_nodes(nodes: tuple[FaultyNode, ...]) -> str:
    shown = [describe(node) for node in nodes[:_MAX_NODES]]
    if len(nodes) > _MAX_NODES:
        shown.append(f"and {len(nodes) - _MAX_NODES} more")
    return "; ".join(shown)


def _other_sentences(result: LocalizeResult) -> list[str]:
    if not result.others:
        return []
    return [f"Also wrong, and not looked into: {_format_nodes(result.others)}"]


def _subsystem_sentences(result: LocalizeResult) -> list[str]:
    if not result.subsystem:
        return []
    return [f"It is right without {part_of_compiler(result)}"]


def part_of_compiler(result: LocalizeResult) -> str:
    """Return the part of the compiler without which the nodes are right; '' for none."""
    if not result.subsystem:
        return ""
    singular, plural = _SUBSYSTEMS[result.subsystem]
    return f"Inductor's {singular.format(result.at) if result.at else plural}"


def _script_sentences(result: LocalizeResult) -> list[str]:
    if not result.script:
        return []
    did = "reproduces it" if result.script_repeats else "was written, and not seen to reproduce it"
    return [f"The script {result.script} {did}"]


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def describe(node: FaultyNode) -> str:
    """Return the node with its lines: `tanh (aten.tanh.default), module.py:31 'tanh = ...'`."""
    parts = [f"{node.name} ({node.target})"]
    if node.module_line:
        parts.append(f"{node.module_line} '{node.module_text}'")
    else:
        parts.append("made by a pass, from no delivered line that is known")
    if node.source_line:
        parts.append(node.source_line)
    return ", ".join(parts)
