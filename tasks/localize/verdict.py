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


def put_into_words(job: LocalizeJob, found: LocalizeResult) -> str:
    """Return the verdict: what is wrong, where, by how much, and what makes it right."""
    match found.cause:
        case "not reproduced":
            sentences = _nothing_found(found)
        case "program":
            sentences = [
                f"The program is wrong before it is compiled: on {found.case} it has a relative "
                f"RMSE to float64 of {found.rmse:.2g} in eager (the delivered model: "
                f"{found.rmse_eager:.2g})",
                *(map(_as_sentence, found.notes) if found.at else _NO_PASS),
            ]
        case "rounding":
            sentences = [
                f"No part of it is wrong: on {found.case} the package has {_measured(found)}",
                "The agreed tolerance has no room for that: agree on one that has",
            ]
        case "crash":
            sentences = [f"There are no numbers to look into: {'; '.join(found.notes)}"]
        case _:
            sentences = [
                *_options(found), *_nodes(found), *_subsystem(found), *_others(found),
                *_script(found),
            ]  # fmt: skip
    if not found.is_complete:
        sentences.append(f"The search ended with its budget of {job.budget}")
    return ". ".join(sentences) + "."


def _nothing_found(found: LocalizeResult) -> list[str]:
    if not found.is_complete:
        return [f"Nothing was found: {'; '.join(found.notes)}"]
    return ["Not reproduced: compiled again, the package's numbers are right"]


def _options(found: LocalizeResult) -> list[str]:
    if not found.options:
        return []
    if len(found.options) == 1:
        return [f"The package is right without the option {found.options[0]}"]
    return [f"The package is right without the options {', '.join(found.options)}"]


def _nodes(found: LocalizeResult) -> list[str]:
    if not found.nodes:
        return [
            f"On {found.case} the package has {_measured(found)}",
            "No part of the program was seen to be wrong when it is compiled alone",
        ]
    shown = _list(found.nodes)
    alone = "alone, it has"
    if len(found.nodes) > 1:
        alone = "together and without the rest, they have"
    sentences = [f"{shown}: compiled {alone} {_measured(found)} on correct inputs"]
    if not found.is_complete:
        sentences.append("There may be a smaller such part")
    return sentences


def _measured(found: LocalizeResult) -> str:
    return f"a relative RMSE to float64 of {found.rmse:.2g} (eager: {found.rmse_eager:.2g})"


def _list(nodes: tuple[FaultyNode, ...]) -> str:
    shown = [describe(node) for node in nodes[:_MAX_NODES]]
    if len(nodes) > _MAX_NODES:
        shown.append(f"and {len(nodes) - _MAX_NODES} more")
    return "; ".join(shown)


def _others(found: LocalizeResult) -> list[str]:
    if not found.others:
        return []
    return [f"Also wrong, and not looked into: {_list(found.others)}"]


def _subsystem(found: LocalizeResult) -> list[str]:
    if not found.subsystem:
        return []
    return [f"It is right without {part_of_compiler(found)}"]


def part_of_compiler(found: LocalizeResult) -> str:
    """Return the part of the compiler without which the nodes are right; '' for none."""
    if not found.subsystem:
        return ""
    one, many = _SUBSYSTEMS[found.subsystem]
    return f"Inductor's {one.format(found.at) if found.at else many}"


def _script(found: LocalizeResult) -> list[str]:
    if not found.script:
        return []
    did = "reproduces it" if found.script_repeats else "was written, and not seen to reproduce it"
    return [f"The script {found.script} {did}"]


def _as_sentence(text: str) -> str:
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
