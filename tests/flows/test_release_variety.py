"""Releases by other recipes, of other models and for other targets: each is built anew."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.delivery.captures import CAPTURE_METHODS
from handoff.tasks.compile.cross.fatbinary import find_fatbinary
from handoff.tasks.compile.cross.inspect_binary import inspect_binary
from handoff.tasks.compile.cross.toolkit import why_unsupported
from tests.flows.small_delivery import deliver_and_release, released
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff

pytestmark = [pytest.mark.demo, pytest.mark.compile, pytest.mark.server, pytest.mark.long]


def test_a_head_of_zeros_is_seen_through(training: Path, home: Path) -> None:
    target, _ = deliver_and_release("small:fresh", training, home)
    assert target["accepted"]
    assert "output 0 is 0 at every input" in target["notes"]
    assert any("measured inside the graph instead, at relu" in note for note in target["notes"])
    inside = [d for d in target["deviations"] if d["case"].startswith("inside, relu")]
    assert inside
    assert all(deviation["rms"] > 0 for deviation in inside)


def test_a_rebuild_takes_nothing_from_the_cache_and_gives_the_same_bytes(
    training: Path, home: Path
) -> None:
    arguments = ("release", str(training / "delivery"), "--rebuild", "--alias", "trial", "--json")
    result = handoff(*arguments, home=home)
    assert result.returncode == 0, result.stderr
    (target,) = json.loads(result.stdout)["targets"]
    assert target["reused"] == ""
    assert target["files"] == released(home)["targets"][0]["files"]


def test_a_search_ships_what_is_accepted_and_tells_what_became_of_each_variant(
    training: Path, home: Path
) -> None:
    recipe = training / "search.toml"
    recipe.write_text(
        '[verify]\npropagation = "note"\n'
        '[search]\nseconds = 300\ncandidates = ["freezing", "channels-last", "bfloat16"]\n'
    )
    arguments = ("release", str(training / "delivery"), "--recipe", str(recipe))
    result = handoff(*arguments, "--json", "--alias", "trial", home=home)
    assert result.returncode == 0, result.stderr
    (target,) = json.loads(result.stdout)["targets"]
    candidates = {one["name"]: one for one in target["candidates"]}
    assert list(candidates) == ["plain", "freezing", "channels-last", "bfloat16"]
    assert candidates["plain"]["ratios"] == [1.0, 1.0, 1.0], "smallest, example, largest"
    assert all(
        candidates[name]["accepted"] and candidates[name]["ratios"]
        for name in ("plain", "freezing")
    )
    assert "nothing to change" in candidates["channels-last"]["reasons"][0], "there is no image"
    assert "lower-precision changes what the model" in candidates["bfloat16"]["reasons"][0]
    assert candidates[target["chosen"]]["accepted"]
    shown = handoff("show", "small@trial", home=home)
    assert "freezing" in shown.stdout
    assert "shipped" in shown.stdout
    pages = [page.read_text() for page in home.rglob("report.html")]
    assert any(re.search(r"<text[^>]*>freezing</text>", page) for page in pages), "it is drawn"


def test_a_search_without_time_ships_the_plain_package(training: Path, home: Path) -> None:
    recipe = training / "short.toml"
    recipe.write_text('[search]\nseconds = 0.001\ncandidates = ["freezing"]\n')
    arguments = ("release", str(training / "delivery"), "--recipe", str(recipe))
    result = handoff(*arguments, "--json", "--alias", "trial", home=home)
    (target,) = json.loads(result.stdout)["targets"]
    assert target["chosen"] == "plain"
    assert not target["candidates"][1]["accepted"]
    assert target["candidates"][1]["reasons"]


def test_large_weights_are_compiled_alone_and_kept_once_and_not_in_the_cache(
    training: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    target, steps = deliver_and_release("small:large", training, home)
    assert target["accepted"]
    assert all(file["size_bytes"] > 300_000_000 for file in target["files"])
    assert steps.index(f"compile {target['slug']}") < steps.index("reference")
    cache = home / "builds" / "packages"
    assert sum(one.stat().st_blocks * 512 for one in cache.rglob("*.*")) < 10_000_000
    kept = sum(one.stat().st_size for one in home.rglob("objects/sha256/*"))
    assert 300_000_000 < kept < 330_000_000, "two files of the package and two of the delivery"


@pytest.fixture(scope="module")
def for_gpu(
    training: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Release for this processor and for a GPU that isn't here; return home and what came out."""
    if reason := why_unsupported():
        pytest.skip(reason)
    home, recipe = tmp_path_factory.mktemp("gpu-home"), training / "gpu.toml"
    recipe.write_text(
        'targets = ["cpu", "cuda-sm90"]\n[options]\nfreezing = true\n'
        '[verify]\npropagation = "note"\n'
    )
    arguments = ("release", str(training / "delivery"), "--recipe", str(recipe))
    refused = handoff(*arguments, "--alias", "production", home=home)
    assert_is_a_sentence(refused, 4, "production", "cuda-sm90 is not yet verified", "candidate")
    result = handoff(*arguments, "--json", home=home)
    assert result.returncode == 0, result.stderr
    return home, json.loads(result.stdout)


def test_a_gpu_that_is_not_here_gets_a_package_that_is_not_yet_verified(
    for_gpu: tuple[Path, dict[str, Any]],
) -> None:
    cpu, gpu = for_gpu[1]["targets"]
    assert cpu["accepted"]
    assert not gpu["accepted"]
    assert "no GPU has run them" in gpu["unverified"]
    assert gpu["source_checked"]["kernels"]
    assert gpu["source_checked"]["max_abs"] < 1e-5
    assert gpu["kernels"]
    assert not gpu["reasons"]


def test_only_who_names_it_gets_a_package_that_is_not_yet_verified(
    for_gpu: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    home, reference = for_gpu[0], "small@candidate"
    pulled = handoff("pull", reference, "--to", str(tmp_path / "auto"), "--json", home=home)
    assert json.loads(pulled.stdout)["target"].startswith("cpu-")
    there = tmp_path / "gpu"
    named = handoff("pull", reference, "--to", str(there), "--target", "cuda-sm90", home=home)
    assert named.returncode == 0, named.stderr
    found = inspect_binary(there / "cuda-sm90" / "model.so")
    assert {kernel.capability for kernel in found.kernels} == {90}
    targets = json.loads((there / "manifest.json").read_text())["targets"]
    (fit,) = [target["fit"] for target in targets if target["slug"] == "cuda-sm90"]
    assert re.fullmatch(r"1[23]\.\d+", fit["cuda"])
    assert re.fullmatch(r"2\.\d+(\.\d+)?", fit["glibc"])
    refused = handoff("verify", str(there), home=home)
    assert_is_a_sentence(refused, 6, "cuda-sm90 is not for this machine")


def test_an_intended_change_is_compared_with_the_changed_model(
    training: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    replaced = '[[passes]]\nname = "replace-operator"\n'
    replaced += 'parameters = { old = "relu.default", new = "leaky_relu.default" }\n'
    home = tmp_path / "home"
    delivery = str(training / "delivery")
    recipe.write_text(replaced)
    result = handoff("release", delivery, "--recipe", str(recipe), home=home)
    assert_is_a_sentence(result, 4, "replace-operator", "intended = true")
    recipe.write_text("captures = true\n" + replaced + "intended = true\n")
    result = handoff("release", delivery, "--recipe", str(recipe), "--json", home=home)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["targets"][0]["accepted"]
    version = home / "store" / "models" / "small" / "versions" / "1"
    manifest = json.loads((version / "manifest.json").read_text())
    captures = {row["road"]: row for row in manifest["captures"]}
    assert captures["torch.export"]["captured"]
    assert not captures["torch.export"]["wrong"]
    assert len(captures) == len(CAPTURE_METHODS)


@pytest.fixture(scope="module")
def for_generations(
    training: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """Release for GPUs of two generations that aren't here; return home and what came out."""
    if reason := why_unsupported() or ("no fatbinary" if find_fatbinary() is None else ""):
        pytest.skip(reason)
    home, recipe = tmp_path_factory.mktemp("generations-home"), training / "generations.toml"
    recipe.write_text('targets = ["cpu", "cuda-sm80+sm90"]\n[verify]\npropagation = "note"\n')
    arguments = ("release", str(training / "delivery"), "--recipe", str(recipe), "--json")
    result = handoff(*arguments, home=home)
    assert result.returncode == 0, result.stderr
    return home, json.loads(result.stdout)


def test_gpus_of_two_generations_get_one_package_that_is_not_yet_verified_for_either(
    for_generations: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    home, summary = for_generations
    cpu, gpu = summary["targets"]
    assert cpu["accepted"]
    assert not gpu["accepted"]
    assert gpu["unverified_gpus"] == [80, 90]
    assert "(sm_80) and NVIDIA H100 80GB HBM3 (sm_90)" in gpu["unverified"]
    assert gpu["source_checked"]["max_abs"] < 1e-5
    assert all("registers for sm_90" in kernel for kernel in gpu["kernels"])
    there = tmp_path / "gpu"
    pulled = handoff(
        "pull", "small@candidate", "--to", str(there), "--target", "cuda-sm80+sm90", home=home
    )
    assert pulled.returncode == 0, pulled.stderr
    found = inspect_binary(there / "cuda-sm80+sm90" / "model.so")
    machine_code = {(one.name, one.capability) for one in found.kernels if one.kind == "cubin"}
    assert machine_code == {(name, one) for name in found.names for one in (80, 90)}
    shown = " ".join(handoff("show", "small@candidate", home=home).stdout.split())
    assert "built, not yet verified, kernels checked at source level" in shown
    refused = handoff("verify", str(there), home=home)
    assert_is_a_sentence(refused, 6, "cuda-sm80+sm90 is not for this machine", "8.0", "9.0")
