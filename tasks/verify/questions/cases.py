"""Makes named cases of what a graph decides at: the inputs, and what they ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.tasks.verify.questions.placing import place_targets
from handoff.tasks.verify.questions.targets import Kind, Target, find_targets
from handoff.tasks.verify.questions.tracing import Tracing, trace

Tensors = tuple[torch.Tensor, ...]

_ASKED: dict[Kind, str] = {
    "constants": "around {}",
    "multiples": "multiples of {}",
    "steps": "at the steps of {}",
    "equal inputs": "equal inputs ({})",
    "edges": "at the edges of {}",
    "beyond": "beyond {}",
    "large quotients": "large quotients by {}",
}
# What leaves the numbers that were drawn.
_FAR: frozenset[Kind] = frozenset({"edges", "beyond", "large quotients"})
_MOST_TOLD = 3
# More of one kind are not asked of an input: each takes its share of the elements, and time.
_MOST_ASKED = 8


@dataclass(frozen=True)
class Question:
    """Inputs, what they ask, and which of them hold values that were neither declared nor drawn.

    They are of the signature's shapes and dtypes.
    """

    asks: str
    inputs: Tensors
    undeclared: tuple[str, ...] = ()


def find_questions(
    specs: Sequence[TensorSpec], model: Callable[..., Any], drawn: Tensors
) -> tuple[list[Question], Tracing]:
    """Run the model on drawn inputs; return what to ask it, and what was seen.

    `drawn` are of the shapes and dtypes of the `specs`, and so are the questions' inputs. The same
    model and inputs give the same questions.
    """
    tracing = trace(model, drawn)
    targets = [target for use in tracing.uses for target in find_targets(use)]
    questions = []
    for kind in get_args(Kind):
        asked = [target for target in targets if target.kind == kind]
        if asked and (question := _ask(kind, asked, specs, drawn)) is not None:
            questions.append(question)
    return questions, tracing


def _ask(
    kind: Kind, targets: list[Target], specs: Sequence[TensorSpec], drawn: Tensors
) -> Question | None:
    inputs, told, undeclared = list(drawn), [], []
    for place, spec in enumerate(specs):
        by_name = {t.told: t for t in reversed(targets) if t.use.operand.place == place}
        own = list(reversed(by_name.values()))[:_MOST_ASKED]
        changed = place_targets(spec, drawn[place], own) if own else None
        if changed is None:
            continue
        inputs[place] = changed
        told += [target.told for target in own]
        undeclared += [spec.name] if kind in _FAR and spec.low is None else []
    if not told:
        return None
    several = list(dict.fromkeys(told))
    shown = " and ".join(several[:_MOST_TOLD])
    if len(several) > _MOST_TOLD:
        shown += f" and {len(several) - _MOST_TOLD} more"
    return Question(_ASKED[kind].format(shown), tuple(inputs), tuple(undeclared))
