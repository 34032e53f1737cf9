"""Compile and verify: one small package, loaded every way, and what is wrong with it refused."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.recipe import Recipe, VerifyPlan
from handoff.artifacts.recipe.target import CpuTarget, native_cpu_target
from handoff.tasks.compile.machine.host import require_level
from handoff.tasks.compile.messages import AssumedRange, CompileJob, CompileResult
from handoff.tasks.compile.packages import extract_library
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.optimize.messages import OptimizeJob, OptimizeResult
from handoff.tasks.optimize.programs import save_program
from handoff.tasks.release.processes import Processes
from handoff.tasks.timing.messages import BenchmarkJob
from handoff.tasks.verify import step as verify
from handoff.tasks.verify.loading import open_shared_library
from handoff.tasks.verify.messages import ReferenceJob, ReferenceResult, VerifyJob
from handoff.tasks.verify.reference import load_cases
from tests.limits import LIMIT_S
from tests.shared_tools import share_built
from tests.tasks.compile.torch_compilation import compile_as_torch_does
from tests.tasks.deliveries import write_delivery
from tests.tasks.optimize.passes.exporting import export

pytestmark = pytest.mark.compile


@dataclass(frozen=True)
class Built:
    """A compiled network with all that it was made from."""

    processes: Processes
    target: CpuTarget
    recipe: Recipe
    optimized: OptimizeResult
    compiled: CompileResult
    reference: ReferenceResult
    eager: nn.Module

    @property
    def folder(self) -> Path:
        """The folder of the packages."""
        return self.processes.jobs.package(self.target)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """Compile a small network the way a release does, in its step processes."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4)).eval()
    folder = tmp_path_factory.mktemp("built")
    delivery = write_delivery(folder / "delivery", module, {"input": torch.randn(6, 8)})
    target, recipe = native_cpu_target(), Recipe(verify=VerifyPlan(seeds=1))
    share_built(folder / "builds")
    with Processes(folder / "builds" / "workspace", recipe, delivery=delivery) as processes:
        processes.graph.run(IntakeJob(delivery, processes.jobs.staging), limit_s=LIMIT_S)
        optimized = processes.graph.run(processes.jobs.optimize(), limit_s=LIMIT_S)
        processes.tools(target).result(LIMIT_S)
        compiling = processes.jobs.compile(optimized, target)
        compiled = processes.compiler(target).run(compiling, limit_s=LIMIT_S)
        referring = processes.jobs.reference(optimized)
        reference = processes.runner().run(referring, limit_s=LIMIT_S)
        yield Built(processes, target, recipe, optimized, compiled, reference, module)


def test_every_loader_of_torchs_gives_eagers_numbers_at_other_batch_sizes(built: Built) -> None:
    library = str(built.folder / "model.so")
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(library, 1)
    loaded = torch._export.aot_load(library, "cpu")
    package = torch._inductor.aoti_load_package(str(built.folder / "model.pt2"))
    for batch in (1, 2, 5, 64):
        x = torch.randn(batch, 8)
        with torch.no_grad():
            want = built.eager(x)
        for got in (runner.run([x])[0], loaded(x), package(x)):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_the_package_says_what_it_needs_of_a_machine(built: Built) -> None:
    fit = built.compiled.fit
    assert built.target.cpu_flags <= set(fit.cpu_flags)
    assert fit.machine == platform.machine()
    assert fit.misfit(torch.__version__) is None
    needed = subprocess.run(
        ["objdump", "-p", str(built.folder / "model.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"GLIBC_{fit.glibc}" in needed
    assert not fit.cuda
    assert "torch 2.0" in str(fit.misfit("2.0.0"))
    assert "lacks" in str(replace(fit, cpu_flags=("no_such_flag",)).misfit(torch.__version__))


@pytest.mark.parametrize(
    "inputs",
    [torch.randn(65, 8), torch.randn(0, 8), torch.randn(5, 9), torch.randn(5, 8).double()],
    ids=["beyond the range", "below the range", "another width", "another dtype"],
)
def test_inputs_that_were_not_declared_are_refused_by_the_package(
    built: Built, inputs: torch.Tensor
) -> None:
    library = open_shared_library(built.folder / "model.so")
    assert library((torch.randn(1, 8),))[0].shape == (1, 4)
    with pytest.raises(RuntimeError):
        library((inputs,))


def test_a_row_of_a_table_is_taken_and_columns_of_one_are_not(built: Built) -> None:
    library = open_shared_library(built.folder / "model.so")
    table = torch.randn(5, 20)
    row = table[2:3, :8]
    assert row.is_contiguous()
    with torch.no_grad():
        torch.testing.assert_close(library((row,))[0], built.eager(row), rtol=1e-5, atol=1e-6)
    with pytest.raises(RuntimeError):
        library((table[:, :8],))


def test_a_package_that_takes_what_was_not_declared_is_refused(
    built: Built, tmp_path: Path
) -> None:
    # As torch builds it on its own: nothing is checked, and nothing else than a loop reads it.
    program = export(nn.GELU(), torch.randn(5, 8))
    folder = tmp_path / "unchecked"
    folder.mkdir()
    compile_as_torch_does(program, folder)
    extract_library(folder / "model.pt2", folder / "model.so")
    cases = [dict(vars(case)) for case in load_cases(built.reference.file)]
    for case in cases:
        x = case["inputs"][0]
        case["eager"] = (nn.functional.gelu(x),)
        case["float64"] = (nn.functional.gelu(x.double()),)
    torch.save(cases, tmp_path / "reference.pt")
    result = verify.run(VerifyJob(folder, tmp_path / "reference.pt", built.recipe))
    assert result.reasons[-1] == "the package takes an input of another dtype without a word"
    assert any("input 0 transposed, output 0" in reason for reason in result.reasons)


def test_what_the_compiler_assumed_has_to_be_compared_beyond(built: Built) -> None:
    seen = AssumedRange(0, 0, 2, 15)
    unseen = AssumedRange(0, 0, 1, 64)
    job = VerifyJob(built.folder, built.reference.file, built.recipe, assumed=(seen,))
    assert verify.run(job).accepted
    (reason,) = verify.run(replace(job, assumed=(unseen,))).reasons
    assert "no size beyond that was compared" in reason


def test_the_level_of_the_code_is_recorded_and_is_the_targets(built: Built) -> None:
    assert built.compiled.instruction_sets
    assert set(built.compiled.instruction_sets) <= built.target.cpu_flags


def test_a_package_beyond_its_targets_level_is_refused() -> None:
    with pytest.raises(BlessingRefused, match=r"cpu-avx2 needs more .* got avx512f"):
        require_level(CpuTarget("avx2"), ("avx", "avx512f"))


@pytest.mark.long
def test_an_avx2_package_is_built_on_any_machine_and_holds_nothing_more(
    built: Built, tmp_path: Path
) -> None:
    target = CpuTarget("avx2")
    share_built(tmp_path / "builds")
    with Processes(
        tmp_path / "builds" / "workspace",
        Recipe(targets=("cpu-avx2",)),
        reads=(built.processes.jobs.workspace,),
    ) as processes:
        job = processes.jobs.compile(built.optimized, target)
        compiled = processes.compiler(target).run(job, limit_s=LIMIT_S)
        assert set(compiled.instruction_sets) <= target.cpu_flags
        assert compiled.fit.cpu_flags == tuple(sorted(target.cpu_flags))
        verifying = VerifyJob(processes.jobs.package(target), built.reference.file, built.recipe)
        result = processes.runner(target).run(verifying, limit_s=LIMIT_S)
    assert result.accepted, result.reasons


def test_only_the_packages_lie_in_the_folder(built: Built) -> None:
    assert sorted(path.name for path in built.folder.iterdir()) == ["model.pt2", "model.so"]
    assert [path for path in built.folder.parent.iterdir() if "building" in path.name] == []


def test_a_right_package_is_accepted_on_every_case_of_the_plan(built: Built) -> None:
    result = verify.run(VerifyJob(built.folder, built.reference.file, built.recipe))
    assert result.accepted, result.reasons
    assert {d.case for d in result.deviations} >= set(built.reference.cases)
    assert not any(d.special for d in result.deviations if "seed" in d.case and "," not in d.case)
    assert all(d.rmse_eager > 0 for d in result.deviations if d.elements > 100)


Tensors = tuple[torch.Tensor, ...]

# What the reference has and the package then lacks, which is what a miscompilation looks like.
FAULTS: dict[str, Callable[[torch.Tensor], Tensors]] = {
    "stale weights": lambda t: (t * 1.001,),
    "swapped outputs": lambda t: (t.flip(1).contiguous(),),
    "an off-by-one tail": lambda t: (torch.cat([t[1:], t[:1]]) if len(t) > 1 else -t,),
    "a missing output": lambda t: (t, t),
    "another dtype": lambda t: (t.half(),),
    "a NaN": lambda t: (torch.where(t == t.max(), torch.nan, t),),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_package_that_differs_is_refused(built: Built, fault: str, tmp_path: Path) -> None:
    cases = [dict(vars(case)) for case in load_cases(built.reference.file)]
    for case in cases:
        for key in ("eager", "float64"):
            case[key] = FAULTS[fault](case[key][0])
    path = tmp_path / "reference.pt"
    torch.save(cases, path)
    result = verify.run(VerifyJob(built.folder, path, built.recipe))
    assert not result.accepted
    assert result.reasons


def test_a_package_of_other_weights_is_refused(built: Built, tmp_path: Path) -> None:
    # The fault is in the package here: its bytes of weights, which are in the library.
    data = bytearray((built.folder / "model.so").read_bytes())
    weights = built.eager[3].weight.detach().numpy().tobytes()  # type: ignore[index]
    place = data.find(weights[:64])
    assert place > 0
    data[place + 2 : place + 4] = b"\xc0\x40"
    copy = tmp_path / "package"
    copy.mkdir()
    (copy / "model.so").write_bytes(data)
    (copy / "model.pt2").write_bytes((built.folder / "model.pt2").read_bytes())
    result = verify.run(VerifyJob(copy, built.reference.file, built.recipe))
    reasons = " ".join(result.reasons)
    assert "outside atol" in reasons
    assert "different bits" in reasons


def operators_called(folder: Path) -> set[str]:
    """Return the ATen operators that the compiled code calls, by the symbols that it asks for."""
    library = (folder / "model.so").read_bytes()
    return {name.decode() for name in re.findall(rb"aoti_torch_cpu_\w+", library)}


def test_a_package_holds_no_sources_and_no_paths_of_the_building_machine(built: Built) -> None:
    with zipfile.ZipFile(built.folder / "model.pt2") as archive:
        names = archive.namelist()
        texts = b"".join(archive.read(name) for name in names if not name.endswith(".so"))
    assert not [name for name in names if name.endswith((".cpp", ".o"))]
    assert str(built.processes.jobs.workspace).encode() not in texts
    assert (
        str(built.processes.jobs.workspace).encode() not in (built.folder / "model.so").read_bytes()
    )


def test_freezing_is_not_silently_left_out(built: Built) -> None:
    image, file = torch.randn(2, 3, 9, 9), built.optimized.program.with_name("convolution.pt2")
    save_program(torch.export.export(torch.nn.Conv2d(3, 8, 3).eval(), (image,)), file)
    program, frozen = built.optimized.program, built.processes.jobs.workspace / "frozen"
    process = built.processes.compiler(built.target)
    for given, folder in ((program, frozen), (file, frozen.with_name("convolution"))):
        job = CompileJob(given, built.target, folder, {"freezing": True})
        process.run(job, limit_s=LIMIT_S)
    # Inductor leaves the option out without a word where gradients are enabled; frozen weights are
    # packed for the kernels that use them: of a convolution at every level.
    packed = "aoti_torch_cpu_mkldnn__convolution_pointwise"
    assert packed in operators_called(frozen.with_name("convolution"))
    assert isinstance(built.target, CpuTarget)
    has_avx512 = "avx512f" in built.target.cpu_flags
    linear = "aoti_torch_cpu__linear_pointwise"
    assert (linear in operators_called(frozen)) == has_avx512
    assert linear not in operators_called(built.folder)
    result = verify.run(VerifyJob(frozen, built.reference.file, built.recipe))
    assert result.accepted, result.reasons


def test_what_can_not_be_compiled_leaves_no_folder(built: Built) -> None:
    folder = built.processes.jobs.workspace / "impossible"
    job = CompileJob(built.optimized.program, built.target, folder, {"no_such_option": True})
    with pytest.raises(BlessingRefused, match="could not compile the model for cpu-"):
        built.processes.compiler(built.target).run(job, limit_s=LIMIT_S)
    assert not folder.exists()


def test_timing_gives_an_interval_around_its_median(built: Built) -> None:
    job = BenchmarkJob(built.processes.jobs.staging, built.folder, built.reference.file)
    result = built.processes.runner().run(job, limit_s=LIMIT_S)
    # The example's six are nearest to 4, a third of the way from 1 to 64 in the logarithm.
    sizes = ["batch=1 seed=0", "batch=6 example=0", "batch=17 seed=0", "batch=64 seed=0"]
    assert [t.case for t in result.timings] == sizes
    for timing in result.timings:
        assert timing.rounds >= 9
        assert 0 < timing.speedup_low <= timing.speedup <= timing.speedup_high


def test_a_size_that_takes_too_much_is_left_out_and_named(built: Built) -> None:
    plan = VerifyPlan(seeds=1, max_bytes=20_000)
    file = built.processes.jobs.workspace / "less.pt"
    job = ReferenceJob(built.processes.jobs.staging, None, plan, file)
    result = built.processes.runner().run(job, limit_s=LIMIT_S)
    assert "batch=1 seed=0" in result.cases
    assert "batch=64 seed=0" not in result.cases
    assert any(text.startswith("batch=64: about") for text in result.skipped)


class Awkward(nn.Module):
    """Works in its input, gives a tensor twice, masks with infinity, and numbers its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self.linear(x.mul_(2.0))
        masked = torch.where(x[:, :4] > 0.0, scores, -torch.inf)
        return masked, scores, masked, scores.argmax(1) + 2**53 + 1


def test_an_awkward_model_is_built_and_accepted(built: Built) -> None:
    torch.manual_seed(0)
    processes, place = built.processes, built.processes.jobs.workspace / "awkward"
    place.mkdir()
    delivery = write_delivery(place / "delivery", Awkward().eval(), {"x": torch.randn(6, 8)})
    staging, folder = place / "staging", place / "package"
    processes.graph.run(IntakeJob(delivery, staging), limit_s=LIMIT_S)
    optimizing = OptimizeJob(staging, place / "program", built.recipe)
    optimized = processes.graph.run(optimizing, limit_s=LIMIT_S)
    assert [spec.dtype for spec in optimized.outputs] == ["float32", "float32", "float32", "int64"]
    compiling = CompileJob(optimized.program, built.target, folder, {})
    processes.compiler(built.target).run(compiling, limit_s=LIMIT_S)
    referring = ReferenceJob(staging, None, built.recipe.verify, place / "reference.pt")
    reference = processes.runner().run(referring, limit_s=LIMIT_S)
    result = verify.run(VerifyJob(folder, reference.file, built.recipe))
    assert result.accepted, result.reasons
    assert {d.output for d in result.deviations} == {0, 1, 2, 3}
    assert any(d.non_finite for d in result.deviations)


_PREPARE = """
from handoff.artifacts.errors import EnvironmentLacking
from handoff.tasks.compile import step as compile
from handoff.tasks.compile.machine.host import require_compiler
compile.prepare()
try:
    require_compiler()
except EnvironmentLacking as error:
    print(error)
"""


def test_a_compiler_that_does_not_run_is_reported_to_the_first_job_and_not_by_a_crash() -> None:
    level = native_cpu_target().capability
    environment = {**os.environ, "CXX": "/bin/false", "ATEN_CPU_CAPABILITY": level}
    ended = subprocess.run(
        [sys.executable, "-c", _PREPARE], env=environment,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert ended.stdout.startswith("no C++ compiler was found"), ended.stderr
