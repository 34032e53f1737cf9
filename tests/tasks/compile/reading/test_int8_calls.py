"""A package that is to compute in int8 does, on processors that compute it rightly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.target import TARGETS
from handoff.tasks.compile.int8_sums import lower_int8_sums
from handoff.tasks.compile.packages import extract_library
from handoff.tasks.compile.reading.cpp_source import require_int8, require_int8_level
from handoff.tasks.optimize.passes.base import Calibration, apply_pass
from handoff.tasks.optimize.passes.quantize_int8 import QuantizeInt8
from tests.tasks.compile.torch_compilation import compile_as_torch_does
from tests.tasks.optimize.passes.exporting import count, export

X = torch.randn(6, 4, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Layers of both kinds, with each activation that oneDNN does behind them, and two sums."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        activations = nn.ReLU(), nn.Hardswish(), nn.ReLU6(), nn.SiLU(), nn.Hardtanh(-1, 2.5)
        convolutions = [nn.Conv2d(4, 8, 3), *(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))]
        pairs = zip(convolutions, activations, strict=True)
        self.features = nn.Sequential(*(layer for pair in pairs for layer in pair))
        self.one, self.two, self.three, self.four, self.last = (
            nn.Conv2d(8, 8, 3, padding=1) for _ in range(5)
        )
        self.head = nn.Sequential(
            nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU("tanh"), nn.Linear(16, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = (x + self.two(self.one(x).relu())).relu()
        x = self.last(x + self.four(self.three(x).relu())) + x
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def quantized() -> ExportedProgram:
    """The net in int8."""
    program = export(Net(), X)
    chosen = QuantizeInt8({"activations": "static-sums", "keep": "0"})
    chosen.calibrate(Calibration([(X,)], "ranges of one batch"))
    assert apply_pass(chosen, program)
    assert count(program, torch.ops.handoff.int8_convolution_added.default) == 2
    return program


@pytest.fixture(scope="module")
def packages(
    quantized: ExportedProgram, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return AOTInductor's packages of the net in int8, and of a layer of each kind as it is."""
    folder = tmp_path_factory.mktemp("packages")
    lower_int8_sums()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
    programs = {"float32": export(plain, X), "int8": quantized}
    made = {}
    for name, program in programs.items():
        made[name] = compile_as_torch_does(program, folder / name, {"freezing": True})
        extract_library(made[name], made[name].with_suffix(".so"))
    return made


@pytest.mark.compile
def test_the_package_computes_what_the_graph_does_to_the_bit(
    packages: dict[str, Path], quantized: ExportedProgram
) -> None:
    compiled = torch._inductor.aoti_load_package(str(packages["int8"]))
    program = quantized.module()
    with torch.no_grad():
        for size in (1, 2, 6):
            assert torch.equal(compiled(X[:size]), program(X[:size]))


@pytest.mark.compile
def test_a_package_that_computes_in_float32_is_refused_where_int8_was_wanted(
    packages: dict[str, Path], quantized: ExportedProgram
) -> None:
    wanted, file = quantized, packages["float32"]
    with pytest.raises(BlessingRefused, match="is to compute in int8 and doesn't") as caught:
        require_int8(wanted, file, file.with_suffix(".so"))
    assert "13 layers" in caught.value.expected
    assert "0 such calls" in caught.value.got
    file = packages["int8"]
    require_int8(wanted, file, file.with_suffix(".so"))
    # Nothing is wanted of a graph without such layers.
    require_int8(export(Net(), X), packages["float32"], file.with_suffix(".so"))


def test_int8_is_for_levels_with_int8_dot_products_alone(
    quantized: ExportedProgram,
) -> None:
    program, plain = quantized, export(Net(), X)
    for slug, target in TARGETS.items():
        require_int8_level(plain, target)
        if slug in ("cpu-avx2-vnni", "cpu-avx512-vnni", "cpu-amx"):
            require_int8_level(program, target)
            continue
        with pytest.raises(BlessingRefused, match=f"int8 isn't for {slug}"):
            require_int8_level(program, target)
