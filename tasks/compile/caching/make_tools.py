"""Make tools: what compilations share and no delivery has a part in, made from our own code."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from importlib.metadata import version
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.recipe.target import CpuTarget, host_cpu_flags
from handoff.infra.engine.budget import memory_bytes
from handoff.tasks import steps
from handoff.tasks.compile.fingerprint import compiler_banner
from handoff.tasks.compile.messages import CompileJob, ToolsJob, ToolsResult

# The steps that confined processes import, and may not leave the bytecode of behind.
_STEPS_TO_IMPORT = (
    steps.TAKE_IN, steps.INSPECT, steps.OPTIMIZE, steps.TAP, steps.REFERENCE, steps.VERIFY,
    steps.LOCALIZE, steps.TRIAL, steps.PROBE, steps.MEASURE, steps.BENCHMARK, steps.RACE,
    steps.SIDE_BY_SIDE, steps.COMPARE, steps.CAPTURE, steps.PROPOSE, steps.TRY_CONTRACT,
)  # fmt: skip

# In 2 GiB the kernel ended one of a first release's two compilers; in 3 GiB it ended neither.
_BYTES_FOR_BOTH = 4 << 30


def run(job: ToolsJob) -> ToolsResult:
    """Make ready in `job.shared` and `job.programs` what isn't there yet for the job's target.

    Where the compiler fails nothing is ready, and the compilation itself says why. Raises
    `EnvironmentLacking` where there is no compiler, or the C++ runner can't be built.
    """
    ready = job.shared / "ready" / _ready_key(job).short
    if ready.exists():
        return ToolsResult(Path(ready.read_text(encoding="utf-8")), made=False)
    # Only now: importing them takes seconds.
    from handoff.tasks.compile.arm.emulation import emulated_target
    from handoff.tasks.probe.build import build_arm_runner, build_runner

    build = build_arm_runner if emulated_target(job.target.slug) else build_runner
    # Each is half a minute of one compiler on one core.
    with ThreadPoolExecutor(1) as executor:
        building = executor.submit(build, job.runner, job.programs)
        if memory_bytes() < _BYTES_FOR_BOTH:
            wait([building])
        with contextlib.suppress(HandoffError):
            _compile_sample(job)
        program, _ = building.result()
    for step in _STEPS_TO_IMPORT:
        importlib.import_module(f"handoff.tasks.{step.module_path}")
    ready.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(ready, str(program), mode=0o666)
    return ToolsResult(program, made=True)


def _ready_key(job: ToolsJob) -> Digest:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    parts = {
        "torch": [version("torch"), torch.origin, Path(torch.origin).stat().st_ctime_ns],
        "compiler": _compiler_version(),
        "processor": sorted(host_cpu_flags()),
        "target": repr(job.target),
        "interface": Path(__file__).with_name("compiled_interface.py").read_text("utf-8"),
        "options": {name: str(value) for name, value in sorted(job.options.items())},
        "runner": {path.name: path.read_text("utf-8") for path in sorted(job.runner.glob("*.*"))},
    }
    return digest_bytes(json.dumps(parts, sort_keys=True).encode())


def _compiler_version() -> str:
    """Return what Inductor's compiler says of itself, asked without torch; nothing without one."""
    try:
        return compiler_banner(os.environ.get("CXX") or "g++")
    except OSError:
        return ""


def _compile_sample(job: ToolsJob) -> None:
    """Compile a model of our own as any other is, which makes all that Inductor makes ready."""
    import torch

    from handoff.tasks.compile.caching.shared_tools import build_headers_in, level_marker
    from handoff.tasks.compile.machine.vector_isa import vector_isa
    from handoff.tasks.compile.step import run as compile_package

    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() + 1.0

    with tempfile.TemporaryDirectory() as folder, build_headers_in(job.shared):
        program = Path(folder, "program.pt2")
        torch.export.save(torch.export.export(Sine(), (torch.ones(4, 8),)), program)
        compile_package(CompileJob(program, job.target, Path(folder, "package"), job.options))
    host = job.target.host
    if isinstance(host, CpuTarget):
        vector_isa(host.isa)
        marker = level_marker(job.shared, host.isa)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
