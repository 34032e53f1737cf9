"""The C++ runner: what it opens, what it refuses, and that it computes what Python computes."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from handoff.artifacts.release.manifest import MANIFEST_FILE
from handoff.artifacts.release.mechanics import RunnerLimits
from handoff.artifacts.serve.loader import load
from handoff.tasks.probe.cases import describe_hostile
from handoff.tasks.probe.runner_process import LoadedProgram
from tests.limits import LIMIT_S
from tests.tasks.built_release import ITEMS, BuiltRelease

pytestmark = pytest.mark.compile
LOOSE = ("--tolerance", "float32=1e-4,1e-4")


def run(program: Path, *arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program with that as its input; its errors are in English."""
    return subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True, text=True, check=False, input=given, timeout=LIMIT_S,
        env={"LC_ALL": "C", "TMPDIR": os.environ.get("TMPDIR", "/tmp")},
    )  # fmt: skip


def lines(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Return what the program printed."""
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def signed(release: BuiltRelease) -> tuple[str | Path, ...]:
    """Return the folder of the release, and the option that names the key which signed it."""
    return release.folder, "--key", release.key


@pytest.fixture
def pulled(built_release: BuiltRelease, tmp_path: Path) -> Path:
    """A copy of the release, to spoil."""
    return shutil.copytree(built_release.folder, tmp_path / "pulled")


@pytest.fixture(scope="module")
def cases(built_release: BuiltRelease, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cases with what Python's loader gives for them."""
    model = load(built_release.folder, keys=built_release.key)
    tensors: dict[str, torch.Tensor] = {}
    for case, batch in enumerate((3, 40)):
        inputs = (torch.randint(ITEMS, (batch, 20)), torch.randn(batch, 64))
        tensors |= {f"{case}/inputs/ids": inputs[0], f"{case}/inputs/features": inputs[1]}
        tensors[f"{case}/outputs/0"] = model(*inputs)[0]
    file = tmp_path_factory.mktemp("cases") / "cases.safetensors"
    save_file(tensors, file)
    return file


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the manifest of a pulled folder."""
    path = folder / MANIFEST_FILE
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def test_no_python_is_loaded_into_it(runner: Path) -> None:
    needed = subprocess.run(["ldd", str(runner)], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in needed.stdout.splitlines()]
    assert "libtorch_cpu.so" in names
    assert not [name for name in names if "python" in name]


@pytest.mark.parametrize("file", ["model.so", "model.pt2"])
def test_it_gives_the_bits_that_python_gives_from_several_threads(
    runner: Path, built_release: BuiltRelease, cases: Path, file: str
) -> None:
    options = ("--file", file, "--threads", "1,2,8", "--repeat", "5")
    found = lines(run(runner, "replay", *signed(built_release), cases, *options))
    assert [line["threads"] for line in found] == [1, 2, 8]
    assert [line["calls"] for line in found] == [10, 20, 80]
    assert all(line["different"] == 0 for line in found)


def test_a_call_writes_what_python_reads(
    runner: Path, built_release: BuiltRelease, cases: Path, tmp_path: Path
) -> None:
    written = tmp_path / "outputs.safetensors"
    lines(run(runner, "call", *signed(built_release), cases, written))
    expected = load_file(cases)
    for name, tensor in load_file(written).items():
        assert torch.equal(tensor, expected[name])
    assert set(load_file(written)) == {"0/outputs/0", "1/outputs/0"}


@pytest.mark.parametrize(
    ("error", "options", "status", "different"),
    [(1e-5, (), 3, 2), (1e-5, LOOSE, 0, 2), (0.1, LOOSE, 3, 2), (float("nan"), LOOSE, 3, 2)],
    ids=["one bit", "within the tolerance", "beyond it", "a NaN"],
)
def test_other_outputs_are_told(
    runner: Path, built_release: BuiltRelease, cases: Path, tmp_path: Path, *,
    error: float, options: tuple[str, ...], status: int, different: int,
) -> None:  # fmt: skip
    tensors = load_file(cases)
    tensors["1/outputs/0"][5, 1] += error
    save_file(tensors, tmp_path / "other.safetensors")
    ended = run(
        runner, "replay", *signed(built_release), tmp_path / "other.safetensors",
        "--repeat", str(different), *options,
    )  # fmt: skip
    assert ended.returncode == status
    (line,) = map(json.loads, ended.stdout.splitlines())
    assert (line["different"], line["different_cases"]) == (different, ["1"])
    assert line["beyond_tolerance"] == (different if status else 0)


def test_the_original_models_examples_are_met_within_the_tolerance(
    runner: Path, built_release: BuiltRelease
) -> None:
    examples = built_release.folder / "examples.safetensors"
    assert lines(run(runner, "replay", *signed(built_release), examples, *LOOSE))


def test_every_hostile_input_is_refused_by_the_guard_and_the_program_goes_on(
    runner: Path, built_release: BuiltRelease, cases: Path
) -> None:
    hostile = describe_hostile(built_release.manifest.signature, {"batch": 3})
    options = [part for name in hostile for part in ("--hostile", name)]
    found = lines(run(runner, "trial", *signed(built_release), cases, *options))
    tried = [line for line in found if line["event"] == "tried"]
    assert [line["hostile"] for line in tried] == list(hostile)
    assert {line["outcome"] for line in tried} == {"refused"}
    # In the guard's words, and not in the package's own.
    assert all("expected" in line["message"] for line in tried)
    assert all(line["message"].endswith("declares (manifest.json)") for line in tried)


def test_an_input_that_is_taken_is_told_and_ends_the_trial(
    runner: Path, built_release: BuiltRelease, cases: Path
) -> None:
    options = ("--hostile", "ids:last=7", "--hostile", "missing")
    found = lines(run(runner, "trial", *signed(built_release), cases, *options))
    assert [(line["event"], line["hostile"]) for line in found] == [
        ("trying", "ids:last=7"), ("tried", "ids:last=7"),
    ]  # fmt: skip
    assert found[1]["outcome"] == "answered"


def test_the_package_alone_can_be_called_without_the_guard(
    runner: Path, built_release: BuiltRelease, cases: Path
) -> None:
    options = ("--unchecked", "--hostile", "features:dtype=float64")
    _, tried = lines(run(runner, "trial", *signed(built_release), cases, *options))
    assert tried["outcome"] == "refused"
    assert "unmatched dtype" in tried["message"]


def test_commands_that_forks_run_print_and_end_as_they_would_alone(
    runner: Path, built_release: BuiltRelease, cases: Path
) -> None:
    release = signed(built_release)
    commands: list[tuple[str | Path, ...]] = [
        ("replay", *release, cases, "--threads", "1,2"),
        ("trial", *release, cases, "--hostile", "missing"),
        ("replay", built_release.folder, cases),
        ("nothing",),
        ("replay", *release, cases, "--intra-op", "3", *LOOSE),
    ]
    alone = [run(runner, *command) for command in commands]
    assert [ended.returncode for ended in alone] == [0, 0, 1, 64, 0]
    with closing(LoadedProgram(runner, RunnerLimits(answer_s=LIMIT_S))) as loaded:
        together = [loaded.run([*map(str, command)]) for command in commands]
    printed = [[json.loads(line) for line in one.stdout.splitlines()] for one in alone]
    assert [list(one.lines) for one in together] == printed
    assert [one.outcome for one in together] == [None, None, "refused", "refused", None]
    assert [one.message for one in together[2:4]] == [
        one.stderr.splitlines()[-1][:300] for one in alone[2:4]
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [(("each", "x"), "whole number"), (("each",), "paths"), (("each", "1"), "nobody asks")],
)
def test_it_runs_nothing_for_what_is_no_socket(
    runner: Path, given: tuple[str, ...], message: str
) -> None:
    ended = run(runner, *given)
    assert ended.returncode in (1, 64)
    assert message in ended.stderr


def test_a_benchmark_tells_time_and_memory(
    runner: Path, built_release: BuiltRelease, cases: Path
) -> None:
    options = ("--threads", "1,2", "--seconds", "0.05", "--calls", "200")
    opened, growth, *rates = lines(run(runner, "bench", *signed(built_release), cases, *options))
    assert opened["event"] == "opened"
    assert opened["open_s"] > 0
    assert opened["libtorch_bytes"] > 1 << 20
    assert growth["calls"] == 200
    assert [rate["threads"] for rate in rates] == [1, 2]
    assert all(rate["calls_per_s"] > 0 for rate in rates)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f, s: spoil(f / s / "model.so"), r"expected the digest \w+, got \w+"),
        (lambda f, s: (f / s / "model.so").write_bytes(b""), r"expected \d+ bytes, got 0 bytes"),
        (lambda f, s: (f / s / "model.so").unlink(), "expected a file, got nothing"),
        (lambda f, s: shutil.rmtree(f / s), "none in the folder"),
        (lambda f, s: (f / MANIFEST_FILE).unlink(), "not a pulled release"),
        (lambda f, s: (f / MANIFEST_FILE).write_text('{"schema":1,"schema":1}'), "keys that diff"),
        (lambda f, s: (f / MANIFEST_FILE).write_text("[" * 100), "expected fewer levels"),
        (lambda f, s: (f / MANIFEST_FILE).write_text('{"schema":01}'), "this is not JSON"),
        (lambda f, s: (f / MANIFEST_FILE).write_text('{"schema":1'), "this is not JSON"),
        (lambda f, s: change_manifest(f, lambda m: m.update(schema=2)), "schema 2"),
        (lambda f, s: change_manifest(f, lambda m: m.pop("signature")), "lacks a field"),
        (
            lambda f, s: change_manifest(f, lambda m: m["targets"][0].update(accepted=False)),
            "none in the folder",
        ),
        (
            lambda f, s: change_manifest(
                f, lambda m: m["targets"][0]["fit"].update(cpu_flags=["quantum"])
            ),
            "needs a processor with quantum, which this one lacks",
        ),
        (
            lambda f, s: change_manifest(f, lambda m: m["targets"][0]["fit"].update(torch="2.0.1")),
            "needs torch 2.0.1, and this runner was built with",
        ),
        (
            lambda f, s: change_manifest(
                f, lambda m: m["targets"][0]["fit"].update(gpu_capability=120)
            ),
            "needs an NVIDIA GPU of compute capability 12.0",
        ),
        (
            lambda f, s: change_manifest(
                f, lambda m: m["targets"][0]["fit"].update(machine="riscv64")
            ),
            "needs a riscv64 processor",
        ),
        (
            lambda f, s: change_manifest(f, lambda m: m["targets"][0]["fit"].update(glibc="9.9")),
            r"needs glibc 9\.9 or newer, and this is 2\.\d+",
        ),
        (
            lambda f, s: change_manifest(f, lambda m: m["targets"][0]["fit"].update(glibc="new")),
            "expected a version like 2.34, got new",
        ),
        (
            lambda f, s: change_manifest(f, lambda m: m["targets"][0]["fit"].update(cuda="99.1")),
            r"needs an NVIDIA driver for CUDA 99 \(it was built with CUDA 99\.1\)",
        ),
    ],
)
def test_what_is_not_as_released_or_does_not_fit_is_refused(
    runner: Path, pulled: Path, built_release: BuiltRelease, cases: Path, *,
    change: Callable[[Path, str], object], message: str,
) -> None:  # fmt: skip
    change(pulled, built_release.slug)
    ended = run(runner, "replay", pulled, "--unsigned", cases)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert re.search(message, line), line


def test_a_manifest_in_another_spelling_is_the_same_one(
    runner: Path, pulled: Path, cases: Path
) -> None:
    path = pulled / MANIFEST_FILE
    plain = json.loads(path.read_text())
    plain["created"] = 'é \U0001f600 " \\ \n'
    text = json.dumps(plain, indent=3, ensure_ascii=True).replace('"ids"', '"\\u0069ds"')
    path.write_text(text)
    assert lines(run(runner, "replay", pulled, "--unsigned", cases))[0]["different"] == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"{]",
        struct.pack("<Q", 62) + b'{"0/inputs/ids":{"dtype":"I64","shape":[1,20],"data_offsets":[0',
    ],
)
def test_a_file_that_holds_no_tensors_is_refused(
    runner: Path, built_release: BuiltRelease, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "file").write_bytes(data)
    ended = run(runner, "replay", *signed(built_release), tmp_path / "file")
    assert ended.returncode == 1
    assert "expected" in ended.stderr


@pytest.mark.parametrize(
    "change",
    [{"shape": [1, 21]}, {"shape": [1, 19]}, {"data_offsets": [8, 168]}, {"dtype": "C64"},
     {"shape": [-1, -20]}, {"shape": [1 << 40, 1 << 40]}],
)  # fmt: skip
def test_a_tensor_that_does_not_fit_its_file_is_refused(
    runner: Path, built_release: BuiltRelease, tmp_path: Path, change: dict[str, Any]
) -> None:
    record = {"dtype": "I64", "shape": [1, 20], "data_offsets": [0, 160], **change}
    header = json.dumps({"0/inputs/ids": record}).encode()
    (tmp_path / "file").write_bytes(struct.pack("<Q", len(header)) + header + bytes(160))
    ended = run(runner, "replay", *signed(built_release), tmp_path / "file")
    assert ended.returncode == 1
    assert "is not a file of tensors" in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [(), ("fly",), ("replay", "pulled"), ("replay", "pulled", "cases", "--threads", "0"),
     ("replay", "pulled", "cases", "--threads"), ("bench", "p", "c", "--seconds", "-1"),
     ("replay", "p", "c", "--wings", "2")],
)  # fmt: skip
def test_another_command_line_is_told_how_it_should_be(
    runner: Path, arguments: tuple[str, ...]
) -> None:
    ended = run(runner, *arguments)
    assert ended.returncode == 64
    assert "handoff-runner replay" in ended.stderr


def test_cmake_finds_what_the_wheel_holds(tmp_path: Path) -> None:
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    source = Path(__file__).parents[3] / "infra" / "runner"
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    command = [cmake, "-S", str(source), "-B", str(tmp_path), prefix]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
