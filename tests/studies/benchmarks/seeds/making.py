"""Make what one contestant serves from, in a process of its own.

    python -m tests.studies.benchmarks.seeds.making JOB.json

One of Handoff's variants is optimized and compiled as a release does it, without its verification.
For a GPU that isn't to be seen the process is started without one in sight, so that it compiles as
a machine does that has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import CudaTarget, compile_variables, parse_target
from handoff.tasks.compile import step as compiling
from handoff.tasks.compile.machine.native_gpu import can_compile
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.optimize import step as optimize
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.verify.loading import SHARED_LIBRARY
from tests.studies.benchmarks.failures import describe_failure
from tests.studies.benchmarks.seeds.asked import MakeJob, precision_of, read_record, write_record
from tests.studies.benchmarks.seeds.contestants import CROSS, ONNX, variation_of
from tests.studies.benchmarks.seeds.onnx_runtime import require_provider, write_model
from tests.studies.benchmarks.seeds.subjects import prepare

LIMIT_S = 1800.0
# Beside a package that is kept: what it asks of a machine.
FIT_FILE = "fit.json"


class NotMade(Exception):
    """A contestant can't be made of this model; the message says why."""


def make_apart(job: MakeJob) -> None:
    """Make what the job asks for in a new process; raise `NotMade` with its last line."""
    job.to.parent.mkdir(parents=True, exist_ok=True)
    record = job.to.with_suffix(".job.json")
    write_record(record, job)
    environment = {**os.environ, **compile_variables(parse_target(job.target))}
    if job.contestant == CROSS:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    run_apart("tests.studies.benchmarks.seeds.making", record, environment, LIMIT_S)


def run_apart(module: str, record: Path, environment: dict[str, str], limit_s: float) -> None:
    """Run a module on a job's file; raise `NotMade` with the last line that a failure printed."""
    command = [sys.executable, "-m", module, str(record)]
    log = record.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                command, env=environment, check=False, timeout=limit_s, stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            raise NotMade(f"it took more than {limit_s:.0f} s") from None
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        # One that was ended by a signal has said nothing of it.
        raise NotMade(lines[-1][:300] if code > 0 and lines else f"its process ended with {code}")


def main() -> None:
    """Do the job; end with one line where it can't be done."""
    job = read_record(MakeJob, Path(sys.argv[1]))
    try:
        with torch.no_grad(), precision_of(job.precision):
            _make(job)
    except Exception as failure:  # noqa: BLE001 - what can't be made is a result
        sys.exit(describe_failure(failure))


def _make(job: MakeJob) -> None:
    if job.contestant == ONNX:
        require_provider(job.device)
        # What is written knows no device.
        module, inputs = prepare(replace(job, device="cpu"))
        write_model(module, inputs, job.batch, job.to)
        return
    variation, target = variation_of(job.contestant), parse_target(job.target)
    if isinstance(target, CudaTarget) and can_compile(target) is (job.contestant == CROSS):
        sees = "none" if job.contestant == CROSS else f"one for {target.slug}"
        raise RuntimeError(f"expected a process that sees {sees} of the GPUs")
    scratch = job.to.with_suffix(".making")
    # In half precision, what a pass computes beforehand is rounded at another place than before.
    passes = (*Recipe().passes, *variation.passes)
    recipe = Recipe(passes=passes, broken_passes="leave out")
    found = optimize.run(OptimizeJob(job.delivery, scratch / "program", recipe))
    own = len(variation.passes)
    if own and not any(effect.modified for effect in found.effects[-own:]):
        raise RuntimeError("its passes change nothing")
    compiled = compiling.run(
        CompileJob(found.program, target, scratch / "package", dict(variation.options))
    )
    (scratch / "package" / SHARED_LIBRARY).rename(job.to)
    write_record(job.to.with_name(FIT_FILE), compiled.fit)


if __name__ == "__main__":
    main()
