"""Targets for GPUs of several generations: how they are named, and which machine they fit."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import pytest

from handoff.artifacts.errors import PackageRefused, UsageProblem
from handoff.artifacts.machine.gpu import KIB, PROFILES
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.target import (
    TARGETS,
    CudaTarget,
    Target,
    find_target,
    parse_target,
    require_target,
)
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.package import check_packages
from handoff.artifacts.serve.loader import _choose
from handoff.tasks.registry import pull
from tests.artifacts.recipe.gpu_generations import BOTH, for_gpus
from tests.artifacts.samples import TORCH, write_release


@dataclass(frozen=True)
class Held:
    target: Target


@pytest.mark.parametrize(
    ("slug", "members"),
    [
        ("cuda-sm80+sm90", (80, 90)),
        ("cuda-sm80+sm86+sm89+sm100", (80, 86, 89, 100)),
        ("cuda-sm89+sm90", (89, 90)),
    ],
)
def test_gpus_that_are_joined_are_one_target(slug: str, members: tuple[int, ...]) -> None:
    target = parse_target(slug)
    assert isinstance(target, CudaTarget)
    assert (target.slug, target.members) == (slug, members)
    assert from_plain(Held, to_plain(Held(target))) == Held(target)
    assert target != parse_target("cuda-sm80")


def test_a_target_for_one_gpu_is_written_as_it_was() -> None:
    assert to_plain(Held(parse_target("cuda-sm90"))) == {"target": {"sm": 90, "kind": "cuda"}}


@pytest.mark.parametrize(
    ("slug", "message"),
    [
        ("cuda-sm90+sm80", "in ascending order, each once: cuda-sm80+sm90, got 'cuda-sm90+sm80'"),
        ("cuda-sm80+sm80", "each once: cuda-sm80, got"),
        ("cuda-sm80+sm80+sm90", "each once: cuda-sm80+sm90, got"),
        ("cuda-sm80+cuda-sm90", "each once: cuda-sm80+sm90, got"),
        ("cuda-sm80+90", "each once: cuda-sm80+sm90, got"),
        ("cuda-sm80 + sm90", "each once: cuda-sm80+sm90, got"),
        ("cuda-sm80,sm90", "each once: cuda-sm80+sm90, got"),
        ("cuda-sm75+sm90", "among sm80, sm86, sm89, sm90, sm100, joined as cuda-sm80+sm90, got"),
        ("cuda-sm80+sm90a", "each once: cuda-sm80+sm90, got"),
        (
            "cuda-sm90+sm100",
            "a first GPU before sm90, .*write cuda-sm90 and cuda-sm100, a target each",
        ),
        (
            "cuda-sm80+sm86+sm89+sm90+sm100",
            "at most 4 GPUs in one package, and further ones in another target",
        ),
        ("cuda-sm80+", "or GPUs of these joined as cuda-sm80+sm90, got 'cuda-sm80+'"),
        ("cpu-avx2+cuda-sm80", "expected a target among cpu, "),
        ("cuda", "expected a target among cpu, "),
    ],
)
def test_what_is_spelled_otherwise_is_refused_with_what_to_write(
    slug: str, message: str, tmp_path: Path
) -> None:
    message = message.replace("+", r"\+")
    with pytest.raises(ValueError, match=message):
        parse_target(slug)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'targets = ["{slug}"]\n')
    with pytest.raises(UsageProblem, match=message):
        read_recipe(recipe)
    assert find_target(slug) is None


def test_a_recipe_may_name_it_beside_others(tmp_path: Path) -> None:
    written = tmp_path / "recipe.toml"
    written.write_text('targets = ["cpu-avx2", "cuda-sm80", "cuda-sm80+sm90"]\n')
    recipe = read_recipe(written)
    slugs = [target.slug for target in recipe.resolved_targets()]
    assert slugs == ["cpu-avx2", "cuda-sm80", "cuda-sm80+sm90"]
    assert "cuda-sm80+sm90" not in TARGETS, "a pool is for machines of one kind"


def test_a_compiler_goes_by_what_one_block_may_use_on_every_gpu() -> None:
    def profile(slug: str) -> object:
        target = require_target(slug)
        assert isinstance(target, CudaTarget)
        return target.profile

    assert profile("cuda-sm80+sm90") == PROFILES["sm_80"], "an H100 allows more of all"
    shared = profile("cuda-sm80+sm86+sm90")
    assert getattr(shared, "name", "") == PROFILES["sm_80"].name
    assert getattr(shared, "shared_memory_per_block_optin", 0) == 99 * KIB, "an A10's"


def here(monkeypatch: pytest.MonkeyPatch, *capabilities: int) -> None:
    """Let this machine have these GPUs, and a driver for them."""
    for module in ("compatibility", "target"):
        place = f"handoff.artifacts.recipe.{module}.host_gpu_capabilities"
        monkeypatch.setattr(place, lambda: capabilities)
    monkeypatch.setattr("handoff.artifacts.recipe.compatibility.host_cuda", lambda: (13, 2))


@pytest.mark.parametrize(
    ("capability", "fits"), [(80, True), (86, True), (90, True), (100, False), (75, False)]
)
def test_it_fits_each_gpu_that_one_of_its_members_serves(
    capability: int, fits: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here(monkeypatch, capability)
    record = for_gpus(80, 90)
    assert record.fit is not None
    misfit = record.fit.misfit(TORCH)
    assert (misfit is None) == fits
    manifest = write_release(tmp_path, record)
    if fits:
        assert pull.choose_target(manifest, "auto", TORCH).slug == BOTH
        assert _choose(tmp_path, manifest, "auto", TORCH)[0].slug == BOTH
        assert check_packages(tmp_path, manifest, TORCH) == (BOTH,)
        return
    message = "compute capability 8.0 (or a later 8.x) or 9.0 (or a later 9.x); here: "
    assert f"{message}{capability / 10:.1f}" in str(misfit)
    with pytest.raises(PackageRefused, match="runs on this machine"):
        pull.choose_target(manifest, "auto", TORCH)
    with pytest.raises(PackageRefused, match="is for this machine"):
        _choose(tmp_path, manifest, "auto", TORCH)


@pytest.mark.parametrize("capability", [80, 86])
def test_where_only_another_generation_ran_it_it_is_not_for_this_one(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here(monkeypatch, capability)
    manifest = write_release(tmp_path, for_gpus(90, untried=(80,)))
    message = rf"9\.0 \(or a later 9\.x\); here: {capability / 10}, whose machine code in it no GPU"
    with pytest.raises(PackageRefused, match=message):
        pull.choose_target(manifest, "auto", TORCH)
    with pytest.raises(PackageRefused, match=message):
        _choose(tmp_path, manifest, "auto", TORCH)
    assert pull.choose_target(manifest, BOTH, TORCH).slug == BOTH, "who names it gets it"
    with pytest.raises(PackageRefused, match=r"was never run on such a GPU.*--delivery PATH"):
        check_packages(tmp_path, manifest, TORCH)
    assert check_packages(tmp_path, manifest, TORCH, unverified=True) == (BOTH,)


def test_where_its_own_generation_ran_it_it_is_for_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here(monkeypatch, 90)
    manifest = write_release(tmp_path, for_gpus(90, untried=(80,)))
    assert pull.choose_target(manifest, "auto", TORCH).slug == BOTH
    assert check_packages(tmp_path, manifest, TORCH) == (BOTH,)


def test_the_code_that_a_gpu_would_run_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An 8.6 runs the code for 8.6, also where only that for 8.0 was run."""
    fit = Fit((), TORCH, platform.machine(), gpu_capability=80, gpu_unverified=(86,))
    here(monkeypatch, 86)
    assert "no GPU has run" in str(fit.misfit(TORCH))
    here(monkeypatch, 80, 86)
    assert "no GPU has run" in str(fit.misfit(TORCH)), "it may be loaded on either"
    here(monkeypatch, 80, 75)
    assert fit.misfit(TORCH) is None


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [
        (80, "cuda-sm80"),
        (86, "cuda-sm86"),
        (89, "cuda-sm86"),
        (90, "cuda-sm80+sm90"),
    ],
)
def test_the_nearest_and_most_specific_one_is_preferred(
    capability: int, chosen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here(monkeypatch, capability)
    records = [for_gpus(80, 90), for_gpus(80), for_gpus(80, 86, 90), for_gpus(86)]
    manifest = write_release(tmp_path, *records)
    assert pull.choose_target(manifest, "auto", TORCH).slug == chosen
    assert _choose(tmp_path, manifest, "auto", TORCH)[0].slug == chosen


def test_running_it_here_shows_something_about_this_generation_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = for_gpus(80, 90).fit
    assert fit is not None
    here(monkeypatch, 90)
    ran = fit.restrict_to_host_gpu()
    assert (ran.gpu_capabilities, ran.gpu_unverified) == ((90,), (80,))
    here(monkeypatch, 86)
    ran = fit.restrict_to_host_gpu()
    assert (ran.gpu_capabilities, ran.gpu_unverified) == ((80,), (90,))
    assert ran.restrict_to_host_gpu() == ran
    here(monkeypatch)
    with pytest.raises(ValueError, match=r"GPU of compute capability 8\.0 and 9\.0 .*got none"):
        fit.restrict_to_host_gpu()
    for plain in (Fit(("avx2",), TORCH), Fit((), TORCH, gpu_capability=90)):
        assert plain.restrict_to_host_gpu() is plain


def test_a_record_for_one_gpu_is_read_and_written_as_it_was() -> None:
    old = {"cpu_flags": ["avx2"], "torch": TORCH, "machine": "x86_64", "gpu_capability": 90}
    fit = from_plain(Fit, old)
    assert (fit.gpu_capabilities, fit.gpu_members, fit.gpu_unverified) == ((90,), (90,), ())
    assert to_plain(fit) == old
    several = for_gpus(90, untried=(80,)).fit
    assert from_plain(Fit, to_plain(several)) == several
