"""The seeds' protocol: what is timed, what is printed of it, and what the goals make of it."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.target import native_cpu_target
from tests.studies.benchmarks.seeds import measuring
from tests.studies.benchmarks.seeds.asked import PlayJob, PlayResult, read_record, write_record
from tests.studies.benchmarks.seeds.contestants import (
    CROSS,
    EAGER,
    ELSEWHERE,
    HANDOFF,
    NATIVE,
    ONNX,
    from_files,
)
from tests.studies.benchmarks.seeds.goals import GOALS, verdicts
from tests.studies.benchmarks.seeds.making import FIT_FILE, NotMade
from tests.studies.benchmarks.seeds.measured import Measurement, add, keep, read_kept
from tests.studies.benchmarks.seeds.measuring import MeasureOptions, measure, prepare_package
from tests.studies.benchmarks.seeds.onnx_runtime import ProviderMissing, require_provider
from tests.studies.benchmarks.seeds.playing import largest_difference, take_turns
from tests.studies.benchmarks.seeds.report import mean_rows, missing_lines, rows_of, title_of
from tests.studies.benchmarks.seeds.subjects import expand, find_subject
from tests.tasks.compile.cross import models as cross_models


def played(**speeds: float) -> PlayResult:
    """Return what a process saw in which eager took a second, and others as many times less."""
    names = {"eager": EAGER, "native": NATIVE, "cross": CROSS, "elsewhere": ELSEWHERE,
             "torchscript": "TorchScript", "last": f"{HANDOFF}channels-last"}  # fmt: skip
    seconds: dict[str, tuple[float, ...]] = {
        names[name]: (1.0 / speed,) * 4 for name, speed in {"eager": 1.0, **speeds}.items()
    }
    return PlayResult("a GPU", 0.5, seconds, dict.fromkeys(seconds, 1e-6), {})


def measured(
    *processes: PlayResult, model: str = "resnet18", precision: str = "float32",
    device: str = "cuda", missing: dict[str, str] | None = None,
) -> Measurement:  # fmt: skip
    return Measurement(model, 8, precision, device, 8, 0.2, processes, missing or {})


def test_a_process_is_one_observation_and_the_median_is_told_with_all_of_them() -> None:
    one = measured(played(native=2.0), played(native=3.0), played(native=2.5))
    rows = {row[0]: row for row in rows_of(one)}
    assert rows[NATIVE] == (NATIVE, "1.6", "2.50 (2.00 to 3.00)", "1.0e-06")
    assert rows[EAGER][2] == "1"


def test_no_ratio_is_told_where_the_processes_disagree_about_who_is_faster() -> None:
    rows = rows_of(measured(played(native=0.9), played(native=1.2)))
    assert rows[1][2] == "no difference (0.90 to 1.20)"


def test_the_load_is_told_before_anything_and_right_before_each_process() -> None:
    title = title_of(measured(played(), played()))
    assert "Load before anything was made: 0.2, right before each process's calls: 0.5, 0.5" in (
        title
    )
    assert "the last 4 of 8 runs, in 2 processes" in title


def test_who_is_missing_is_told_with_the_reason() -> None:
    one = measured(played(), missing={ONNX: "onnxruntime 1.32.0 has no CUDAExecutionProvider"})
    assert missing_lines(one) == [
        "no ONNX Runtime: onnxruntime 1.32.0 has no CUDAExecutionProvider"
    ]


def test_onnx_runtime_without_cuda_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = types.ModuleType("onnxruntime")
    attributes = {
        "__version__": "1.32.0",
        "get_available_providers": lambda: ["CPUExecutionProvider"],
    }
    installed.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, "onnxruntime", installed)
    require_provider("cpu")
    with pytest.raises(ProviderMissing, match=r"1\.32\.0 has no CUDAExecutionProvider, but CPU"):
        require_provider("cuda")


def test_nothing_is_measured_of_a_goal_without_a_gpu() -> None:
    on_cpu = measured(played(native=9.0), device="cpu")
    lines = verdicts([on_cpu])
    assert len(lines) == len(GOALS)
    assert all(line.endswith(": not measured") for line in lines)


def test_a_goal_is_met_by_the_fastest_variant_of_our_own_in_each_precision_it_is_asked_of() -> None:
    lines = verdicts([
        measured(played(native=1.2, last=1.4, torchscript=8.0)),
        measured(played(native=1.1), precision="tf32"),
        measured(played(native=1.1), precision="bf16"),
    ])  # fmt: skip
    assert lines[0] == (
        "ResNet-18 over eager, float32, at least 1.35: met at 1.40 (1.40 to 1.40) "
        "(resnet18; Handoff, channels-last)"
    )
    assert lines[1].startswith("ResNet-18 over eager, tf32, at least 1.35: missed at 1.10")
    assert lines[2] == "user_model over eager, float32, tf32, at least 2.69: not measured"


def test_a_goal_within_the_noise_says_so() -> None:
    line = verdicts([measured(played(native=1.3), played(native=1.4), played(native=1.5))])[0]
    assert "met at 1.40 (1.30 to 1.50), within the noise" in line


def test_the_goal_of_half_precision_is_held_against_the_mean_of_all_models() -> None:
    lines = verdicts([
        measured(played(native=1.0), played(native=1.0), precision="fp16"),
        measured(played(native=4.0), played(native=9.0), precision="fp16", model="bert"),
    ])  # fmt: skip
    (line,) = [line for line in lines if line.startswith("geometric mean")]
    assert "fp16, at least 1.9: met at 2.50 (2.00 to 3.00) (2 models; Handoff, plain)" in line


def test_cross_compiled_packages_are_held_against_native_ones_by_the_slowest() -> None:
    lines = verdicts([
        measured(played(native=2.0, cross=1.98)),
        measured(played(native=2.0, cross=2.0, elsewhere=1.5), model="user_model"),
    ])  # fmt: skip
    (line,) = [line for line in lines if line.startswith("cross-compiled")]
    assert "float32, at least 0.95: missed at 0.75" in line
    assert line.endswith("(user_model, cross-compiled elsewhere)")


def test_the_summary_says_of_how_many_models_a_mean_is() -> None:
    rows = mean_rows([
        measured(played(native=2.0, torchscript=2.0)),
        measured(played(native=8.0, last=18.0), model="bert"),
    ])  # fmt: skip
    assert rows == [
        (NATIVE, "2", "4.00 (4.00 to 4.00)"),
        ("TorchScript", "1", "2.00 (2.00 to 2.00)"),
        (f"{HANDOFF}channels-last", "1", "18.00 (18.00 to 18.00)"),
        (f"{HANDOFF}the fastest variant of each", "2", "6.00 (6.00 to 6.00)"),
    ]


def test_what_was_measured_is_kept_and_a_newer_one_takes_its_place(tmp_path: Path) -> None:
    older, other = measured(played(native=2.0)), measured(played(), precision="fp16")
    keep([older, other], tmp_path / "kept.json")
    kept = read_kept(tmp_path / "kept.json")
    assert kept == [older, other]
    newer = measured(played(native=3.0))
    add(newer, kept)
    assert kept == [other, newer]
    assert read_kept(tmp_path / "none.json") == []


def test_everybody_has_a_turn_in_each_run_and_the_last_half_is_timed() -> None:
    called: list[str] = []

    def call(name: str) -> Callable[[object], None]:
        return lambda _: called.append(name)

    seconds = take_turns({name: call(name) for name in "ab"}, (torch.zeros(1),), 5)
    assert "".join(called) == "abbaabbaab"
    assert {name: len(own) for name, own in seconds.items()} == {"a": 3, "b": 3}


def test_a_nan_on_one_side_alone_and_another_shape_are_no_small_difference() -> None:
    nan, one = torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0])
    assert largest_difference((nan, one), (nan, one + 2)) == 2.0
    assert math.isnan(largest_difference((one, nan), (nan, nan)))
    assert largest_difference((torch.tensor([math.inf]),), (torch.tensor([math.inf]),)) == 0.0
    with pytest.raises(ValueError, match=r"expected an output \[2\], got \[1\]"):
        largest_difference((one[:1],), (one,))


def test_who_ends_the_process_while_being_opened_is_left_out_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[PlayJob] = []

    def run(module: str, record: Path, environment: dict[str, str], limit_s: float) -> None:
        jobs.append(job := read_record(PlayJob, record))
        if "TorchScript" not in job.without:
            job.opening.write_text("TorchScript")
            raise NotMade("its process ended with -11")
        write_record(job.to, played(native=2.0))

    monkeypatch.setattr(measuring, "run_apart", run)
    options = MeasureOptions("cpu", native_cpu_target().slug, 4, 0, 1)
    work = measuring._Work(find_subject("user_model"), "float32", options, tmp_path)
    assert measuring._play(work, 0) == played(native=2.0)
    assert work.missing == {"TorchScript": "its process ended with -11"}
    assert len(jobs) == 2


def test_a_package_from_elsewhere_takes_part_where_it_fits(tmp_path: Path) -> None:
    options = MeasureOptions("cuda", "cuda-sm90", 4, 0, 1, packages=tmp_path)
    work = measuring._Work(find_subject("user_model"), "bf16", options, tmp_path)
    measuring._take_package(work, tmp_path)
    assert work.missing.pop(ELSEWHERE).startswith("there is no ")
    folder = tmp_path / "user_model-bf16-cuda-sm90"
    folder.mkdir()
    (folder / "model.so").touch()
    write_record(folder / FIT_FILE, Fit((), "1.2.3"))
    measuring._take_package(work, tmp_path)
    assert "it needs torch 1.2.3" in work.missing.pop(ELSEWHERE)
    write_record(folder / FIT_FILE, Fit((), torch.__version__))
    measuring._take_package(work, tmp_path)
    assert work.files == {ELSEWHERE: folder / "model.so"}


def test_what_needs_a_gpu_takes_no_part_on_a_cpu() -> None:
    assert CROSS not in from_files("cpu")
    assert {CROSS, NATIVE, ONNX} <= set(from_files("cuda"))


def test_the_corpus_transformers_have_one_word() -> None:
    assert expand(["user_model", "transformers"])[:2] == ["user_model", "bert"]


@pytest.mark.compile
@pytest.mark.long
def test_the_protocol_runs_from_a_model_to_its_seconds(tmp_path: Path) -> None:
    left = [name for name in from_files("cpu") if name != NATIVE]
    options = MeasureOptions(
        "cpu", native_cpu_target().slug, 4, 4, 1, (*left, "torch.compile max-autotune")
    )
    one = measure(find_subject("user_model"), "float32", options, tmp_path)
    assert one.contestants == (EAGER, "TorchScript", NATIVE)
    assert not one.missing
    assert one.apart(NATIVE) < 1e-5
    assert len(one.played[0].seconds[NATIVE]) == 2


@pytest.mark.compile
@pytest.mark.long
@cross_models.needs_known_torch
def test_a_package_for_a_gpu_is_made_by_a_process_that_sees_none(tmp_path: Path) -> None:
    options = MeasureOptions("cuda", "cuda-sm90", 4, 0, 1)
    folder = prepare_package(find_subject("user_model"), "float32", options, tmp_path)
    assert folder == tmp_path / "user_model-float32-cuda-sm90"
    assert {path.name for path in folder.iterdir()} == {"model.so", FIT_FILE}
    assert read_record(Fit, folder / FIT_FILE).gpu_capability == 90
