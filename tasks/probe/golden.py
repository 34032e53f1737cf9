"""What the C++ runner is given: a release to open, and cases with the answers that Python got."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.serve.loader import load_unreleased
from handoff.tasks.compile.arm.emulation import emulated_target
from handoff.tasks.probe.emulated import emulated_package
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.verify.loading import SHARED_LIBRARY
from handoff.tasks.verify.reference import ReferenceCase, load_cases

# What the cases may take: seconds of one call of each, and bytes. The smallest is always taken.
_SECONDS = 0.4
_BYTES = 256 << 20


@dataclass(frozen=True)
class Written:
    """The cases in the file, the smallest first, and its sizes of the dynamic dimensions.

    `left_out` counts the cases that would take too long in eight threads.
    """

    names: tuple[str, ...]
    sizes: dict[str, int]
    left_out: int


def write_cases(job: ProbeJob, release: Path, file: Path) -> Written:
    """Write cases of the reference with what Python's loader gives for them."""
    with _opened(job, release) as model:
        return _write_cases(job, model, file)


@contextmanager
def _opened(job: ProbeJob, release: Path) -> Iterator[Callable[..., Sequence[torch.Tensor]]]:
    """Give the package as Python calls it, or, for another processor, as it was verified."""
    if emulated_target(job.slug) is None:
        yield load_unreleased(release, job.slug)
        return
    with emulated_package(job, SHARED_LIBRARY, release) as package:
        yield lambda *inputs: package(inputs)


def _write_cases(
    job: ProbeJob, model: Callable[..., Sequence[torch.Tensor]], file: Path
) -> Written:
    device = "cuda" if job.fit.gpu_capability else "cpu"
    names: list[str] = []
    tensors: dict[str, torch.Tensor] = {}
    cases = sorted(load_cases(job.reference), key=_bytes)
    if not cases:
        raise BlessingRefused(
            f"the package for {job.slug} can't be probed",
            expected="a case of the input plan that could be run", got="none",
            remedy="Raise the recipe's verify.max_bytes, or deliver examples",
        )  # fmt: skip
    took_s, taken_bytes = 0.0, 0
    for case in cases:
        if names and (took_s > _SECONDS or taken_bytes + _bytes(case) > _BYTES):
            break
        # Copies, because a model may change its inputs in place.
        inputs = [tensor.clone().to(device) for tensor in case.inputs]
        began = time.perf_counter()
        try:
            outputs = [tensor.cpu() for tensor in model(*inputs)]
        except RuntimeError:
            if case.is_served:
                raise
            # An error there, which verify has noted.
            continue
        took_s += time.perf_counter() - began
        taken_bytes += _bytes(case)
        tensors |= _named(len(names), [spec.name for spec in job.signature.inputs], case, outputs)
        names.append(case.name)
    save_file(tensors, file)
    specs = zip(job.signature.inputs, cases[0].inputs, strict=True)
    sizes = job.signature.measure({spec.name: tuple(tensor.shape) for spec, tensor in specs})
    return Written(tuple(names), sizes, len(cases) - len(names))


def _named(
    place: int, names: Sequence[str], case: ReferenceCase, outputs: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor]:
    inputs = zip(names, case.inputs, strict=True)
    return {
        **{f"{place}/inputs/{name}": tensor.clone().contiguous() for name, tensor in inputs},
        **{f"{place}/outputs/{i}": t.clone().contiguous() for i, t in enumerate(outputs)},
    }


def _bytes(case: ReferenceCase) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in case.inputs)
