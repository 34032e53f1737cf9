"""What the C++ runner is given: a release to open, and cases with the answers that Python got."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, TargetRecord
from handoff.artifacts.serve.loader import load_unreleased
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.verify.reference import ReferenceCase, load_cases

# What the cases may take: seconds of one call of each, and bytes. The smallest is always taken.
_SECONDS = 0.4
_BYTES = 256 << 20


def write_trial_release(job: ProbeJob, folder: Path) -> None:
    """Write what a pulled folder holds: the packages, and a manifest that says what they are.

    The release's own is written after this blessing, since it tells its verdict.
    """
    slug = job.folder.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / slug).mkdir(parents=True)
    for file in job.files:
        original, place = job.folder / Path(file.path).name, folder / file.path
        try:
            os.link(original, place)
        except OSError:
            shutil.copyfile(original, place)
    record = TargetRecord(slug, accepted=True, reasons=(), files=job.files, fit=job.fit)
    nothing = digest_bytes(b"")
    manifest = Manifest(
        model="trial", delivery=nothing, fingerprint=nothing, verdict="sound",
        signature=job.signature, recipe=job.recipe, lineage=Lineage(), targets=(record,),
    )  # fmt: skip
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())


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
    model = load_unreleased(release, job.folder.name)
    device = "cuda" if job.fit.gpu_capability else "cpu"
    names: list[str] = []
    tensors: dict[str, torch.Tensor] = {}
    cases = sorted(load_cases(job.reference), key=_bytes)
    if not cases:
        raise BlessingRefused(
            f"the package for {job.folder.name} can't be probed",
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
