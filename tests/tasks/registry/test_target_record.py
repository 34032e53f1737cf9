"""What a target's record says of what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.compatibility import Fit
from handoff.artifacts.recipe.target import CudaTarget, require_target
from handoff.artifacts.release.evidence import Timing
from handoff.artifacts.release.manifest import PackageFile, TargetRecord
from handoff.tasks.compile.messages import CompileResult
from handoff.tasks.registry.target_record import (
    bless,
    require_new,
    unverified_record,
    with_source_check,
)
from handoff.tasks.timing.messages import BenchmarkResult
from handoff.tasks.verify.interpret.messages import InterpretResult
from handoff.tasks.verify.messages import ReferenceResult, VerifyResult
from tests.artifacts.recipe.gpu_generations import BOTH, for_gpus
from tests.artifacts.samples import sample_source_check, sample_target


def blessed(slug: str, *timings: Timing, fit: Fit | None = None) -> TargetRecord:
    """Return the record of an accepted target whose packages took these times."""
    built = sample_target(slug)
    fit = fit or built.fit
    assert fit is not None
    compiled = CompileResult(built.files, fit, 12.5, {})
    reference = ReferenceResult(Path("reference.pt"), ("batch=1 seed=0",), (), digest_bytes(b""))
    timed = BenchmarkResult(timings, 2e-7) if timings else None
    return bless(slug, compiled, reference, VerifyResult((), ()), timed)


def test_a_package_that_is_slower_than_eager_says_so_for_each_size_where_it_surely_is() -> None:
    record = blessed(
        "cpu-avx512",
        Timing("batch=1 seed=0", 2e-3, 1e-3, 2.0, 1.9, 2.1, 9, 2),
        Timing("batch=17 seed=0", 2e-2, 2e-2, 0.98, 0.87, 1.22, 9, 2),
        Timing("batch=1024 seed=0", 9e-2, 1e-1, 0.88, 0.85, 0.92, 9, 2),
    )
    slower, unknown = record.notes
    assert unknown.startswith("how fast it is at batch=17 seed=0 (0.87 to 1.22 times")
    assert slower == "slower than eager at batch=1024 seed=0: 0.88 times its speed (0.85 to 0.92)"
    assert record.accepted


def test_a_speed_that_stands_for_all_and_is_not_known_says_why() -> None:
    clear = Timing("batch=1 seed=0", 2e-3, 1e-3, 2.0, 1.9, 2.1, 9, 2)
    unclear = Timing("batch=8 example=0", 2e-3, 1e-3, 2.0, 0.2, 100.0, 9, 2, others=1.5)
    (note,) = blessed("cpu-avx512", clear, unclear).notes
    assert note.startswith("how fast it is at batch=8 example=0 (0.20 to 100 times eager's speed)")
    assert "other work took 1.5 processors" in note


def test_a_variant_that_is_another_one_s_package_is_left_out() -> None:
    built = sample_target("cpu-avx512")
    assert built.fit is not None
    library = PackageFile("cpu-avx512/model.so", digest_bytes(b"library"), 7)
    compiled = CompileResult((library,), built.fit, 12.5, {})
    require_new(compiled, {digest_bytes(b"another"): "plain"})
    with pytest.raises(BlessingRefused, match="the package of 'plain', byte for byte"):
        require_new(compiled, {library.digest: "plain"})


def test_a_gpu_s_package_says_how_far_it_is_from_eager_there() -> None:
    timing = Timing("batch=1 seed=0", 2e-3, 1e-3, 2.0, 1.9, 2.1, 9, 2)
    assert blessed("cuda-sm90", timing).notes == (
        "differs from eager on the same GPU by at most 2e-07",
    )
    assert blessed("cpu-avx2", timing).notes == blessed("cpu-avx2").notes == ()


def unverified() -> TargetRecord:
    """Return the record of a package that was built where there is no such GPU."""
    return replace(sample_target("cuda-sm90"), accepted=False, unverified="no GPU here")


def test_a_right_source_leaves_a_package_unverified() -> None:
    record = with_source_check(unverified(), InterpretResult(sample_source_check()))
    assert (record.verdict, record.accepted) == ("built, not yet verified", False)
    assert record.standing == "built, not yet verified, kernels checked at source level"


def test_a_wrong_source_refuses_the_package() -> None:
    found = InterpretResult(None, ("triton_poi_fused_add_0, line 12 (...): wrong",))
    record = with_source_check(unverified(), found)
    assert (record.verdict, record.standing) == ("refused", "refused")
    assert record.reasons == found.reasons


def test_a_source_that_could_not_be_run_claims_nothing_and_says_why() -> None:
    record = with_source_check(unverified(), InterpretResult(None, unchecked="it has branches"))
    assert record.standing == record.verdict == "built, not yet verified"
    assert record.notes[-1] == "its kernels' sources were not run: it has branches"


@pytest.mark.parametrize(
    ("record", "standing", "untried"),
    [
        (for_gpus(80, 90), "accepted", ()),
        (
            for_gpus(90, untried=(80,)),
            "accepted, not yet verified for compute capability 8.0",
            (80,),
        ),
        (for_gpus(80, 90, unverified="no GPU here"), "built, not yet verified", (80, 90)),
        (sample_target("cpu-avx2"), "accepted", ()),
    ],
)
def test_no_generation_is_shown_as_verified_on_which_nothing_was_run(
    record: TargetRecord, standing: str, untried: tuple[int, ...]
) -> None:
    assert (record.standing, record.unverified_gpus) == (standing, untried)


@pytest.mark.parametrize(("here", "untried"), [(90, (80,)), (80, (90,)), (86, (90,))])
def test_the_gpu_that_ran_a_package_for_several_is_verified_and_no_other(
    here: int, untried: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "handoff.artifacts.recipe.compatibility.host_gpu_capabilities", lambda: (here,)
    )
    timing = Timing("batch=1 seed=0", 2e-3, 1e-3, 2.0, 1.9, 2.1, 9, 2)
    fit = for_gpus(80, 90).fit
    record = blessed(BOTH, timing, fit=fit)
    assert record.unverified_gpus == untried


def test_a_package_for_several_gpus_that_are_not_here_tells_of_each() -> None:
    target = require_target(BOTH)
    assert isinstance(target, CudaTarget)
    fit = for_gpus(80, 90).fit
    assert fit is not None
    record = unverified_record(target, CompileResult((), fit, 12.5, {}))
    assert "A100-SXM4-80GB (sm_80) and NVIDIA H100 80GB HBM3 (sm_90)" in record.unverified
    assert "were seen to be for those GPUs, and no GPU has run them" in record.unverified
    assert record.unverified_gpus == (80, 90)
