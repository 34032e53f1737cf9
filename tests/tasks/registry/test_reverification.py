"""What a comparison on the hardware says of a package for several generations of GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.release.manifest import TargetRecord
from handoff.tasks.registry.reverification import _describe_comparison
from handoff.tasks.verify.messages import ReferenceResult, VerifyResult
from tests.artifacts.recipe.gpu_generations import for_gpus
from tests.artifacts.samples import sample_manifest, sample_target


def describe(record: TargetRecord) -> str:
    """Return what is said where the package was right in one comparison."""
    reference = ReferenceResult(Path("reference.pt"), (), (), digest_bytes(b"plan"))
    return _describe_comparison(
        sample_manifest(record), record, reference, VerifyResult(record.deviations, ())
    )


@pytest.mark.parametrize(
    ("record", "here", "expected", "others"),
    [
        (for_gpus(80, 90, unverified="no GPU here"), 90, "right here on", "8.0"),
        (for_gpus(80, 90, unverified="no GPU here"), 86, "right here on", "9.0"),
        (for_gpus(90, untried=(80,)), 90, "accepted again on", "8.0"),
        (for_gpus(90, untried=(80,)), 80, "right here on", "9.0"),
    ],
)
def test_a_comparison_says_something_about_the_generation_that_it_was_made_on(
    record: TargetRecord, here: int, expected: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "handoff.tasks.registry.reverification.host_gpu_capabilities"
    monkeypatch.setattr(place, lambda: (here,))
    ran = {90: "9.0", 80: "8.0", 86: "8.0"}[here]
    text = describe(record)
    assert f"{expected} compute capability {ran} (not run on {others})" in text
    stays = "its record stays not yet verified for compute capability 8.0"
    assert (stays in text) == (record.accepted and here == 80)


@pytest.mark.parametrize("slug", ["cpu-avx2", "cuda-sm90"])
def test_of_a_package_for_one_machine_nothing_is_left_out(slug: str) -> None:
    record = for_gpus(90, unverified="no GPU here") if slug != "cpu-avx2" else sample_target(slug)
    assert "not run on" not in describe(record)
