"""What the intake step notices about a delivery that it could read."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.fx

from handoff.artifacts.release.evidence import Finding
from handoff.tasks.intake.errors import shorten
from handoff.tasks.intake.module_source import ModuleSource
from handoff.tasks.intake.rebuild import RebuiltModule

_STATEFUL = ("BatchNorm", "Dropout", "InstanceNorm", "RReLU", "MultiheadAttention", "Transformer")
_HALF = (torch.float16, torch.bfloat16)
_SHOWN = 5


def gather_findings(rebuilt: RebuiltModule, source: ModuleSource) -> tuple[Finding, ...]:
    """Return what is to be said about paths, modes, precision and values of a rebuilt module."""
    return (
        *_path_findings(source.folder),
        *_training_findings(rebuilt.training),
        *_weight_findings(rebuilt.module),
        *_ignored_findings(rebuilt.ignored),
    )


def _path_findings(folder: str) -> Iterator[Finding]:
    if folder.startswith("/") or folder[1:2] == ":":
        yield Finding(
            code="absolute-path",
            severity="note",
            message=f"module.py loads its files from {shorten(folder)}, a path of the machine that "
            "wrote it: torch can't load it elsewhere, Handoff reads the files beside it",
            remedy="Call to_folder with a relative path, or deliver with 'handoff deliver'",
            where="module.py",
        )


def _join(names: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _training_findings(places: tuple[str, ...]) -> Iterator[Finding]:
    changing = [place for place in places if any(kind in place for kind in _STATEFUL)]
    remedy = "Call model.eval() before tracing, and deliver again"
    if changing:
        yield Finding(
            code="training-mode",
            severity="unsound",
            message=(
                f"Delivered in training mode: {_join(changing)}. Evaluation mode was forced "
                "here, but what was traced may hold branches of training"
            ),
            remedy=remedy,
            where="module.py",
        )
    elif places:
        yield Finding(
            code="training-mode",
            severity="note",
            message=f"Delivered in training mode, which changes nothing for {_join(places)}",
            remedy=remedy,
            where="module.py",
        )


def _weight_findings(module: torch.fx.GraphModule) -> Iterator[Finding]:
    broken, masks, half = [], [], []
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, tensor in module.state_dict().items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        if tensor.dtype in _HALF:
            half.append(name)
        lowest, highest = _extremes(tensor)
        if math.isnan(lowest) or (name in parameters and math.isinf(max(-lowest, highest))):
            broken.append(name)
        elif math.isinf(max(-lowest, highest)):
            masks.append(name)
    if broken:
        yield Finding(
            code="non-finite-weights",
            severity="unsound",
            message=f"NaN or infinity in {_join(broken)}",
            remedy="Deliver a checkpoint from before the training diverged",
            where="state_dict.pt",
        )
    if masks:
        yield Finding(
            code="infinite-constants",
            severity="note",
            message=f"Infinity in {_join(masks)}, which is no parameter: masks are written so",
            remedy="Nothing needs to be done for a mask",
            where="state_dict.pt",
        )
    if half:
        yield Finding(
            code="half-precision",
            severity="note",
            message=f"Half precision, kept as delivered: {_join(half)}",
            remedy="Deliver float32 weights if that was not intended",
            where="state_dict.pt",
        )


def _extremes(tensor: torch.Tensor) -> tuple[float, float]:
    """Return the smallest and the largest value; both are NaN where there is one."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype.itemsize == 1:
        tensor = tensor.to(torch.float32)
    if tensor.numel() == 0:
        return 0.0, 0.0
    # The extremes show NaN as well as infinity, and need no tensor of flags.
    lowest, highest = torch.aminmax(tensor)
    return float(lowest), float(highest)


def _ignored_findings(names: tuple[str, ...]) -> Iterator[Finding]:
    if names:
        yield Finding(
            code="ignored-attribute",
            severity="note",
            message=f"Left out what torch.nn's own code never reads: {_join(names)}",
            remedy="Nothing needs to be done",
        )
