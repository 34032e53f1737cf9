"""Records of packages for several generations of GPUs, without a GPU."""

from __future__ import annotations

import platform
from dataclasses import replace

from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.gpu_generations import cuda_slug
from handoff.artifacts.release.manifest import TargetRecord
from tests.artifacts.samples import TORCH, sample_target

BOTH = "cuda-sm80+sm90"


def for_gpus(*ran: int, untried: tuple[int, ...] = (), unverified: str = "") -> TargetRecord:
    """Return a target for GPUs that ran it and others that didn't; `unverified` is why none did."""
    members = tuple(sorted((*ran, *untried)))
    fit = Fit(
        (), TORCH, platform.machine(), gpu_capability=ran[0], cuda="13.2", gpu_also=ran[1:],
        gpu_unverified=untried,
    )  # fmt: skip
    record = replace(sample_target(cuda_slug(members)), fit=fit)
    return replace(record, accepted=False, unverified=unverified) if unverified else record
