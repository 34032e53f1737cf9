"""What building for ARM64 takes, and what is said where it is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.isolation import own_package
from handoff.artifacts.recipe.target import ArmTarget
from handoff.tasks.compile.arm import sysroot
from handoff.tasks.compile.arm.cross_compilation import arm_options
from handoff.tasks.compile.arm.sysroot import TORCH_FILE, find_sysroot, lacking
from handoff.tasks.release.jobs import names_in_order

ROOT = Path(own_package()).parent


def test_what_is_missing_is_reported_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysroot, "sysroot_folder", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert len(lacking()) == 4
    with pytest.raises(EnvironmentLacking, match=r"qemu-aarch64-static.*make arm-ready"):
        find_sysroot()


def test_another_torch_than_the_installed_one_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysroot, "sysroot_folder", lambda: tmp_path)
    (tmp_path / TORCH_FILE).write_text("2.9.0\n")
    assert lacking()[-1].endswith("and it holds 2.9.0")


def test_the_libraries_are_of_the_versions_that_are_locked_for_this_machine() -> None:
    locked = "".join((ROOT / name).read_text() for name in ("requirements.lock",
                                                            "requirements-torch.lock"))  # fmt: skip
    wanted = (ROOT / "tasks/compile/arm/requirements.in").read_text().split()
    assert len(wanted) == 4
    for one in wanted:
        assert re.search(rf"^{re.escape(one)}[ ;\\]", locked, re.MULTILINE), one


@pytest.mark.skipif(sysroot.is_arm_host(), reason="this machine can do it")
@pytest.mark.parametrize("option", ["freezing", "max_autotune"])
def test_an_option_that_needs_the_machine_itself_is_refused(option: str) -> None:
    with pytest.raises(UsageProblem, match=f"{option} can't be had for arm64-v8.2"):
        arm_options(ArmTarget("v8.2"), {option: True})


@pytest.mark.skipif(sysroot.is_arm_host(), reason="this machine times such packages")
def test_what_an_emulator_runs_is_probed_and_not_timed() -> None:
    names = names_in_order(["cpu-avx2", "arm64-v8.2"])
    assert "probe arm64-v8.2" in names
    assert not {"measure arm64-v8.2", "benchmark arm64-v8.2"} & set(names)
    assert "benchmark cpu-avx2" in names
