"""The verdict on a delivery: every careless one is named for what it is, and a clean one passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from handoff.artifacts.delivery.signature import Dimension
from handoff.tasks.inspect.behaviour import run_twice
from handoff.tasks.inspect.messages import TraceabilityJob, TraceabilityResult
from handoff.tasks.inspect.step import run
from handoff.tasks.intake.loading import read_delivery
from tests.tasks.deliveries import write_delivery


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def net(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Noise(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x + torch.randn_like(x))


class ActiveDropout(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.net(x), 0.5)


class BatchInView(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).view(8, 2, 2)


class ChangesInput(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.mul_(2.0))


class BurntIn(Base):
    """A constant that is drawn anew in every call, and once for all in the trace."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x + torch.rand(16))


class WithBatchNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.BatchNorm1d(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(self.norm(x))


def judge(
    tmp_path: Path, module: nn.Module, golden: tuple[torch.Tensor, ...] | None = None
) -> TraceabilityResult:
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    folder = write_delivery(tmp_path / "delivery", module, {"x": x}, golden=golden)
    return run(TraceabilityJob(folder))


def codes(result: TraceabilityResult, severity: str) -> set[str]:
    return {finding.code for finding in result.findings if finding.severity == severity}


@pytest.mark.parametrize("module", [Base().eval(), WithBatchNorm().eval()])
def test_a_clean_model_is_sound_without_a_finding(module: nn.Module, tmp_path: Path) -> None:
    result = judge(tmp_path, module)
    assert result.verdict == "sound"
    assert result.findings == ()


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (Noise(), "not-repeatable"),
        (ActiveDropout(), "not-repeatable"),
        (BatchInView(), "size-baked-in"),
        (BurntIn(), "golden-mismatch"),
    ],
)
def test_a_careless_model_is_unsound(module: nn.Module, code: str, tmp_path: Path) -> None:
    result = judge(tmp_path, module.eval())
    assert result.verdict == "unsound"
    assert code in codes(result, "unsound")


class Places(Base):
    """Adds a place to each row, of which it has 40."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(40, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x + self.places(torch.arange(x.shape[0])))


def judge_up_to(tmp_path: Path, largest: int) -> TraceabilityResult:
    folder = write_delivery(
        tmp_path / str(largest), Places().eval(), {"x": torch.randn(8, 16)},
        batch=Dimension(1, largest),
    )  # fmt: skip
    return run(TraceabilityJob(folder))


@pytest.mark.parametrize("largest", [41, 512])
def test_the_size_from_which_on_the_model_fails_is_found(largest: int, tmp_path: Path) -> None:
    (finding,) = judge_up_to(tmp_path, largest).findings
    assert (finding.code, finding.severity) == ("size-beyond-model", "unsound")
    message = f"batch is declared up to {largest}, and the model runs up to 40: at 41 it fails"
    assert message in finding.message
    assert "{'batch': (1, 40)}" in finding.remedy
    assert "While executing" not in finding.message
    line = int(finding.where.removeprefix("module.py:"))
    source = (tmp_path / str(largest) / "module.py").read_text().splitlines()[line - 1]
    assert "places" in source


def test_the_largest_size_that_the_model_has_a_table_for_is_sound(tmp_path: Path) -> None:
    assert judge_up_to(tmp_path, 40).findings == ()


def test_weights_of_another_run_are_noticed(tmp_path: Path) -> None:
    result = judge(tmp_path, Base().eval(), golden=(torch.randn(8, 4),))
    assert codes(result, "unsound") == {"golden-mismatch"}


def test_weights_that_are_not_numbers_are_noticed(tmp_path: Path) -> None:
    module = Base().eval()
    module.first.weight.data[0, 0] = float("nan")
    assert "non-finite-weights" in codes(judge(tmp_path, module), "unsound")


def test_a_model_left_in_training_mode_is_noticed(tmp_path: Path) -> None:
    result = judge(tmp_path, WithBatchNorm().train())
    assert "training-mode" in codes(result, "unsound")


def test_an_input_that_is_changed_in_place_limits_the_release(tmp_path: Path) -> None:
    result = judge(tmp_path, ChangesInput().eval())
    assert result.verdict == "sound within limits"
    assert codes(result, "limit") == {"changes-input"}


def test_a_random_operator_is_reported_with_its_line(tmp_path: Path) -> None:
    result = judge(tmp_path, Noise().eval())
    (finding,) = [f for f in result.findings if f.code == "not-repeatable"]
    line = int(finding.where.removeprefix("module.py:"))
    source = (tmp_path / "delivery" / "module.py").read_text().splitlines()[line - 1]
    assert "randn_like" in source


class Accumulates(Base):
    """Adds 48 000 rows to 50 places, which eager does in any order with several threads."""

    ids: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("ids", torch.randint(50, (48_000,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.net(x).repeat(6000, 1)
        return torch.zeros(50, 4).index_put((self.ids,), rows, accumulate=True)


def _run_twice_in_threads(tmp_path: Path, module: torch.nn.Module) -> set[tuple[str, str]]:
    torch.manual_seed(0)
    folder = write_delivery(tmp_path / "delivery", module.eval(), {"x": torch.randn(8, 16)})
    delivery, threads = read_delivery(folder), torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = list(run_twice(delivery, delivery.cases[0].inputs))
    finally:
        torch.set_num_threads(threads)
    assert not torch.are_deterministic_algorithms_enabled()
    return {(finding.code, finding.severity) for finding in found}


def test_sums_in_any_order_are_reported_and_refuse_nothing(tmp_path: Path) -> None:
    # By luck the threads may agree, and then there is nothing to report.
    assert _run_twice_in_threads(tmp_path, Accumulates()) <= {("sums-in-any-order", "note")}


def test_random_numbers_are_no_sums_in_any_order(tmp_path: Path) -> None:
    assert ("not-repeatable", "unsound") in _run_twice_in_threads(tmp_path, Noise())


class KeepsASum(Base):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.mean())
        return self.net(x)


class MasksWithInfinity(Base):
    """What a ranking model does with items that may not be shown."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x[:, :4] > 0, self.net(x), -torch.inf)


def test_a_model_that_writes_to_a_buffer_is_unsound(tmp_path: Path) -> None:
    result = judge(tmp_path, KeepsASum().eval())
    (finding,) = [f for f in result.findings if f.code == "changes-state"]
    assert finding.severity == "unsound"
    assert "total" in finding.message


def test_an_input_that_nothing_uses_limits_the_release(tmp_path: Path) -> None:
    class Unused(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + 1.0

    inputs = {"x": torch.randn(8, 16), "y": torch.randn(8, 2)}
    folder = write_delivery(tmp_path / "delivery", Unused().eval(), inputs)
    (finding,) = run(TraceabilityJob(folder)).findings
    assert (finding.code, finding.severity) == ("unused-input", "limit")
    assert "the input y " in finding.message


def test_an_example_that_fails_is_a_finding_and_reported_once(tmp_path: Path) -> None:
    inputs = {"x": torch.randn(6, 16)}
    folder = write_delivery(
        tmp_path / "delivery", BatchInView().eval(), inputs, golden=(torch.zeros(6, 4),)
    )
    result = run(TraceabilityJob(folder))
    assert result.verdict == "unsound"
    (finding,) = [f for f in result.findings if f.code == "example-fails"]
    assert "shape '[8, 2, 2]' is invalid" in finding.message


def test_golden_outputs_may_hold_infinities(tmp_path: Path) -> None:
    assert judge(tmp_path, MasksWithInfinity().eval()).findings == ()


@pytest.mark.parametrize("fault", ["other numbers", "infinity of the other sign", "no infinity"])
def test_an_infinity_in_the_golden_outputs_hides_nothing(fault: str, tmp_path: Path) -> None:
    module = MasksWithInfinity().eval()
    torch.manual_seed(0)
    with torch.no_grad():
        right = module(torch.randn(8, 16))
    assert right.isinf().any()
    wrong = {
        "other numbers": torch.where(right.isinf(), right, right * 1.5 + 1.0),
        "infinity of the other sign": torch.where(right.isinf(), -right, right),
        "no infinity": torch.where(right.isinf(), torch.zeros_like(right), right),
    }[fault]
    assert codes(judge(tmp_path, module, golden=(wrong,)), "unsound") == {"golden-mismatch"}
