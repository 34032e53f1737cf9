"""The pooling operator: eager, the Triton kernel and the C++ function all compute the same."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.machine.gpu import PROFILES
from handoff.artifacts.recipe.target import CpuTarget, Isa, host_cpu_flags
from handoff.tasks.compile.cross.build import compile_for
from handoff.tasks.optimize.kernels import compiler_options
from handoff.tasks.optimize.kernels.attention_pooling import WIDEST, attention_pooling, composition
from handoff.tasks.verify.loading import open_package
from tests.tasks.compile.cross import models
from tests.tasks.compile.torch_compilation import compile_as_torch_does
from tests.tasks.optimize.kernels.calling_pooling import build_pooling, call_pooling
from tests.tasks.optimize.kernels.interpret_attention_pooling import (
    FILLS,
    ITEMS,
    KINDS,
    SHAPES,
    draw,
)

SETTINGS = (0.5, 0.2, 0.25, -1e9)
# Sizes that torch would broadcast, or that are simply wrong, for 3 rows of 5 ids and 32 columns.
OTHER_SIZES = {
    "one weight for all rows": ("weight", (1, 5)),
    "one weight for all places": ("weight", (3, 1)),
    "one kind for all rows": ("kinds", (1, 5)),
    "one mask for all rows": ("present", (1, 5)),
    "one target for all rows": ("target", (1, 1, 32)),
    "a target for each place": ("target", (3, 5, 32)),
    "a target without the middle axis": ("target", (3, 32)),
    "one gate for all columns": ("gate", (1,)),
    "categories of one column": ("categories", (KINDS, 1)),
    "categories of more columns": ("categories", (KINDS, 33)),
}
other_sizes = pytest.mark.parametrize(("name", "size"), OTHER_SIZES.values(), ids=OTHER_SIZES)


class Pooling(nn.Module):
    """The operator alone, with its tables as weights and ids that are a view of a larger input."""

    def __init__(self, width: int, fill: float = -1e9) -> None:
        super().__init__()
        self.fill = fill
        torch.manual_seed(0)
        self.items, self.kinds = nn.Embedding(ITEMS, width), nn.Embedding(KINDS, width)
        self.gate = nn.Parameter(torch.rand(width))

    def forward(self, ids: Tensor, kinds: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        chosen = ids[:, 1]
        pooled = torch.ops.handoff.attention_pooling(
            self.items.weight, chosen, self.kinds.weight, kinds, self.gate, weight, target,
            chosen > 0, *SETTINGS[:3], self.fill,
        )  # fmt: skip
        return torch.cat(pooled, 1)


def inputs(rows: int, length: int, width: int) -> tuple[Tensor, ...]:
    given = draw(rows, length, width)
    ids = torch.stack([torch.zeros_like(given["ids"]), given["ids"]], 1)
    return ids, given["kinds"], given["weight"], given["target"]


Libraries = Callable[[Isa], Path]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    """Return what gives the C++ function as a level's packages hold it, built once for each."""

    @cache
    def build(isa: Isa) -> Path:
        return build_pooling(tmp_path_factory.mktemp(isa), CpuTarget(isa).march)

    return build


def best(libraries: Libraries) -> Path:
    """Return the function as packages for this machine hold it."""
    levels: tuple[Isa, ...] = ("avx512", "avx2")
    return libraries(next(isa for isa in levels if CpuTarget(isa).cpu_flags <= host_cpu_flags()))


@pytest.fixture
def library(libraries: Libraries) -> Path:
    """Return that function, to be called by itself."""
    return best(libraries)


@pytest.mark.parametrize("fill", FILLS)
def test_eager_is_the_composition_with_zeros_where_nothing_is_present(fill: float) -> None:
    given = draw(4, 9, 12)
    zero = torch.zeros_like(given["weight"])
    want = composition(**given, zero=zero, mix=0.5, slope=0.2, scale=0.25, fill=fill)
    got = attention_pooling(*given.values(), *SETTINGS[:3], fill)
    assert all(map(torch.equal, got, want))
    assert torch.equal(got[1][0], torch.zeros(12)), "a row that is all padding"


@other_sizes
def test_the_operator_refuses_what_its_kernels_would_read_beyond(
    name: str, size: tuple[int, ...]
) -> None:
    given = draw(3, 5, 32) | {name: torch.zeros(size)}
    with pytest.raises(ValueError, match=f"expected {name} of the sizes"):
        attention_pooling(*given.values(), *SETTINGS)


def test_the_operator_refuses_more_columns_than_the_cpus_function_has_sums_for() -> None:
    widest = draw(2, 3, WIDEST)
    assert attention_pooling(*widest.values(), *SETTINGS)[0].shape == (2, WIDEST)
    wider = draw(2, 3, WIDEST + 1)
    with pytest.raises(ValueError, match="at most 128 columns on the CPU, got 129"):
        attention_pooling(*wider.values(), *SETTINGS)
    with torch._subclasses.FakeTensorMode() as mode, pytest.raises(ValueError, match="got 129"):
        attention_pooling(*map(mode.from_tensor, wider.values()), *SETTINGS)


@pytest.fixture(scope="module")
def apart(libraries: Libraries) -> subprocess.CompletedProcess[str]:
    """What was found in a process of its own by the interpreted kernel, and `calling_pooling`."""
    program = [
        sys.executable, "-m", "tests.tasks.optimize.kernels.interpret_attention_pooling",
        str(best(libraries)),
    ]  # fmt: skip
    # Triton reads the setting when a kernel is defined.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.mark.compile
def test_the_triton_kernel_computes_it_in_tritons_interpreter(
    apart: subprocess.CompletedProcess[str],
) -> None:
    verdicts = " ".join(apart.stdout.splitlines()[:-2]).split()
    assert verdicts == ["accepted"] * (2 * len(SHAPES) + 2) + ["refused"]


@pytest.mark.compile
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_the_function_computes_it_for_any_shape_and_fill(isa: Isa, libraries: Libraries) -> None:
    if not CpuTarget(isa).cpu_flags <= host_cpu_flags():
        pytest.skip(f"this machine has no {isa}")
    built = libraries(isa)
    # One of several threads, one of the most columns, and one with no places at all.
    for shape in (*SHAPES, (600, 50, 32), (3, 9, WIDEST), (2, 0, 32)):
        given = draw(*shape)
        for fill in FILLS:
            got = call_pooling(built, given, fill)
            assert got is not None
            want = attention_pooling(*given.values(), *SETTINGS[:3], fill)
            assert not want[1][0].any(), "a row that is all padding"
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.compile
@other_sizes
def test_the_function_refuses_other_sizes_before_it_reads(
    name: str, size: tuple[int, ...], library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = draw(3, 5, 32)
    assert call_pooling(library, given) is not None
    dtype = given[name].dtype
    assert call_pooling(library, given | {name: torch.zeros(size, dtype=dtype)}) is None
    wanted, got = list(given[name].shape), list(size)
    message = f"attention_pooling: expected {name} of the sizes {wanted}, got {got}\n"
    assert capfd.readouterr().err == message


@pytest.mark.compile
def test_the_function_refuses_other_dtypes_and_more_columns_than_it_has_sums_for(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = draw(3, 5, 32)
    assert call_pooling(library, given | {"kinds": given["kinds"].int()}) is None
    assert "expected int64 ids and kinds" in capfd.readouterr().err
    assert call_pooling(library, draw(3, 5, WIDEST + 1)) is None
    assert "expected tables of at most 128 columns, got 129" in capfd.readouterr().err


@pytest.mark.compile
def test_calls_that_the_function_refuses_keep_no_memory(
    apart: subprocess.CompletedProcess[str],
) -> None:
    # 200 calls whose results are 2 MiB each.
    assert int(apart.stdout.splitlines()[-2]) < 50 * 2**20


@pytest.mark.compile
def test_the_function_refuses_a_call_for_which_there_is_no_memory(
    apart: subprocess.CompletedProcess[str],
) -> None:
    assert apart.stdout.splitlines()[-1] == "refused"
    assert "expected memory for sequences of 70368744177664, got none" in apart.stderr


CASES = [(20, -1e9), (32, -math.inf)]


class Poolings(nn.Module):
    """The operator for both widths and fills, so that they are compiled once."""

    def __init__(self) -> None:
        super().__init__()
        self.poolings = nn.ModuleList(Pooling(width, fill) for width, fill in CASES)

    def forward(self, first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> list[Tensor]:
        given = zip(self.poolings, (first, second), strict=True)
        return [pooling(*inputs) for pooling, inputs in given]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both in one package."""
    example = tuple(inputs(6, 50, width) for width, _ in CASES)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with torch.no_grad():
        program = torch.export.export(
            Poolings().eval(), example, dynamic_shapes=((batch,) * 4,) * len(CASES)
        )
    return compile_as_torch_does(
        program, tmp_path_factory.mktemp("package"), {**compiler_options(program)}
    )


@pytest.mark.compile
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_package_computes_it_without_python_and_refuses_ids_outside(
    case: int, package: Path
) -> None:
    width, fill = CASES[case]
    model, call = Pooling(width, fill).eval(), open_package(package)

    def called(rows: int, mine: tuple[Tensor, ...]) -> Tensor:
        given = [inputs(rows, 50, width) for width, _ in CASES]
        given[case] = mine
        return call(tuple(given))[case]  # type: ignore[arg-type]

    for rows in (1, 17, 64):
        given = inputs(rows, 50, width)
        torch.testing.assert_close(called(rows, given), model(*given))
    for outside in (-1, ITEMS):
        given = inputs(6, 50, width)
        given[0][3, 1, 7] = outside
        with pytest.raises(RuntimeError, match="attention_pooling_cpu"):
            called(6, given)
    ids, kinds, weight, target = example = inputs(6, 50, width)
    with pytest.raises(RuntimeError, match="attention_pooling_cpu"):
        called(6, (ids, kinds, weight[:1], target))
    torch.testing.assert_close(called(6, example), model(*example))


@pytest.mark.compile
@models.needs_known_torch
@pytest.mark.long
def test_its_kernel_is_in_packages_for_gpus(tmp_path: Path) -> None:
    model = Pooling(32).eval()
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with torch.no_grad():
        program = torch.export.export(model, inputs(6, 50, 32), dynamic_shapes=(batch,) * 4)
    made = compile_for(program, PROFILES["sm_90"], tmp_path / "out")
    assert "attention_pooling_kernel" in made.inspection.names
    assert made.inspection.capabilities == {90}
