"""A package in another torch: right where its numbers are, and refused in that torch's words."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking
from handoff.artifacts.recipe.compatibility import Fit, base_version
from handoff.artifacts.recipe.recipe import OtherTorch
from handoff.artifacts.release.manifest import TargetRecord
from handoff.tasks.registry.target_record import torch_check, with_torches
from handoff.tasks.release.jobs import names_in_order
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.messages import VerifyJob
from handoff.tasks.verify.torch_versions import environments
from handoff.tasks.verify.torch_versions.client import open_in_other_torch
from handoff.tasks.verify.torch_versions.messages import MakeTorchJob, TorchEnvironment
from tests.tasks.built_release import BuiltRelease

HERE = TorchEnvironment(base_version(torch.__version__), Path(sys.executable))


def job_of(built: BuiltRelease, other: TorchEnvironment) -> VerifyJob:
    manifest = built.manifest
    names = tuple(spec.name for spec in manifest.signature.outputs)
    return VerifyJob(
        built.package, built.reference, manifest.recipe, outputs=names, target=built.slug,
        torch=other,
    )  # fmt: skip


def test_a_recipe_names_whole_versions() -> None:
    assert OtherTorch(("2.14.1",)).also == ("2.14.1",)
    with pytest.raises(ValueError, match=r"expected whole versions.*got '2.14'"):
        OtherTorch(("2.14",))


def test_a_package_fits_the_torch_where_it_was_right_and_no_other() -> None:
    fit = Fit((), "2.15.0+cpu")
    record = TargetRecord("cpu-avx2", accepted=True, reasons=(), files=(), fit=fit)
    refused = BlessingRefused("it", expected="answers", got="undefined symbol", remedy="None")
    wrong = torch_check("2.13.0", refused)
    right = replace(wrong, version="2.14.1", is_right=True, comparisons=3, why="")
    checked = with_torches(record, (right, wrong))
    assert checked.fit is not None
    assert checked.fit.misfit("2.14.1") is None
    assert checked.fit.misfit("2.15.0") is None
    assert "it needs torch 2.15.0 or 2.14.1" in (checked.fit.misfit("2.13.0") or "")
    assert wrong.text == "not right with torch 2.13.0: undefined symbol"


def test_what_is_tried_is_announced_for_targets_that_run_here() -> None:
    names = names_in_order(["cpu-avx2", "cuda-sm90"], ["2.14.1"])
    assert "make torch 2.14.1" in names
    assert "verify cpu-avx2 with torch 2.14.1" in names
    assert not [step for step in names if step.startswith("verify cuda-sm90")]


def test_the_torch_that_is_here_needs_no_environment(tmp_path: Path) -> None:
    environment = environments.run(MakeTorchJob(HERE.version, tmp_path / "torch"))
    assert environment == HERE
    assert not (tmp_path / "torch").exists()


def test_without_uv_no_other_torch_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacking, match="uv"):
        environments.run(MakeTorchJob("2.13.99", tmp_path / "torch"))


@pytest.mark.compile
@pytest.mark.long
def test_a_package_is_right_in_another_process_of_its_own_torch(
    built_release: BuiltRelease,
) -> None:
    verified = verify.run(job_of(built_release, HERE))
    assert verified.accepted, verified.reasons
    assert verified.deviations


@pytest.mark.compile
def test_what_does_not_load_is_told_in_that_torchs_words(
    built_release: BuiltRelease, tmp_path: Path
) -> None:
    broken = tmp_path / "model.so"
    inputs = (torch.zeros(1, 20, dtype=torch.int64), torch.zeros(1, 64))
    broken.write_text("no library")
    with open_in_other_torch(HERE, broken) as package, pytest.raises(BlessingRefused) as refused:
        package(inputs)
    assert "model.so" in refused.value.got
    # Cut off, it ends that process, and not this one.
    broken.write_bytes((built_release.package / "model.so").read_bytes()[:1000])
    with open_in_other_torch(HERE, broken) as package, pytest.raises(BlessingRefused) as refused:
        package(inputs)
    assert "ended" in refused.value.got


@pytest.mark.compile
@pytest.mark.long
def test_a_package_is_compared_in_an_older_torch_that_uv_has_got(
    built_release: BuiltRelease, tmp_path: Path
) -> None:
    other = environments.run(MakeTorchJob("2.14.1", tmp_path / "torch"))
    again = environments.run(MakeTorchJob("2.14.1", tmp_path / "torch"))
    assert (again.python, again.seconds) == (other.python, 0.0)
    verified = verify.run(job_of(built_release, other))
    assert verified.accepted, verified.reasons
