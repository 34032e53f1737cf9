"""The mechanical gate of real packages: what it accepts, what it guards, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.artifacts.digest import digest_file
from handoff.artifacts.errors import BlessingRefused, PackageRefused
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.manifest import PackageFile
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.compile.packages import extract_library
from handoff.tasks.probe import cases
from handoff.tasks.probe import step as probe
from handoff.tasks.probe.cases import WrittenCases
from handoff.tasks.probe.messages import ProbeJob, ProbeResult
from handoff.tasks.probe.runner_process import run_limited
from tests.tasks.built_release import BuiltRelease
from tests.tasks.compile.torch_compilation import compile_as_torch_does
from tests.tasks.probe.samples import QUICK, bless

pytestmark = pytest.mark.compile


def test_a_good_package_is_accepted_with_what_was_measured(probed: ProbeResult) -> None:
    found = probed.mechanics
    assert probed.accepted, probed.reasons
    usual = torch.get_num_threads()
    assert [(r.file, r.threads, r.intra_op) for r in found.replays] == [
        ("model.so", 1, usual), ("model.so", 2, usual), ("model.so", 8, usual),
        ("model.pt2", 1, usual), *(("model.so", 1, n) for n in probe.other_thread_counts(usual)),
    ]  # fmt: skip
    assert all(replay.calls >= replay.threads for replay in found.replays)
    assert all(replay.different == 0 for replay in found.replays if replay.intra_op == usual)
    assert [opening.file for opening in found.openings] == ["model.so", "model.pt2"]
    assert [rate.threads for rate in found.rates] == [1, 2, 8]
    assert found.growth is not None
    assert found.growth.calls == 500
    # The same numbers in another layout, where the package takes that, are no harm.
    taken = {t.hostile.rpartition(":")[2] for t in found.trials if t.guarded == "answered alike"}
    assert taken <= {"turned"}
    assert {trial.guarded for trial in found.trials} - {"answered alike"} == {"refused"}
    assert from_plain(ProbeResult, json.loads(json.dumps(to_plain(probed)))) == probed


def test_an_id_beyond_the_table_that_ends_the_process_is_guarded(probed: ProbeResult) -> None:
    if torch.get_num_threads() == 1:
        pytest.skip("on one core Inductor splits no loop, and the package's own check is thrown")
    assert probed.verdict == "accepted with guard"
    assert set(probed.mechanics.guards) >= {"ids:last=1000", "ids:last=-1"}
    trial = next(t for t in probed.mechanics.trials if t.hostile == "ids:last=1000")
    assert (trial.package, trial.guarded) == ("crashed", "refused")
    assert trial.told.startswith("SIGABRT")
    assert "index out of bounds" in trial.told


def test_the_commands_repeat_the_checks_of_a_pulled_release(
    probed: ProbeResult, built_release: BuiltRelease, runner: Path
) -> None:
    examples = str(built_release.folder / "examples.safetensors")
    key = str(built_release.key)
    places = {"RELEASE": str(built_release.folder), "CASES": examples, "KEY": key}
    assert {command.split()[1] for command in probed.mechanics.commands} == {
        "replay", "bench", "trial",
    }  # fmt: skip
    for command in probed.mechanics.commands:
        name, *arguments = command.split()
        assert name == "handoff-runner"
        ended = run_limited(runner, [places.get(one, one) for one in arguments], QUICK)
        assert ended.lines
        assert ended.outcome is None or "--unchecked" in arguments, ended.message


@pytest.mark.long
def test_the_step_runs_in_a_step_process_and_builds_its_program(
    job: ProbeJob, tmp_path: Path
) -> None:
    plan = ProcessPlan(
        "run", reads=(job.folder, job.reference), runs=(job.programs,),
        writes=(job.programs, job.workspace),
    )  # fmt: skip
    process = StepProcess(plan, tmp_path / "log" / "run.log")
    try:
        result = process.run(job, limit_s=300)
    finally:
        process.close()
    assert isinstance(result, ProbeResult)
    assert result.accepted, result.reasons
    assert result.build_s > 0
    assert result.runner.parent == job.programs


def test_other_outputs_in_cpp_than_in_python_are_refused(
    job: ProbeJob, probed: ProbeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_other(job: ProbeJob, release: Path, file: Path, crowded: Path) -> WrittenCases:
        written = cases.write_cases(job, release, file, crowded)
        tensors = load_file(file)
        tensors["1/outputs/0"][0, 0] += 0.01
        save_file(tensors, file)
        return written

    monkeypatch.setattr(probe, "write_cases", write_other)
    # The replays are made all the same, and nothing else of a probe; what is known is judged again.
    (first, *others) = probed.mechanics.trials
    harmed = (replace(first, guarded="harmed"), *others)
    result = probe.run(replace(job, known=replace(probed.mechanics, trials=harmed)))
    assert result.verdict == "refused"
    assert "gave other outputs in C++ than in Python" in result.reasons[0]
    assert f"the input {first.hostile} is harmed by the checked entry" in result.reasons[-1]


class Sums(nn.Module):
    """Sums over the batch, which Inductor splits over threads."""

    def forward(self, x: torch.Tensor) -> Any:
        return (x * x).sum(), (x - x.mean()).abs().sum(0)


def sums_job(job: ProbeJob, folder: Path, options: dict[str, Any]) -> ProbeJob:
    """Compile the sums with options of Inductor's, and return a probe of that."""
    x, package = torch.randn(64, 4096), folder / job.folder.name
    compile_as_torch_does(torch.export.export(Sums(), (x,)), package, options)
    extract_library(package / "model.pt2", package / "model.so")
    case = {"name": "x", "inputs": (x,), "eager": (), "float64": ()}
    torch.save([case], folder / "reference.pt")
    files = tuple(
        PackageFile(f"{package.name}/{file.name}", digest_file(file), file.stat().st_size)
        for file in (package / "model.pt2", package / "model.so")
    )
    return replace(
        job, folder=package, files=files, reference=folder / "reference.pt",
        signature=ModelSignature((TensorSpec("x", "float32", (64, 4096)),)),
    )  # fmt: skip


@pytest.mark.long
def test_a_package_that_bears_no_more_threads_than_its_builders_is_refused(
    job: ProbeJob, tmp_path: Path
) -> None:
    # Inductor's reductions in torch 2.15: as many places as the building machine has cores, and
    # as many threads as the running machine has. When this fails, 'cpp.dynamic_threads' in
    # tasks/compile/step.py may go.
    if torch.get_num_threads() in (1, max(16, 2 * torch.get_num_threads())) or (
        torch.get_num_threads() != os.cpu_count()
    ):
        pytest.skip("Inductor fixes the number of threads here, or splits nothing")
    plain = probe.run(sums_job(job, tmp_path / "plain", {"cpp.dynamic_threads": False}))
    assert plain.verdict == "refused"
    # What is written beyond the places crashes, hangs, or makes the sums wrong.
    assert all("16 threads a call" in r or "16 a call" in r for r in plain.reasons), plain.reasons
    mended = probe.run(sums_job(job, tmp_path / "mended", {}))
    assert mended.accepted, mended.reasons


def test_a_runner_that_crashes_on_everything_is_a_refusal_and_no_error(
    job: ProbeJob, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "build_runner", lambda source, programs: (planted, 0.0))
    result = bless(job)
    assert result.verdict == "refused"
    crashed = "threads a call: crashed: SIGSEGV"
    assert f"replay of good inputs, {torch.get_num_threads()} {crashed}" in result.reasons
    assert f"bench of good inputs, 1 {crashed}" in result.reasons
    assert any(reason.startswith("nothing was told of memory") for reason in result.reasons)


def test_a_package_that_was_changed_is_not_probed(job: ProbeJob, tmp_path: Path) -> None:
    folder = shutil.copytree(job.folder, tmp_path / job.folder.name)
    data = bytearray((folder / "model.so").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.so").write_bytes(bytes(data))
    with pytest.raises(PackageRefused, match="not the file that was released"):
        probe.run(replace(job, folder=folder))


def test_what_is_known_of_the_same_code_is_taken_over_but_for_the_replays(
    job: ProbeJob, probed: ProbeResult
) -> None:
    known = replace(probed.mechanics, replays=(), notes=("of the other weights",))
    found = probe.run(replace(job, known=known))
    assert found.accepted, found.reasons
    assert all(replay.cases for replay in found.mechanics.replays)
    # How many inputs there are goes by what calls take.
    again, before = (
        replace(one, replays=tuple(replace(r, cases=0, calls=0) for r in one.replays))
        for one in (found.mechanics, probed.mechanics)
    )
    assert again == replace(before, notes=again.notes)
    assert again.notes != known.notes


def test_nothing_to_replay_is_a_refusal(job: ProbeJob, tmp_path: Path) -> None:
    torch.save([], tmp_path / "none.pt")
    with pytest.raises(BlessingRefused, match="a case of the input plan"):
        probe.run(replace(job, reference=tmp_path / "none.pt"))
