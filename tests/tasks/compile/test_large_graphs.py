"""Graphs of thousands of operators: the same package, compiled in parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch._inductor.codecache import AotCodeCompiler

from handoff.tasks.compile import step
from handoff.tasks.compile.step import split_constructor, split_large_programs
from tests.tasks.optimize.passes.exporting import export


def described(weights: int) -> list[str]:
    """Return what Inductor writes of so many weights."""
    fields = ("name", "shape", "original_fqn")
    return [f"    constants_info_[{i}].{f} = {{{i}, 1}};" for i in range(weights) for f in fields]


@pytest.mark.parametrize("weights", [0, 1, 64, 65, 200])
def test_every_64_weights_are_described_in_a_function_of_their_own(weights: int) -> None:
    code = ["Model::Model() {", *described(weights), "    update(constants_map);", "}"]
    split = split_constructor("\n".join(code)).split("\n")
    calls = [line for line in split if "noinline" in line]
    assert len(calls) == split.count("    }();") == -(-weights // 64)
    assert [line for line in split if line not in (*calls, "    }();")] == code
    assert split[-2:] == code[-2:], "what follows is the constructor's own"


def test_what_is_no_description_stays_where_it_is() -> None:
    code = "\n".join(["use(constants_info_[0].name);", "auto& one = constants_info_[0];"])
    assert split_constructor(code) == code


@pytest.mark.compile
def test_a_large_graph_s_package_computes_what_the_model_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "LARGE_PROGRAM_OPERATORS", 10)
    monkeypatch.setattr(step, "_WEIGHTS_AT_ONCE", 8)
    torch.manual_seed(0)
    module = nn.Sequential(*[one for _ in range(9) for one in (nn.Linear(4, 4), nn.Tanh())]).eval()
    x = torch.randn(2, 4)
    program = export(module, x)
    seen: list[str] = []

    def split(code: str) -> str:
        seen.append(torch._inductor.config.aot_inductor.compile_wrapper_opt_level)
        return split_constructor(code)

    monkeypatch.setattr(step, "split_constructor", split)
    with torch.no_grad(), split_large_programs(program):
        file = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2")
        )
    assert seen == ["O0"]
    assert torch._inductor.config.aot_inductor.compile_wrapper_opt_level == "O1"
    torch.testing.assert_close(torch._inductor.aoti_load_package(file)(x), module(x))


def test_a_usual_graph_is_compiled_as_ever() -> None:
    program = export(nn.Linear(4, 4).eval(), torch.randn(2, 4))
    before = vars(AotCodeCompiler)["compile"]
    with split_large_programs(program):
        assert vars(AotCodeCompiler)["compile"] is before
