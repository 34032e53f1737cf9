"""Which of several packages for GPUs the C++ runner takes: beside a library that answers as one.

The library stands for NVIDIA's driver, and tells the GPU of a compute capability. Nothing is run on
it: what was chosen is seen by the name of its first file, which isn't what was released.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from handoff.artifacts.release.manifest import TargetRecord
from tests.artifacts.recipe.gpu_generations import BOTH, for_gpus
from tests.artifacts.samples import write_release
from tests.limits import LIMIT_S

pytestmark = pytest.mark.compile

_DRIVER = """
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? MAJOR : attribute == 76 ? MINOR : 0;
  return 0;
}
int cuDriverGetVersion(int *version) { *version = 13020; return 0; }
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """For each capability the folder of a library that reports such a GPU."""
    root, found = tmp_path_factory.mktemp("drivers"), {}
    (root / "driver.c").write_text(_DRIVER)
    for capability in (75, 80, 86, 90, 100):
        folder = root / str(capability)
        folder.mkdir()
        named = [f"-DMAJOR={capability // 10}", f"-DMINOR={capability % 10}"]
        made = ["-shared", "-fPIC", str(root / "driver.c"), "-o", str(folder / "libcuda.so.1")]
        subprocess.run(["gcc", *named, *made], check=True, capture_output=True, timeout=LIMIT_S)
        found[capability] = folder
    return found


@dataclass(frozen=True)
class Machine:
    """A folder with a release, the runner, and the drivers that it may find."""

    runner: Path
    drivers: dict[int, Path]
    folder: Path

    def release(self, *records: TargetRecord) -> None:
        """Write a release of these targets for this torch, whose packages aren't what it says."""
        given = [
            replace(one, fit=replace(one.fit, torch=torch.__version__))
            for one in records
            if one.fit is not None
        ]
        manifest = write_release(self.folder, *given)
        for package in self.folder.rglob("model.*"):
            package.write_bytes(b"another")
        (spec,) = manifest.signature.inputs
        sizes = [axis if isinstance(axis, int) else 2 for axis in spec.shape]
        save_file({f"0/inputs/{spec.name}": torch.ones(sizes)}, self.folder / "cases")

    def answer(self, capability: int, target: str = "auto") -> str:
        """Return what the runner says of it where there is a GPU of this capability."""
        environment = {
            "LC_ALL": "C", "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
            "LD_LIBRARY_PATH": str(self.drivers[capability]),
        }  # fmt: skip
        written = str(self.folder / "outputs")
        command = ["call", str(self.folder), "--unsigned", str(self.folder / "cases"), written]
        ended = subprocess.run(
            [str(self.runner), *command, "--target", target, "--file", "model.pt2"],
            capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment,
        )  # fmt: skip
        assert ended.returncode == 1
        return ended.stderr


@pytest.fixture
def machine(runner: Path, drivers: dict[int, Path], tmp_path: Path) -> Machine:
    """One of any GPU."""
    return Machine(runner, drivers, tmp_path / "release")


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        (80, f"{BOTH}/model.pt2"),
        (86, f"{BOTH}/model.pt2"),
        (90, f"{BOTH}/model.pt2"),
        (100, "needs an NVIDIA GPU of compute capability 8.0 or 9.0, which is not here"),
        (75, "needs an NVIDIA GPU of compute capability 8.0 or 9.0, which is not here"),
    ],
)
def test_a_package_for_several_is_taken_where_one_of_its_members_serves(
    capability: int, expected: str, machine: Machine
) -> None:
    machine.release(for_gpus(80, 90))
    assert expected in machine.answer(capability)


@pytest.mark.parametrize(
    ("capability", "chosen"), [(80, "cuda-sm80"), (86, "cuda-sm86"), (90, BOTH)]
)
def test_the_nearest_one_is_preferred_as_python_prefers_it(
    capability: int, chosen: str, machine: Machine
) -> None:
    machine.release(for_gpus(80, 90), for_gpus(80), for_gpus(80, 86, 90), for_gpus(86))
    assert f"{chosen}/model.pt2" in machine.answer(capability)


def test_what_only_another_generation_has_run_is_not_taken(machine: Machine) -> None:
    machine.release(for_gpus(90, untried=(80,)))
    for target in ("auto", BOTH):
        reason = "no GPU has run the machine code in it for the one that is"
        assert reason in machine.answer(80, target)
        assert f"{BOTH}/model.pt2" in machine.answer(90, target)
