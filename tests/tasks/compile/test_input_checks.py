"""What is shipped checks its inputs; generated code that isn't known is no silent exception."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._inductor.codecache import AotCodeCompiler

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import BlessingRefused, EnvironmentLacking
from handoff.tasks.compile.input_checks import enable_checks, enable_input_checks
from handoff.tasks.compile.messages import AssumedRange
from tests.tasks.optimize.passes.exporting import export

_CODE = """
static void check_input_0(
    if (x_size[0] < 2) { ss << "expected it to be >= 2, " << "but got: "; }
    if (x_size[0] > 15) { ss << "expected to be <= 15, " << "but got: "; }
    if (x_size[1] < 2) { ss << "expected it to be >= 2, " << "but got: "; }
}
static void check_input_1(
    if (y_size[0] < 2) { ss << "expected it to be >= 2, " << "but got: "; }
}
const static bool result = env_var_value != nullptr && env_var_value[0] != '0';
"""


def test_checks_are_on_and_are_those_that_were_declared() -> None:
    code, assumed = enable_checks(_CODE, {(0, 0): Dimension(1, 64), (0, 1): Dimension(2, 15)})
    assert "env_var_value == nullptr || env_var_value[0] != '0'" in code
    first, second = code.split("static void check_input_1(")
    assert 'if (x_size[0] < 1) { ss << "expected it to be >= 1, "' in first
    assert 'if (x_size[0] > 64) { ss << "expected to be <= 64, "' in first
    assert 'if (x_size[1] < 2) { ss << "expected it to be >= 2, "' in first
    assert "if (y_size[0] < 2)" in second
    # From 2 is what torch.export always writes for a range from 1; up to 15 is an assumption.
    assert assumed == [AssumedRange(0, 0, 2, 15)]


def test_multiples_are_checked_beside_the_ends_of_their_range() -> None:
    steps = {(0, 0): Dimension(16, 64, multiple_of=16), (0, 1): Dimension(2, 15)}
    named = _CODE.replace("}\nstatic", "    auto x_stride = x.strides();\n}\nstatic")
    code, assumed = enable_checks(named, steps)
    first, second = code.split("static void check_input_1(")
    assert "if (x_size[0] % 16 != 0)" in first
    assert first.count("%") == 1
    assert "%" not in second
    assert assumed == [AssumedRange(0, 0, 2, 15)]
    with pytest.raises(EnvironmentLacking, match="check their inputs"):
        enable_checks(_CODE, steps)


def test_a_dimension_that_the_compiler_fixed_is_refused() -> None:
    fixed = _CODE.replace("if (x_size[0] < 2)", "if (256 != x_size[0])")
    with pytest.raises(BlessingRefused, match=r"fixed axis 0 of input 0 at 256.* for 1 to 4096"):
        enable_checks(fixed, {(0, 0): Dimension(1, 4096)})


def test_code_without_the_switch_is_refused() -> None:
    with pytest.raises(EnvironmentLacking, match="check their inputs"):
        enable_checks("int main() {}", {})


def test_torchs_compiler_is_what_it_was_afterwards() -> None:
    before = vars(AotCodeCompiler)["compile"]
    with enable_input_checks(export(nn.Linear(8, 4), torch.randn(5, 8))):
        assert vars(AotCodeCompiler)["compile"] is not before
    assert vars(AotCodeCompiler)["compile"] is before
