"""AMX's tiles, for which a process has to ask before its packages compute with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import host_cpu_flags
from handoff.artifacts.serve.loader import load
from handoff.tasks.compile.reading.instructions import find_instruction_sets
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


def called(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
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
        ended = called(str(program), *given)
        assert ended.returncode == 0, ended.stderr


def test_a_kernel_that_grants_no_tiles_is_told_by_the_package_itself(
    released: BuiltRelease,
) -> None:
    ended = called(SMALL_STACK + BARE, released.package / "model.so")
    # An error that a server can answer with, where it was killed.
    assert ended.returncode == 1
    assert "the kernel doesn't let this process use AMX's tiles" in ended.stderr


def test_the_runner_calls_it_too(runner: Path, released: BuiltRelease) -> None:
    examples = released.folder / "examples.safetensors"
    ended = run(runner, "replay", *signed(released), examples, "--tolerance", "float32=0.1,0.05")
    assert ended.returncode == 0, ended.stderr


def test_where_the_kernel_grants_none_it_is_refused(
    released: BuiltRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    with pytest.raises(PackageRefused, match="AMX's tiles"):
        load(released.folder, keys=released.key)
