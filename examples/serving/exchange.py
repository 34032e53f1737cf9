"""What a request says as tensors, and its answer as JSON: the same behind every server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from pydantic import BaseModel

import handoff
from examples.serving.batching import Answer


class Request(BaseModel):
    """A call: nested lists of numbers, by the inputs' names."""

    inputs: dict[str, Any]


def tensors_of(request: Request, model: handoff.FollowedModel) -> list[torch.Tensor]:
    """Return a request's inputs in the model's order; raise `ValueError` for what is none.

    Sizes and ranges are the loaded model's to check.
    """
    specs = model.signature.inputs
    if set(request.inputs) != (names := {spec.name for spec in specs}):
        raise ValueError(f"expected the inputs {sorted(names)}, got {sorted(request.inputs)}")
    try:
        return [_tensor(request.inputs[spec.name], getattr(torch, spec.dtype)) for spec in specs]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"expected nested lists of numbers, got {error}") from error


def _tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 - JSON
    """Return nested lists as a tensor; raise `ValueError` for a fraction in the place of an id.

    torch itself cuts 1.5 to 1, which is another one.
    """
    given = None if dtype.is_floating_point else torch.tensor(values)
    if given is not None and given.is_floating_point() and given.numel():
        raise ValueError(f"{str(dtype).removeprefix('torch.')} is wanted, and a fraction was given")
    return torch.tensor(values, dtype=dtype)


def response_of(answer: Answer, model: handoff.FollowedModel) -> dict[str, Any]:
    """Return an answer as it is sent: the outputs by name, and the version that gave them."""
    outputs: Sequence[torch.Tensor] = answer.outputs
    named = zip(model.signature.outputs, outputs, strict=True)
    return {
        "version": answer.version,
        "outputs": {spec.name: output.tolist() for spec, output in named},
    }


def health_of(model: handoff.FollowedModel) -> dict[str, Any]:
    """Return what this process serves; serving an older version on is no fault, and says why."""
    serves = model.serves
    return {
        "model": serves.model, "version": serves.version, "wanted": serves.wanted,
        "current": serves.is_current, "error": serves.error, "since": serves.since.isoformat(),
        "process": os.getpid(),
    }  # fmt: skip
