"""A full disk is reported as such, whoever meets it: Python, numpy, safetensors, torch, g++."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import patch

import numpy
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from handoff.artifacts.errors import DeliveryUnreadable, EnvironmentLacking, StepCrashed
from handoff.artifacts.recipe.recipe import Recipe
from handoff.infra.engine.budget import is_disk_full, is_out_of_space
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.messages import OptimizeJob
from handoff.tasks.probe.runner_process import run_limited
from tests.limits import LIMIT_S
from tests.studies.outages.full_disks import small_disk
from tests.tasks.deliveries import write_delivery
from tests.tasks.probe.samples import SHORT

TOO_MANY = torch.zeros(8 << 20)  # 32 MiB of numbers, on a disk of 24


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    try:
        with small_disk(tmp_path / "disk") as folder:
            yield folder
    except PermissionError as error:
        pytest.skip(f"nothing may be mounted here: {error}")


def compile_on(disk: Path) -> None:
    source = disk / "large.cpp"
    source.write_text("char large[32 << 20] = {1};\nint main() {}\n")
    command = ["g++", "-o", str(disk / "large"), str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr)


def unpack_on(disk: Path) -> None:
    """Let torch unpack a package there, as whatever opens a `.pt2` does."""
    package = disk.parent / "package.pt2"
    with zipfile.ZipFile(package, "w") as archive:
        for name in ("weights", "code.so"):
            archive.writestr(f"model/data/aotinductor/model/{name}", TOO_MANY.numpy().tobytes())
    with patch.dict(os.environ, TMPDIR=str(disk)):
        torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1)


WRITERS: dict[str, Callable[[Path], object]] = {
    "Python": lambda disk: (disk / "file").write_bytes(bytes(32 << 20)),
    "zipfile": lambda disk: zipfile.ZipFile(disk / "a.zip", "w").writestr("x", bytes(32 << 20)),
    "numpy": lambda disk: numpy.save(disk / "a.npy", TOO_MANY.numpy()),
    "safetensors": lambda disk: save_file({"w": TOO_MANY}, disk / "a.safetensors"),
    "torch": lambda disk: torch.save({"w": TOO_MANY}, disk / "a.pt"),
    "torch of a package": unpack_on,
    "g++": compile_on,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("writer", WRITERS)
def test_whoever_finds_no_room_is_understood(writer: str, disk: Path) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        WRITERS[writer](disk)
    assert is_disk_full(caught.value), str(caught.value)


def test_a_disk_is_known_to_be_full_whatever_is_said(disk: Path) -> None:
    assert not is_out_of_space(disk)
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
    assert is_out_of_space(disk)
    with patch.object(tempfile, "tempdir", str(disk)):
        assert is_out_of_space(Path("/"))
    assert not is_out_of_space(Path("/proc")), "which has no size"


def test_a_program_that_fails_without_a_word_beside_a_full_disk_says_nothing_of_a_package(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(disk)
    assert run_limited(Path("/bin/false"), [], SHORT).outcome == "refused"
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
    assert run_limited(Path("/bin/true"), [], SHORT).outcome is None
    with pytest.raises(EnvironmentLacking, match="handoff-runner found no room on a disk"):
        run_limited(Path("/bin/false"), [], SHORT)


def test_a_program_s_last_words_find_room_on_a_disk_that_it_has_filled(disk: Path) -> None:
    program = disk.parent / "fills"
    # It leaves no trace on the disk that there was no room on it, but for what it says.
    program.write_text(
        f"#!/bin/sh\ndd if=/dev/zero of={disk}/ballast bs=1M 2>/dev/null\n"
        f"echo 'No space left on device' >&2\nrm {disk}/ballast\nexit 1\n"
    )
    program.chmod(0o700)
    with (
        patch.object(tempfile, "tempdir", str(disk)),
        pytest.raises(EnvironmentLacking, match="handoff-runner found no room on a disk"),
    ):
        run_limited(program, [], SHORT)


def test_other_failures_are_no_full_disk(tmp_path: Path) -> None:
    (tmp_path / "damaged.pt").write_bytes(b"PK\3\4 and nothing of a zip")
    with pytest.raises(RuntimeError) as damaged:
        torch.load(tmp_path / "damaged.pt")
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "none" / "file").write_bytes(b"")
    quoted = DeliveryUnreadable(
        "x", expected="a name", got="a module called 'No space left on device'", remedy="rename it"
    )
    assert not any(map(is_disk_full, (damaged.value, missing.value, quoted)))


@pytest.fixture(scope="module")
def optimize(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], object]]:
    """What runs the passes on a model of 8 MiB, with so many bytes left on the disk for results."""
    folder = tmp_path_factory.mktemp("optimize")
    model = nn.Linear(2048, 1024).eval()
    delivery = write_delivery(folder / "delivery", model, {"input": torch.randn(3, 2048)})
    with ExitStack() as opened:
        try:
            disk = opened.enter_context(small_disk(folder / "disk"))
        except PermissionError as error:
            pytest.skip(f"nothing may be mounted here: {error}")
        plan = ProcessPlan("graph", reads=(delivery,), writes=(disk,))
        process = StepProcess(plan, folder / "logs" / "graph.log")
        opened.enter_context(closing(process))
        process.run(IntakeJob(delivery, disk / "staging"))
        numbers = itertools.count()

        def run(room: int) -> object:
            program = disk / f"program-{next(numbers)}"
            (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - room))
            try:
                return process.run(OptimizeJob(disk / "staging", program, Recipe()))
            finally:
                (disk / "ballast").unlink()
                shutil.rmtree(program, ignore_errors=True)

        yield run


@pytest.mark.parametrize("room", [0, 2 << 20])
def test_a_step_without_room_says_so_and_not_that_it_crashed(
    room: int, optimize: Callable[[int], object]
) -> None:
    with pytest.raises(EnvironmentLacking, match="optimize found no room on a disk") as caught:
        optimize(room)
    assert not isinstance(caught.value, StepCrashed)
    assert "Make room" in str(caught.value)


def test_a_step_with_room_enough_goes_through(optimize: Callable[[int], object]) -> None:
    assert optimize(12 << 20)


def test_an_embedded_server_that_fails_beside_a_full_disk_is_no_reason_of_its_own(
    disk: Path,
) -> None:
    program = (
        "from handoff.artifacts.errors import EnvironmentLacking\n"
        "from handoff.infra.prefect import flow_calls\n"
        "from handoff.infra.settings import read_settings\n"
        "flow_calls.begin_server = lambda _: None\n"
        "def load(): raise RuntimeError('500 Internal Server Error')\n"
        "try: flow_calls.call_flow(read_settings(), None, load)\n"
        "except EnvironmentLacking as error: print(error.what)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}

    def message() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], env={**environment, "HANDOFF_HOME": str(disk)},
            capture_output=True, text=True, check=True, timeout=LIMIT_S,
        ).stdout.strip()  # fmt: skip

    assert message() == "Prefect could not run the flow"
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free))
    assert message() == "the flow found no room on a disk"
