"""List pairs: every operator and dtype that PyTorch's test suite has samples of, for the CPU."""

from __future__ import annotations

from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance.messages import Pairs, PairsJob
from handoff.tasks.conformance.sampling import all_pairs


def run(job: PairsJob) -> Pairs:
    """Return the pairs in the suite's order, and the toolchain that they are asked about."""
    pairs = tuple(
        str(pair) for pair in all_pairs() if not job.operators or pair.operator in job.operators
    )
    return Pairs(pairs, conformance_toolchain(job.compiler, job.target, job.options))
