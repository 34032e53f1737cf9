"""What is shipped checks its inputs; generated code that isn't known is no silent exception."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._inductor.codecache import AotCodeCompiler

from artifacts.errors import EnvironmentLacking
from tasks.compiling.input_checks import checked_inputs, turn_on
from tests.tasks.passes.exporting import export

_CODE = """
static void check_input_0(
    if (x_size[0] < 2) { ss << "expected it to be >= 2, " << "but got: "; }
    if (x_size[1] < 2) { ss << "expected it to be >= 2, " << "but got: "; }
}
static void check_input_1(
    if (y_size[0] < 2) { ss << "expected it to be >= 2, " << "but got: "; }
}
const static bool result = env_var_value != nullptr && env_var_value[0] != '0';
"""


def test_checks_are_on_and_begin_where_the_range_does() -> None:
    code = turn_on(_CODE, {(0, 0): 1})
    assert "env_var_value == nullptr || env_var_value[0] != '0'" in code
    first, second = code.split("static void check_input_1(")
    assert 'if (x_size[0] < 1) { ss << "expected it to be >= 1, "' in first
    assert 'if (x_size[1] < 2) { ss << "expected it to be >= 2, "' in first
    assert "if (y_size[0] < 2)" in second


def test_code_without_the_switch_is_refused() -> None:
    with pytest.raises(EnvironmentLacking, match="check their inputs"):
        turn_on("int main() {}", {})


def test_torchs_compiler_is_what_it_was_afterwards() -> None:
    before = vars(AotCodeCompiler)["compile"]
    with checked_inputs(export(nn.Linear(8, 4), torch.randn(5, 8))):
        assert vars(AotCodeCompiler)["compile"] is not before
    assert vars(AotCodeCompiler)["compile"] is before
