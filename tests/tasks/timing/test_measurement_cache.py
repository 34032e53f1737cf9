"""What was measured is taken over for the same code under the same conditions, and no other."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from handoff.artifacts.delivery.signature import ModelSignature
from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.evidence import EarlierMeasurement, Timing
from handoff.artifacts.release.manifest import PackageFile
from handoff.artifacts.release.mechanics import Mechanics, RunnerLimits
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.probe.messages import ProbeJob
from handoff.tasks.release.jobs import RUNNER_SOURCE
from handoff.tasks.timing import conditions, measurement_cache
from handoff.tasks.timing.conditions import digest_conditions
from handoff.tasks.timing.measurement_cache import (
    CachedMeasurements,
    load_measurements,
    measuring_key,
    record_measurements,
    store_measurements,
)
from handoff.tasks.verify.messages import ReferenceResult
from tests.artifacts.samples import TORCH, sample_manifest
from tests.tasks.probe.samples import mechanics

KEY, OTHER = digest_bytes(b"key"), digest_bytes(b"other")
FIT = Fit(("avx2",), TORCH)
MODULE = """
        self.norm = torch.load(r'{folder}/norm.pt', weights_only=False) # LayerNorm((16,))
        self.load_state_dict(torch.load(r'{folder}/state_dict.pt'))
"""
MECHANICS = mechanics()
TIMINGS = (Timing("batch=1 seed=0", 2e-3, 1e-3, 2.0, 1.9, 2.1, 9, 2),)


def measured_now(found: Mechanics = MECHANICS) -> CachedMeasurements:
    """Return what has just been measured of an accepted package."""
    library = PackageFile("cpu-avx2/model.so", digest_bytes(b"library"), 7)
    return record_measurements(CompileResult((library,), FIT, 1.0, {}), found, TIMINGS)


def key_of(
    staging: Path,
    *,
    code: str = digest_bytes(b"code"),
    module: str = MODULE,
    cases: tuple[str, ...] = ("batch=1 seed=0", "batch=8 example=0"),
    under: str = digest_bytes(b"conditions"),
    recipe: Recipe | None = None,
    limits: RunnerLimits | None = None,
    signature: ModelSignature | None = None,
    runner: Path = RUNNER_SOURCE,
    fit: Fit = FIT,
) -> Digest | None:
    """Return the key of a package of which one thing may be another one's."""
    staging.mkdir(exist_ok=True)
    if module:
        (staging / "module.py").write_text(module.replace("{folder}", staging.name))
    probing = ProbeJob(
        staging, (), fit, signature or sample_manifest().signature, staging, recipe or Recipe(),
        runner, staging, staging, limits or RunnerLimits(),
    )  # fmt: skip
    reference = ReferenceResult(staging, cases, (), digest_bytes(os.urandom(8)), under)
    compiled = CompileResult((), fit, 1.0, {}, code=code)
    return measuring_key(probing, compiled, reference, staging)


def test_deliveries_in_folders_of_other_names_with_other_examples_have_the_same_key(
    tmp_path: Path,
) -> None:
    assert key_of(tmp_path / "monday") == key_of(tmp_path / "tuesday") is not None


def test_whatever_a_measurement_depends_on_gives_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = sample_manifest().signature
    (output,) = usual.outputs
    runner = tmp_path / "runner"
    runner.mkdir()
    (runner / "main.cpp").write_text("int main() {}")
    keys = [
        key_of(tmp_path),
        key_of(tmp_path, code=digest_bytes(b"other code")),
        key_of(tmp_path, module=MODULE.replace("16", "17")),
        key_of(tmp_path, module=MODULE.replace("norm.pt", "other.pt")),
        key_of(tmp_path, cases=("batch=1 seed=0", "batch=9 example=0")),
        key_of(tmp_path, under=digest_bytes(b"other conditions")),
        key_of(tmp_path, recipe=Recipe(verify=VerifyPlan(seeds=3))),
        key_of(tmp_path, limits=RunnerLimits(growth_calls=10)),
        key_of(tmp_path, signature=replace(usual, outputs=(replace(output, name="y"),))),
        key_of(tmp_path, runner=runner),
        key_of(tmp_path, fit=replace(FIT, torch="2.16.0")),
    ]
    monkeypatch.setattr(
        measurement_cache, "digest_own_code", lambda: digest_bytes(b"a later Handoff")
    )
    keys.append(key_of(tmp_path))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_the_conditions_are_threads_processor_system_and_what_the_environment_says_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = [digest_conditions()]
    assert digest_conditions() == digests[0]
    for name in ("OMP_NUM_THREADS", "LD_PRELOAD"):
        monkeypatch.setenv(name, "another")
        digests.append(digest_conditions())
    others: list[tuple[object, str, object]] = [
        (conditions, "describe_host_cpu", "another"), (os, "sched_getaffinity", {998, 999}),
        (torch, "get_num_threads", 77), (platform, "platform", "another"),
    ]  # fmt: skip
    for target, name, value in others:
        monkeypatch.setattr(target, name, lambda *_, value=value: value)
        digests.append(digest_conditions())
    monkeypatch.setenv("HANDOFF_NOTHING_OF_THAT_KIND", "1")
    assert digest_conditions() == digests[-1]
    assert len(set(digests)) == len(digests)


def test_code_that_nothing_tells_apart_has_no_key(tmp_path: Path) -> None:
    assert key_of(tmp_path, module="") is None, "there is no module.py"
    assert key_of(tmp_path, code="") is None
    assert key_of(tmp_path, under="") is None
    store_measurements(tmp_path / "kept", None, measured_now())
    assert load_measurements(tmp_path / "kept", None) is None
    assert not (tmp_path / "kept").exists()


def test_what_was_kept_is_found_again_under_its_key_alone(tmp_path: Path) -> None:
    store_measurements(tmp_path / "kept", KEY, measured_now())
    found = load_measurements(tmp_path / "kept", KEY)
    assert found == measured_now()
    assert found.package.library == digest_bytes(b"library")
    assert load_measurements(tmp_path / "kept", OTHER) is None


@pytest.mark.parametrize(("days", "is_found"), [(0, True), (29, True), (31, False), (-2, False)])
def test_after_a_month_it_is_measured_again(days: int, is_found: bool, tmp_path: Path) -> None:
    then = (datetime.now(UTC) - timedelta(days=days)).isoformat(sep=" ", timespec="minutes")
    of = EarlierMeasurement(digest_bytes(b"library"), then)
    store_measurements(tmp_path, KEY, replace(measured_now(), package=of))
    assert (load_measurements(tmp_path, KEY) is not None) is is_found


@pytest.mark.parametrize("lacking", ["replays", "openings", "rates", "growth", "trials"])
def test_what_would_not_be_accepted_is_not_taken_over(lacking: str, tmp_path: Path) -> None:
    plain = to_plain(MECHANICS)
    plain[lacking] = None if lacking == "growth" else []
    store_measurements(tmp_path, KEY, measured_now(from_plain(Mechanics, plain)))
    assert load_measurements(tmp_path, KEY) is None
    store_measurements(tmp_path, KEY, replace(measured_now(), timings=()))
    assert load_measurements(tmp_path, KEY) is None


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"timings": []}', b"yesterday", b"2026-11-23"],
)
def test_damage_counts_as_nothing_and_is_written_over(damage: bytes, tmp_path: Path) -> None:
    store_measurements(tmp_path, KEY, measured_now())
    (file,) = tmp_path.iterdir()
    if damage.startswith((b"y", b"2")):
        plain = to_plain(measured_now())
        plain["package"]["measured"] = damage.decode()
        damage = json.dumps(plain).encode()
    file.write_bytes(damage)
    assert load_measurements(tmp_path, KEY) is None
    store_measurements(tmp_path, KEY, measured_now())
    assert load_measurements(tmp_path, KEY)


def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement_cache, "_MOST_ENTRIES", 2)
    keys = [digest_bytes(bytes([place])) for place in range(3)]
    for place, key in enumerate(keys[:2]):
        store_measurements(tmp_path, key, measured_now())
        os.utime(tmp_path / f"{key.hex}.json", (place, place))
    assert load_measurements(tmp_path, keys[0]), "it counts as used now"
    store_measurements(tmp_path, keys[2], measured_now())
    assert load_measurements(tmp_path, keys[1]) is None
    assert load_measurements(tmp_path, keys[0])
    assert load_measurements(tmp_path, keys[2])


def test_a_place_that_cant_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    store_measurements(tmp_path / "kept", KEY, measured_now())
    assert load_measurements(tmp_path / "kept", KEY) is None
