"""Find package: would this compilation be taken from the cache? For who asks before a release."""

from __future__ import annotations

from handoff.artifacts.recipe.target import CudaTarget
from handoff.tasks.compile.caching.cache import (
    compilation_key,
    digest_weights,
    find_reusable_part,
    read_entry,
)
from handoff.tasks.compile.machine.host import compiler_for, toolchain_of
from handoff.tasks.compile.messages import FindPackageJob, FoundPackage
from handoff.tasks.optimize.programs import load_program


def run(job: FindPackageJob) -> FoundPackage:
    """Return what `tasks.compile` would take from the cache for the same job."""
    compiling = job.compiling
    if compiling.cache is None or compiling.fresh or isinstance(compiling.target, CudaTarget):
        return FoundPackage("")
    program = load_program(compiling.program)
    key = compilation_key(program, compiling, toolchain_of(compiler_for(compiling.target)))
    entry = read_entry(compiling.cache, key)
    return FoundPackage(find_reusable_part(entry, digest_weights(program)) if entry else "")
