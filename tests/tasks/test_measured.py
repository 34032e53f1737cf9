"""What was measured is taken over for the same code under the same conditions, and no other."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.digest import Digest, digest_bytes
from artifacts.evidence import TakenOver, Timing
from artifacts.mechanics import Growth, Limits, Mechanics, Opening, Rate, Replay, Trial
from artifacts.probes import ProbeJob
from artifacts.recipe import Recipe, VerifyPlan
from artifacts.signature import ModelSignature
from artifacts.steps import CompileResult, ReferenceResult
from tasks import measured
from tasks.jobs import RUNNER_SOURCE
from tasks.measured import Measured, keep, measuring_key, recall
from tests.artifacts.samples import sample_manifest

KEY, OTHER = digest_bytes(b"key"), digest_bytes(b"other")
MEASURED = Measured(
    TakenOver(digest_bytes(b"library"), "2026-11-23 14:00+00:00"),
    Mechanics(
        "batch=1 seed=0",
        (Replay("model.so", 2, 1, 3, 6, 0, 0, 0.0),),
        (Opening("model.so", 0.01, 0.02, 0.003, 1 << 27, 1 << 20, 1 << 28),),
        (Rate(1, 1234.5),),
        Growth(500, 1.5, 4096, 0, 1 << 28),
        (Trial("x:dtype", "harmed", "refused", "told"),),
        ("handoff-runner replay RELEASE CASES",),
    ),
    (Timing("batch=1 seed=0", 2e-3, 1e-3, 2.0, 1.9, 2.1, 9, 2),),
)


def key_of(
    staging: Path,
    *,
    code: str = digest_bytes(b"code"),
    module: str = "x + 1",
    plan: bytes = b"plan",
    recipe: Recipe | None = None,
    limits: Limits | None = None,
    signature: ModelSignature | None = None,
) -> Digest | None:
    """Return the key of a package of which one thing may be another one's."""
    manifest = sample_manifest()
    (target,) = manifest.targets
    assert target.fit is not None
    staging.mkdir(exist_ok=True)
    (staging / "module.py").write_text(module)
    probing = ProbeJob(
        staging, (), target.fit, signature or manifest.signature, staging, recipe or Recipe(),
        RUNNER_SOURCE, staging, staging, limits or Limits(),
    )  # fmt: skip
    reference = ReferenceResult(staging, (), (), digest_bytes(plan))
    return measuring_key(
        probing, CompileResult((), target.fit, 1.0, {}, code=code), reference, staging
    )


def test_the_same_code_under_the_same_conditions_has_the_same_key(tmp_path: Path) -> None:
    assert key_of(tmp_path / "a") == key_of(tmp_path / "b")


def test_whatever_a_measurement_depends_on_gives_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = sample_manifest().signature
    (output,) = usual.outputs
    keys = [
        key_of(tmp_path),
        key_of(tmp_path, code=digest_bytes(b"other code")),
        key_of(tmp_path, module="x + 2"),
        key_of(tmp_path, plan=b"other inputs"),
        key_of(tmp_path, recipe=Recipe(verify=VerifyPlan(seeds=3))),
        key_of(tmp_path, limits=Limits(growth_calls=10)),
        key_of(tmp_path, signature=replace(usual, outputs=(replace(output, name="y"),))),
    ]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    keys.append(key_of(tmp_path, code=digest_bytes(b"code")))
    monkeypatch.setattr(measured, "own_code", lambda: digest_bytes(b"a later Handoff"))
    keys.append(key_of(tmp_path))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_code_that_nothing_tells_apart_has_no_key(tmp_path: Path) -> None:
    assert key_of(tmp_path, code="") is None
    keep(tmp_path / "kept", None, MEASURED)
    assert recall(tmp_path / "kept", None) is None
    assert not (tmp_path / "kept").exists()


def test_what_was_kept_is_found_again_under_its_key_alone(tmp_path: Path) -> None:
    keep(tmp_path / "kept", KEY, MEASURED)
    assert recall(tmp_path / "kept", KEY) == MEASURED
    assert recall(tmp_path / "kept", OTHER) is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"timings": []}'])
def test_damage_counts_as_nothing_and_is_written_over(damage: bytes, tmp_path: Path) -> None:
    keep(tmp_path, KEY, MEASURED)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert recall(tmp_path, KEY) is None
    keep(tmp_path, KEY, MEASURED)
    assert recall(tmp_path, KEY) == MEASURED


def test_what_was_not_used_for_longest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_KEPT", 2)
    keys = [digest_bytes(bytes([place])) for place in range(3)]
    for place, key in enumerate(keys[:2]):
        keep(tmp_path, key, MEASURED)
        os.utime(tmp_path / f"{key.hex}.json", (place, place))
    assert recall(tmp_path, keys[0]), "it counts as used now"
    keep(tmp_path, keys[2], MEASURED)
    assert recall(tmp_path, keys[1]) is None
    assert recall(tmp_path, keys[0])
    assert recall(tmp_path, keys[2])


def test_a_place_that_cant_be_written_to_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    keep(tmp_path / "kept", KEY, MEASURED)
    assert recall(tmp_path / "kept", KEY) is None
