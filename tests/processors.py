"""What a test asks of the processor that it runs on."""

from __future__ import annotations

from typing import get_args

import pytest

from handoff.artifacts.recipe.target import CpuTarget, Isa, host_cpu_flags

LEVELS = [level for level in map(CpuTarget, get_args(Isa)) if level.cpu_flags <= host_cpu_flags()]
COMPUTES_INT8 = any(level.computes_int8 for level in LEVELS)
NO_INT8 = "the processor has no VNNI, so that sums of int8 saturate, and numbers are others"
needs_int8 = pytest.mark.skipif(not COMPUTES_INT8, reason=NO_INT8)
