"""AMX's tiles, for which a process has to ask before its packages compute with them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.codecache import AotCodeCompiler

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import BlessingRefused, PackageRefused
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import CpuTarget, host_cpu_flags
from handoff.artifacts.serve.loader import load
from handoff.tasks.compile.machine.tiles import TEXTS
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.compile.reading.instructions import find_instruction_sets
from handoff.tasks.compile.step import compile_package
from tests.artifacts.samples import sample_key, sample_target, write_release
from tests.infra.runner.test_runner import run, signed
from tests.tasks.built_release import BuiltRelease, release_of

pytestmark = [
    pytest.mark.compile,
    pytest.mark.skipif("amx_tile" not in host_cpu_flags(), reason="the processor has no AMX"),
]


class Product(nn.Module):
    """A product in bfloat16 alone, which Inductor's search writes for AMX, and no oneDNN beside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(1024, 256)
        self.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = torch.relu(self.linear(x.bfloat16()))
        return made.float()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> BuiltRelease:
    """A release for `cpu-amx` whose package computes with tiles itself."""
    recipe = Recipe(
        targets=("cpu-amx",), verify=VerifyPlan(seeds=1),
        options={"freezing": True, "max_autotune": True},
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("tiles")
    made = release_of(folder, Product(), {"x": torch.randn(512, 1024)}, Dimension(1, 1024), recipe)
    assert "amx_tile" in find_instruction_sets(made.package / "model.so")
    return made


def run_python(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process of Python."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip


# What torch's own loader opens, which asks for nothing.
BARE = """
import sys, torch
runner = torch._C._aoti.AOTIModelContainerRunnerCpu(sys.argv[1], 1)
runner.run([torch.randn(512, 1024)])
"""
# A thread whose stack for signals couldn't hold the tiles: Linux refuses them then.
SMALL_STACK = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
room = ctypes.create_string_buffer(2048)
libc = ctypes.CDLL(None)
assert libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(room), 0, 2048)), None) == 0
"""


@pytest.mark.long
def test_a_package_that_computes_with_tiles_is_called_in_a_new_process(
    released: BuiltRelease,
) -> None:
    opened = (
        "import sys, torch\n"
        "from handoff.artifacts.serve.loader import load\n"
        "load(sys.argv[1], keys=sys.argv[2])(torch.randn(512, 1024))"
    )
    for program, *given in [
        (opened, released.folder, released.key), (BARE, released.package / "model.so"),
    ]:  # fmt: skip
        ended = run_python(str(program), *given)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.long
def test_a_kernel_that_grants_no_tiles_is_told_by_the_package_itself(
    released: BuiltRelease,
) -> None:
    ended = run_python(SMALL_STACK + BARE, released.package / "model.so")
    # An error that a server can answer with, where it was killed.
    assert ended.returncode == 1
    assert "the kernel doesn't let this process use AMX's tiles" in ended.stderr


@pytest.mark.long
def test_the_runner_calls_it_too(runner: Path, released: BuiltRelease) -> None:
    examples = released.folder / "examples.safetensors"
    ended = run(runner, "replay", *signed(released), examples, "--tolerance", "float32=0.1,0.05")
    assert ended.returncode == 0, ended.stderr


def test_where_the_kernel_grants_none_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_release(tmp_path / "pulled", sample_target("cpu-amx", flags=("amx_tile",)))
    (tmp_path / "key.pub").write_bytes(sample_key().pem)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    with pytest.raises(PackageRefused, match="AMX's tiles"):
        load(tmp_path / "pulled", keys=tmp_path / "key.pub")


class _SourceCaptured(Exception):
    """What was wanted has been written; nothing needs to be compiled."""


def generated_source(target: CpuTarget, folder: Path) -> str:
    """Return the source of a package for the target as it goes to the compiler."""
    found: list[str] = []

    def keep(_graph: object, code: str, *_args: Any, **_kwargs: Any) -> None:
        found.append(code)
        raise _SourceCaptured

    program = torch.export.export(nn.ReLU(), (torch.randn(4, 8),))
    with (
        suppress(BlessingRefused), patch_attribute(AotCodeCompiler, "compile", staticmethod(keep)),
    ):  # fmt: skip
        job = CompileJob(folder / "program.pt2", target, folder, {})
        compile_package(job, program, folder / "model.pt2")
    return found[0]


def test_a_package_for_tiles_asks_for_them_before_anything_else(tmp_path: Path) -> None:
    declaring, asking = TEXTS
    before, found, _ = generated_source(CpuTarget("amx"), tmp_path).partition(asking)
    assert found
    constructor = before.rpartition(declaring)[2]
    assert constructor.startswith("AOTInductorModel::AOTInductorModel(")
    assert constructor.endswith(") {\n")
    other = generated_source(CpuTarget("avx512"), tmp_path)
    assert not any(text in other for text in TEXTS)


# What a package's constructor begins with, as a program of its own.
PROGRAM = """
#include <signal.h>
#include <cstdio>
#include <stdexcept>
DECLARING
void ask() {
ASKING
}
int main(int count, char** arguments) try {
  static char room[2048];
  stack_t stack{};
  stack.ss_sp = room;
  stack.ss_size = sizeof room;
  // A stack for signals that couldn't hold the tiles.
  if (count > 1 && sigaltstack(&stack, nullptr) != 0) return 2;
  ask();
  std::puts("asked");
} catch (const std::exception& error) {
  std::puts(error.what());
  return 1;
}
"""


def test_what_a_kernel_grants_or_not_is_told_by_what_is_written(tmp_path: Path) -> None:
    declaring, asking = TEXTS
    source, program = tmp_path / "ask.cpp", tmp_path / "ask"
    source.write_text(PROGRAM.replace("DECLARING", declaring).replace("ASKING", asking))
    subprocess.run(["g++", "-std=c++20", str(source), "-o", str(program)], check=True)
    granted = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (granted.returncode, granted.stdout) == (0, "asked\n")
    refused = subprocess.run([program, "small"], capture_output=True, text=True, check=False)
    # An error that a server can answer with, where it was killed.
    assert refused.returncode == 1
    assert "the kernel doesn't let this process use AMX's tiles" in refused.stdout
