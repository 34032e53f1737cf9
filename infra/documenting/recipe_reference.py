"""The reference of recipes, from the models that recipes are read into.

    python -m handoff.infra.documenting.recipe_reference docs/recipe-reference.md

Types, defaults, passes, targets and tolerances are the code's; the sentences are the docstrings of
classes, fields and passes. A test asserts that the committed page is what this writes.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.metric import MetricRule
from handoff.artifacts.recipe.choices import DEFAULT_PASSES, OPTIONS, PassChoice
from handoff.artifacts.recipe.gpu_generations import FIRST_SPECIFIC, MOST
from handoff.artifacts.recipe.recipe import Promotion, Recipe, VerifyPlan
from handoff.artifacts.recipe.search import KNOBS, Search, Variation
from handoff.artifacts.recipe.target import TARGETS, ArmTarget, CpuTarget, Target
from handoff.artifacts.recipe.tolerance import CUDA_TOLERANCES, DEFAULT_TOLERANCES, EXACT, Tolerance

_HEAD = """\
# The reference of recipes

<!-- Written by `make reference` from artifacts/recipe/recipe.py, artifacts/recipe/target.py,
     artifacts/recipe/tolerance.py and tasks/optimize/passes/: change it there. -->

A recipe is a TOML file; every key may be left out, and an unknown one is refused with its place.
The default one with words: [the recipe](recipe.md)."""


def write_reference() -> str:
    """Return the page, as Markdown."""
    names = ", ".join(f"`{field.name}`" for field in dataclasses.fields(Lineage))
    parts = [
        _HEAD,
        _section("Keys", Recipe), _targets_section(),
        _section("Entries of `[[passes]]`", PassChoice), _passes_section(),
        _options_section(),
        _section("`[tolerance.NAME]`", Tolerance), _tolerances_section(),
        _section("`[verify]`", VerifyPlan),
        _section("`[search]`", Search), _knobs_section(),
        _section("`[promotion]`", Promotion),
        _section("`[metric]`", MetricRule),
        f"## `required_lineage`\n\nOf: {names}.",
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def field_meanings(record: type) -> dict[str, str]:
    """Return the sentence below each field of a dataclass; raise `ValueError` where one lacks it.

    Python drops these strings when it compiles a class, so that they are read from its source.
    """
    (class_node,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(class_node, ast.ClassDef)
    meanings: dict[str, str] = {}
    for field, following in zip(class_node.body, class_node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            meanings[field.target.id] = " ".join(str(following.value.value).split())
    if missing := [f.name for f in dataclasses.fields(record) if f.name not in meanings]:
        raise ValueError(
            f"expected a sentence below each field of {record.__name__}, got none for "
            f"{', '.join(missing)}. Write one"
        )
    return meanings


def _section(title: str, record: type) -> str:
    """Return a heading, what the record is, and its fields as a table."""
    hints, meanings = get_type_hints(record), field_meanings(record)
    rows = [
        (f"`{field.name}`", _type_name(hints[field.name]), _default(field), meanings[field.name])
        for field in dataclasses.fields(record)
    ]
    table = _table(("key", "type", "default", "what it says"), rows)
    return f"## {title}\n\n{_docstring(record)}\n\n{table}"


def _type_name(hint: Any) -> str:  # noqa: ANN401 - whatever an annotation may be
    """Return a type the way a person who writes TOML calls it."""
    if dataclasses.is_dataclass(hint) or hint == MetricRule | None:
        return "table"
    names = {
        str: "string", int: "whole number", float: "number", bool: "true or false",
        tuple[str, ...]: "list of strings", dict[str, str]: "table of strings",
        dict[str, object]: "table", dict[str, Tolerance]: "tables",
        tuple[PassChoice, ...]: "list of tables",
    }  # fmt: skip
    if hint in names:
        return names[hint]
    choices = [json.dumps(choice) for choice in getattr(hint, "__args__", ())]
    return " or ".join(f"`{choice}`" for choice in choices)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "none"
    if field.default is dataclasses.MISSING:
        return "has to be given"
    value = field.default
    if value is None:
        return "none"
    if dataclasses.is_dataclass(value):
        return "see below"
    if value == DEFAULT_PASSES:
        return ", ".join(f"`{chosen.name}`" for chosen in DEFAULT_PASSES)
    if isinstance(value, tuple):
        return ", ".join(f"`{json.dumps(item)}`" for item in value) or "none"
    return f"`{json.dumps(value)}`"


def _targets_section() -> str:
    rows = [(f"`{slug}`", _describe_target(target)) for slug, target in TARGETS.items()]
    return (
        "## Targets\n\n`cpu` is the best of `cpu-avx512` and `cpu-avx2` that the building machine "
        "has.\n\n" + _table(("target", "what it needs"), rows) + "\n\n"
        f"Two to {MOST} kinds of GPUs can have one package, with machine code for each: "
        f"`cuda-sm80+sm90`, in ascending order, the first before `sm{FIRST_SPECIFIC}` ([what it "
        "costs](gpu.md#one-package-for-several-gpus))."
    )


def _describe_target(target: Target) -> str:
    flags = ", ".join(sorted(target.cpu_flags))
    if isinstance(target, CpuTarget):
        return f"x86-64 with {flags}"
    if isinstance(target, ArmTarget):
        return f"ARM64 with {flags}, of which `make arm-ready` gets what x86-64 compiles with"
    profile = target.profile
    return (
        f"an NVIDIA GPU of compute capability {target.sm / 10:.1f} (compiled for where there is "
        f"none by the figures of {profile.name}), beside a host as for `cpu-avx2`"
    )


def _passes_section() -> str:
    # Passes are torch's business, and this is a program of its own.
    from handoff.tasks.optimize.passes import PASSES

    default = [choice.name for choice in DEFAULT_PASSES]
    parts = ["## Passes\n\nIn the order that suits most models; `fx` passes work on the delivered "
             "graph, `aten` passes on the exported program."]  # fmt: skip
    for name, pass_class in PASSES.items():
        notes = [
            f"`{pass_class.level}`",
            "by default" if name in default else "only where it is named",
        ]
        if pass_class.rounds:
            notes.append("rounds, and needs a tolerance with room, or an agreed metric")
        parts.append(f"### {name}\n\n*{', '.join(notes)}*\n\n{_docstring(pass_class)}")
        if pass_class.parameters:
            rows = [(f"`{key}`", meaning) for key, meaning in pass_class.parameters.items()]
            parts.append(_table(("parameter", "what it is"), rows))
    return "\n\n".join(parts)


def _options_section() -> str:
    rows = [(f"`{name}`", _type_name(kind)) for name, kind in OPTIONS.items()]
    return (
        "## `[options]`\n\nAOTInductor's, under the names of `torch._inductor.config`; without a "
        "key it is as torch has it. No others may be set: most are not about what is shipped, and "
        "some run code.\n\n" + _table(("option", "type"), rows)
    )


def _tolerances_section() -> str:
    rows = [
        (where, f"`{dtype}`", *(f"{value:g}" for value in dataclasses.astuple(tolerance)))
        for where, defaults in (("CPU", DEFAULT_TOLERANCES), ("CUDA", CUDA_TOLERANCES))
        for dtype, tolerance in defaults.items()
    ]
    rows.append(("both", "all others", *(f"{value:g}" for value in dataclasses.astuple(EXACT))))
    columns = ["target", "dtype", *(field.name for field in dataclasses.fields(Tolerance))]
    return "### Tolerances by default\n\n" + _table(columns, rows)


def _knobs_section() -> str:
    rows = [(f"`{word}`", _describe_variation(variation)) for word, variation in KNOBS.items()]
    return "### Words of a candidate\n\n" + _table(("word", "what it adds"), rows)


def _describe_variation(variation: Variation) -> str:
    options = [f"`{name} = {json.dumps(value)}`" for name, value in variation.options.items()]
    passes = [
        f"the pass [{chosen.name}](#{chosen.name})"
        + (" with " if chosen.parameters else "")
        + ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in chosen.parameters.items())
        for chosen in variation.passes
    ]
    without = [f"without the pass [{name}](#{name})" for name in variation.leaves_out]
    return ", ".join(options + passes + without)


def _docstring(described: type) -> str:
    """Return a class's docstring: its paragraphs, with lists left as they are."""
    return inspect.cleandoc(described.__doc__ or "")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def main(arguments: Sequence[str]) -> None:
    """Write the page to the file that is named."""
    (path,) = map(Path, arguments)
    path.write_text(write_reference(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
