"""The mechanical blessing: what it accepts, what it guards, and that no crash ends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from artifacts.digest import digest_file
from artifacts.errors import BlessingRefused, EnvironmentLacking, PackageRefused
from artifacts.manifest import PackageFile
from artifacts.mechanics import (
    Growth,
    Limits,
    Mechanics,
    Opening,
    Outcome,
    Rate,
    Replay,
    Trial,
)
from artifacts.probes import MeasureJob, ProbeJob, ProbeResult
from artifacts.record import from_plain, to_plain
from artifacts.signature import Dimension, ModelSignature, TensorSpec
from tasks import measure, probe
from tasks.child import ProcessPlan, StepProcess
from tasks.compiling.packages import extract_library
from tasks.probing import golden
from tasks.probing.build import build_runner
from tasks.probing.child import Ended, run_limited
from tasks.probing.golden import Written
from tasks.probing.hostile import describe_hostile
from tasks.probing.trials import Tried, try_all
from tests.tasks.built_release import BuiltRelease

PLANTED = Path(__file__).parent / "planted"
RUNNER = Path(__file__).parents[2] / "infra" / "runner"
SHORT = Limits(memory_bytes=1 << 30, answer_s=2.0)
QUICK = Limits(growth_calls=500, growth_s=2.0)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that has every fault that a package can have."""
    # Without libtorch, whose own address space is more than the limit that these faults meet.
    program = tmp_path_factory.mktemp("planted") / "planted"
    command = ["g++", "-std=c++17", "-O1", str(PLANTED / "main.cpp"), "-o", str(program)]
    subprocess.run([*command, "-lpthread"], check=True, timeout=120)
    return program


@pytest.fixture(scope="module")
def job(
    built_release: BuiltRelease, runner: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProbeJob]:
    """A probe of the recommender, which finds the program that was built once for all tests."""
    built = built_release.manifest.targets[0]
    assert built.fit is not None
    folder = tmp_path_factory.mktemp("probe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "build_runner", lambda source, programs: (runner, 0.0))
        yield ProbeJob(
            folder=built_release.package,
            files=built.files,
            fit=built.fit,
            signature=built_release.manifest.signature,
            reference=built_release.reference,
            recipe=built_release.manifest.recipe,
            source=RUNNER,
            programs=folder / "programs",
            workspace=folder / "workspace",
            limits=QUICK,
        )


@pytest.fixture(scope="module")
def probed(job: ProbeJob) -> ProbeResult:
    """What a probe of the recommender finds."""
    return bless(job)


@pytest.mark.compile
def test_a_good_package_is_accepted_with_what_was_measured(probed: ProbeResult) -> None:
    found = probed.mechanics
    assert probed.accepted, probed.reasons
    usual = torch.get_num_threads()
    assert [(r.file, r.threads, r.intra_op) for r in found.replays] == [
        ("model.so", 1, usual), ("model.so", 2, usual), ("model.so", 8, usual),
        ("model.pt2", 1, usual), *(("model.so", 1, n) for n in probe.other_thread_counts(usual)),
    ]  # fmt: skip
    assert all(replay.calls > 0 for replay in found.replays)
    assert all(replay.different == 0 for replay in found.replays if replay.intra_op == usual)
    assert [opening.file for opening in found.openings] == ["model.so", "model.pt2"]
    assert [rate.threads for rate in found.rates] == [1, 2, 8]
    assert found.growth is not None
    assert found.growth.calls == 500
    assert {trial.guarded for trial in found.trials} == {"refused"}
    assert from_plain(ProbeResult, json.loads(json.dumps(to_plain(probed)))) == probed


@pytest.mark.compile
def test_an_id_beyond_the_table_that_ends_the_process_is_guarded(probed: ProbeResult) -> None:
    if torch.get_num_threads() == 1:
        pytest.skip("on one core Inductor splits no loop, and the package's own check is thrown")
    assert probed.verdict == "accepted with guard"
    assert set(probed.mechanics.guards) >= {"ids:last=1000", "ids:last=-1"}
    trial = next(t for t in probed.mechanics.trials if t.hostile == "ids:last=1000")
    assert (trial.package, trial.guarded) == ("crashed", "refused")
    assert trial.told.startswith("SIGABRT")
    assert "index out of bounds" in trial.told


@pytest.mark.compile
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
        assert ended.outcome is None or "--unchecked" in arguments, ended.told


@pytest.mark.compile
def test_the_step_runs_in_a_step_process_and_builds_its_program(
    job: ProbeJob, tmp_path: Path
) -> None:
    process = StepProcess(ProcessPlan("run"), tmp_path / "log" / "run.log")
    try:
        result = process.run(job, limit_s=300)
    finally:
        process.close()
    assert isinstance(result, ProbeResult)
    assert result.accepted, result.reasons
    assert result.build_s > 0
    assert result.runner.parent == job.programs


@pytest.mark.compile
def test_other_outputs_in_cpp_than_in_python_are_refused(
    job: ProbeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_other(job: ProbeJob, release: Path, file: Path) -> Written:
        written = golden.write_cases(job, release, file)
        tensors = load_file(file)
        tensors["1/outputs/0"][0, 0] += 0.01
        save_file(tensors, file)
        return written

    monkeypatch.setattr(probe, "write_cases", write_other)
    result = probe.run(job)
    assert result.verdict == "refused"
    assert "gave other outputs in C++ than in Python" in result.reasons[0]


class Sums(nn.Module):
    """Sums over the batch, which Inductor splits over threads."""

    def forward(self, x: torch.Tensor) -> Any:
        return (x * x).sum(), (x - x.mean()).abs().sum(0)


def sums_job(job: ProbeJob, folder: Path, options: dict[str, Any]) -> ProbeJob:
    """Compile the sums with options of Inductor's, and return a probe of that."""
    x, package = torch.randn(64, 4096), folder / job.folder.name
    package.mkdir(parents=True)
    exported = torch.export.export(Sums(), (x,))
    torch._inductor.aoti_compile_and_package(
        exported, package_path=str(package / "model.pt2"), inductor_configs=options
    )
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


@pytest.mark.compile
def test_a_package_that_bears_no_more_threads_than_its_builders_is_refused(
    job: ProbeJob, tmp_path: Path
) -> None:
    # Inductor's reductions in torch 2.15: as many places as the building machine has cores, and
    # as many threads as the running machine has. When this fails, 'cpp.dynamic_threads' in
    # tasks/compile.py may go.
    if torch.get_num_threads() in (1, max(16, 2 * torch.get_num_threads())) or (
        torch.get_num_threads() != os.cpu_count()
    ):
        pytest.skip("Inductor fixes the number of threads here, or splits nothing")
    plain = probe.run(sums_job(job, tmp_path / "plain", {}))
    assert plain.verdict == "refused"
    # What is written beyond the places crashes, hangs, or makes the sums wrong.
    assert all("16 threads a call" in r or "16 a call" in r for r in plain.reasons), plain.reasons
    mended = probe.run(sums_job(job, tmp_path / "mended", {"cpp.dynamic_threads": True}))
    assert mended.accepted, mended.reasons


@pytest.mark.compile
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


@pytest.mark.compile
def test_a_package_that_was_changed_is_not_probed(job: ProbeJob, tmp_path: Path) -> None:
    folder = shutil.copytree(job.folder, tmp_path / job.folder.name)
    data = bytearray((folder / "model.so").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "model.so").write_bytes(bytes(data))
    with pytest.raises(PackageRefused, match="not the file that was released"):
        probe.run(replace(job, folder=folder))


@pytest.mark.compile
def test_nothing_to_replay_is_a_refusal(job: ProbeJob, tmp_path: Path) -> None:
    torch.save([], tmp_path / "none.pt")
    with pytest.raises(BlessingRefused, match="a case of the input plan"):
        probe.run(replace(job, reference=tmp_path / "none.pt"))


def bless(job: ProbeJob) -> ProbeResult:
    """Probe and measure."""
    return measure.run(MeasureJob(job, probe.run(job)))


def judge(found: Mechanics) -> list[str]:
    """Return what is said against a package."""
    return [*probe.judge(found), *measure.judge(found)]


def feed(program: Path, hostile: Sequence[str]) -> Tried:
    """Feed hostile inputs to a program."""

    def run(some: Sequence[str]) -> Ended:
        told = [part for name in some for part in ("--hostile", name)]
        return run_limited(program, ["trial", *told], SHORT)

    return try_all(hostile, run)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("fault", "outcome", "told"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("deep", "crashed", "SIGSEGV"),
        ("illegal", "crashed", "SIGILL"),
        ("abort", "crashed", "SIGABRT: what():  index out of bounds"),
        ("exit", "crashed", "it ended without an answer"),
        ("hang", "hung", "no answer within 2 s"),
        ("spin", "hung", "no answer within 2 s"),
        ("memory", "out of memory", "SIGABRT: what():  std::bad_alloc"),
        ("taken", "answered", ""),
        ("wrong-after", "harmed", ""),
    ],
)
def test_every_end_has_a_name_and_the_input_that_caused_it(
    planted: Path, fault: str, outcome: Outcome, told: str
) -> None:
    found = feed(planted, ["a:fine", f"a:{fault}", "b:fine"])
    assert found["a:fine"][0] == "refused"
    assert found["b:fine"][0] == "refused"
    assert found[f"a:{fault}"] == (outcome, told)


@pytest.mark.compile
def test_what_an_earlier_input_has_broken_is_not_blamed_on_the_later_one_alone(
    planted: Path,
) -> None:
    outcome, told = feed(planted, ["a:breaks", "a:meets-broken"])["a:meets-broken"]
    assert outcome == "harmed"
    assert "alone it is refused" in told


@pytest.mark.compile
def test_a_program_that_tries_nothing_has_survived_nothing(planted: Path) -> None:
    found = try_all(["a:fine"], lambda some: run_limited(planted, ["replay"], SHORT))
    assert found["a:fine"][0] == "not run"


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    ended = run_limited(tmp_path / "none", [], SHORT)
    assert ended.outcome == "refused"
    assert "not found" in ended.told or "No such file" in ended.told


@pytest.mark.compile
def test_a_program_is_built_once_for_a_source(tmp_path: Path) -> None:
    source = shutil.copytree(PLANTED, tmp_path / "source")
    first, seconds = build_runner(source, tmp_path / "programs")
    assert seconds > 0
    assert build_runner(source, tmp_path / "programs") == (first, 0.0)
    (source / "main.cpp").write_text((source / "main.cpp").read_text() + "// changed\n")
    assert build_runner(source, tmp_path / "programs")[0] != first
    assert {path.name[:15] for path in (tmp_path / "programs").iterdir()} == {"handoff-runner-"}


@pytest.mark.compile
@pytest.mark.parametrize(
    ("text", "told"), [("int main() { return x; }", "'x' was not"), (None, "no .cpp")]
)
def test_a_source_that_does_not_compile_is_told(
    tmp_path: Path, text: str | None, told: str
) -> None:
    if text is not None:
        (tmp_path / "main.cpp").write_text(text)
    with pytest.raises(EnvironmentLacking, match="could not be built") as caught:
        build_runner(tmp_path, tmp_path / "programs")
    assert told in caught.value.got.replace("\u2018", "'").replace("\u2019", "'")


def mechanics(*trials: Trial, grown: int = 0, beyond: int = 0, different: int = 0) -> Mechanics:
    """Return what a probe found out about a package that is good but for what is given."""
    places = [("model.so", 1), ("model.so", 2), ("model.so", 8), ("model.pt2", 1), ("model.so", 1)]
    return Mechanics(
        case="batch=1",
        replays=tuple(Replay(f, n, 2, 2, 4, different, beyond, 0.5) for f, n in places),
        openings=tuple(Opening(f, 0.1, 0.1, 0.1, 1, 1, 1) for f in ("model.so", "model.pt2")),
        rates=tuple(Rate(n, 10.0) for n in (1, 2, 8)),
        growth=Growth(10_000, 1.0, 1 << 30, grown, 400 << 20),
        trials=trials or (Trial("missing", "refused", "refused"),),
    )


def test_nothing_is_said_against_a_good_package() -> None:
    assert judge(mechanics(different=4)) == []


def test_memory_that_grows_on_is_a_leak_and_memory_that_is_kept_is_not() -> None:
    assert judge(mechanics(grown=4 << 20)) == []
    assert any("it leaks" in reason for reason in judge(mechanics(grown=5 << 20)))


@pytest.mark.parametrize(
    ("trial", "refused"),
    [
        (Trial("ids:last=9", "crashed", "refused"), False),
        (Trial("ids:last=9", "answered", "refused"), False),
        (Trial("ids:last=9", "crashed", "crashed"), True),
        (Trial("ids:last=9", "answered", "answered"), True),
        (Trial("ids:last=9", "answered alike", "answered alike"), True),
        (Trial("ids:strided", "answered alike", "answered alike"), False),
        (Trial("ids:strided", "answered", "answered"), True),
        (Trial("ids:last=9", "harmed", "harmed"), True),
        (Trial("ids:last=9", "hung", "hung"), True),
        (Trial("ids:last=9", "not run", "refused"), True),
        (Trial("ids:last=9", "refused", "not run"), True),
        (Trial("ids:last=9", "refused", "crashed"), True),
    ],
)
def test_what_even_the_guard_does_not_survive_is_refused(trial: Trial, refused: bool) -> None:
    assert bool(judge(mechanics(trial))) is refused


@pytest.mark.parametrize("part", ["replays", "openings", "rates", "growth", "trials"])
def test_a_check_that_did_not_run_is_a_refusal(part: str) -> None:
    found = mechanics()
    plain = to_plain(found)
    plain[part] = None if part == "growth" else []
    assert judge(from_plain(Mechanics, plain))


def test_hostile_inputs_are_all_against_the_signature() -> None:
    signature = ModelSignature(
        (
            TensorSpec("ids", "int64", ("batch", 4), 0, 9),
            TensorSpec("x", "float32", ("batch", "length")),
            TensorSpec("flag", "bool", ()),
            TensorSpec("byte", "uint8", (2,), 0, 255),
        ),
        dimensions={"batch": Dimension(1, 64), "length": Dimension(0, 8)},
    )
    found = describe_hostile(signature, {"batch": 1, "length": 0})
    assert len(set(found)) == len(found)
    assert {"missing", "extra", "@batch=65", "@batch=0", "@length=9"} <= set(found)
    assert "@length=0" not in found
    assert {"ids:axis0=2", "ids:axis0=64", "ids:axis1=5", "ids:dtype=int32"} <= set(found)
    assert "ids:axis0=1" not in found
    assert not [name for name in found if name.startswith("x:axis1")]
    assert {"ids:last=10", "ids:last=-1"} <= set(found)
    assert not [name for name in found if name.startswith("byte:last")]
    assert "flag:less-axis" not in found
    assert "x:device=cpu" in describe_hostile(signature, {"batch": 1, "length": 0}, on_gpu=True)
