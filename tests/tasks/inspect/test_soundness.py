"""What the verdict rests on: each careless habit by its name and line, and no clean model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from handoff.artifacts.delivery.contract import CONTRACT_FILE, format_contract, read_contract
from handoff.artifacts.release.evidence import Finding
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect import behaviour
from handoff.tasks.inspect.graph import looks_random
from handoff.tasks.inspect.messages import TraceabilityJob, TraceabilityResult
from handoff.tasks.inspect.step import run
from tests.tasks.deliveries import write_delivery

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def net(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))  # type: ignore[no-any-return]


class BurntIn(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.1 * torch.rand(16))


class BurntInTable(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * torch.linspace(0.5, 1.5, 16))


CALLS = [0]


class Counts(Base):
    def forward(self, x: Tensor) -> Tensor:
        CALLS[0] = 1
        return self.net(x) * CALLS[0]


class DropsOut(Base):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.net(x), 0.5)


class Attends(Base):
    """Uses operators that can draw and are asked not to."""

    def forward(self, x: Tensor) -> Tensor:
        y = functional.dropout(x, 0.5, self.training).view(-1, 1, 4, 4)
        y = functional.scaled_dot_product_attention(y, y, y, dropout_p=0.0)
        return self.net(functional.rrelu(y.flatten(1), training=False))


class NormOnTop(Base):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.norm(x))


class Forgets(Base):
    """Lost its input on the way."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(torch.ones(2, 16))


class ForgetsHalf(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), self.first.bias * 2.0


class Dead(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.net(x) - 1e6)


class MixesRows(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x - x.mean(0))


class MeansAll(Base):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.net(x), x.mean()


class LooksUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x[:, 0].long()) * x[:, 1:2]  # type: ignore[no-any-return]


class ReadsValue(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * x.max().item()


class TurnsDouble(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)


class GivesSpectrum(Base):
    def forward(self, x: Tensor) -> Tensor:
        spectrum: Tensor = torch.fft.fft(self.net(x))
        return spectrum


class MakesNan(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.log(self.net(x) - 100.0)


class SingularValues(Base):
    """Computes its vectors, too, and rounds otherwise, under a dispatch mode."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        table = self.net(x).reshape(-1, 1, 4) * x.reshape(-1, 4, 4)
        return torch.linalg.svdvals(table), torch.linalg.eigvalsh(table @ table.mT)


class CountsCalls(Base):
    """Draws nothing, and gives something else with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.calls, Tensor)
        return self.net(x) + self.calls.add_(x.new_ones(()))


class Plain(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def judge(
    folder: Path, module: nn.Module, golden: tuple[Tensor, ...] | None = None, x: Tensor = X
) -> TraceabilityResult:
    return run(TraceabilityJob(write_delivery(folder / "toy", module, {"x": x}, golden=golden)))


def find(result: TraceabilityResult, code: str) -> Finding:
    found = [finding for finding in result.findings if finding.code == code]
    assert found, result.findings
    return found[0]


@pytest.mark.parametrize(
    ("module", "code", "severity", "written"),
    [
        (BurntIn(), "burnt-in-random-constant", "unsound", "_tensor_constant0"),
        (BurntInTable(), "burnt-in-constant", "note", "_tensor_constant0"),
        (Counts(), "fixed-number", "limit", "* 1"),
        (DropsOut(), "random-operator", "unsound", "dropout"),
        (Forgets(), "constant-output", "unsound", "second"),
        (ForgetsHalf(), "constant-output", "limit", "* 2.0"),
        (TurnsDouble(), "unexpected-float64", "limit", "_tensor_constant0"),
        (ReadsValue(), "value-read", "limit", "item()"),
        (LooksUp(), "ids-as-floats", "limit", "long()"),
    ],
)
def test_a_careless_habit_is_named_with_its_line(
    module: nn.Module, code: str, severity: str, written: str, tmp_path: Path
) -> None:
    x = X.abs() if isinstance(module, LooksUp) else X
    finding = find(judge(tmp_path, module.eval(), golden=(), x=x), code)
    assert finding.severity == severity
    line = int(finding.where.removeprefix("module.py:"))
    assert written in (tmp_path / "toy" / "module.py").read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    ("module", "code", "severity", "message"),
    [
        (NormOnTop(), "assumed-evaluation-mode", "limit", "norm.*never seen a batch"),
        (Dead(), "unmoved-output", "limit", "0 everywhere"),
        (MixesRows(), "rows-depend-on-each-other", "limit", "output 0 of a row depends"),
        (MeansAll(), "rows-depend-on-each-other", "limit", "output 1 has no row for each row"),
        (GivesSpectrum(), "complex-output", "unsound", "output 0 is complex64"),
        (MakesNan(), "non-finite-output", "unsound", "NaN on its own example"),
    ],
)
def test_a_careless_habit_is_named(
    module: nn.Module, code: str, severity: str, message: str, tmp_path: Path
) -> None:
    import re

    finding = find(judge(tmp_path, module.eval(), golden=()), code)
    assert finding.severity == severity
    assert re.search(message, finding.message)


class Neighbours(nn.Module):
    """Each row's difference from the mean of all: a batch of one has no neighbours."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0, keepdim=True)).sum(1)


def test_an_output_that_stands_still_at_small_sizes_alone_is_not_called_unmoved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(behaviour, "_small_sizes", lambda _: {"batch": 1})
    result = judge(tmp_path, Neighbours().eval(), golden=())
    codes = {found.code for found in result.findings}
    assert "unmoved-output" not in codes


@pytest.mark.parametrize("module", [DropsOut(), CountsCalls()])
def test_what_gives_another_output_when_it_is_run_again_is_unsound(
    module: nn.Module, tmp_path: Path
) -> None:
    finding = find(judge(tmp_path, module.eval(), golden=()), "not-repeatable")
    assert finding.severity == "unsound"


@pytest.mark.parametrize("kind", [Plain, NormOnTop, BurntInTable, Counts, Attends, SingularValues])
def test_what_golden_outputs_prove_is_no_finding(kind: type[nn.Module], tmp_path: Path) -> None:
    deliver(kind().eval(), (X,), tmp_path / "toy", name="toy")
    result = run(TraceabilityJob(tmp_path / "toy"))
    assert result.verdict == "sound"
    assert {finding.code for finding in result.findings} <= {"lineage-incomplete"}


def test_golden_outputs_of_training_mode_differ_from_wrong_weights(tmp_path: Path) -> None:
    model = NormOnTop().train()
    golden = model(X * 3.0 + 1.0).detach()
    x = X * 3.0 + 1.0
    trained = find(judge(tmp_path / "a", model, golden=(golden,), x=x), "golden-in-training-mode")
    assert trained.severity == "unsound"
    other = find(judge(tmp_path / "b", model, golden=(golden + 1.0,), x=x), "golden-mismatch")
    assert other.severity == "unsound"


def test_rows_may_depend_on_each_other_where_that_is_declared(tmp_path: Path) -> None:
    folder = write_delivery(tmp_path / "toy", MixesRows().eval(), {"x": X})
    contract = replace(read_contract(folder), batch_invariant=False)
    (folder / CONTRACT_FILE).write_text(format_contract(contract))
    assert run(TraceabilityJob(folder)).findings == ()


def test_lineage_that_the_recipe_requires_is_part_of_the_verdict(tmp_path: Path) -> None:
    folder = write_delivery(tmp_path / "toy", Plain().eval(), {"x": X})
    assert run(TraceabilityJob(folder, ("commit",))).verdict == "sound"
    result = run(TraceabilityJob(folder, ("commit", "training_run")))
    assert result.verdict == "unsound"
    assert "requires training_run" in find(result, "lineage-incomplete").message


def test_a_finding_names_the_line_of_the_models_own_code(tmp_path: Path) -> None:
    deliver(LooksUp().eval(), (X.abs(),), tmp_path / "toy", name="toy")
    where = find(run(TraceabilityJob(tmp_path / "toy")), "ids-as-floats").where
    line = int(where.removesuffix(")").rpartition(":")[2])
    assert "x[:, 0].long()" in Path(__file__).read_text().splitlines()[line - 1]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(16), torch.randn(4, 50), 0.1 * torch.rand(3, 224), torch.randn(100, 100),
        torch.rand(40, dtype=torch.float64), torch.rand(64).half(), torch.randperm(64),
    ],
)  # fmt: skip
def test_drawn_values_look_drawn(tensor: Tensor) -> None:
    assert looks_random(tensor)


POSITIONS = torch.arange(50)[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(0.123456789), torch.zeros(40), torch.eye(12), torch.arange(64),
        torch.arange(64).float() / 7.0, torch.linspace(-1, 1, 33), torch.hann_window(64),
        torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225]),
        torch.tril(torch.ones(9, 9)), POSITIONS.sin(), torch.stack([POSITIONS.sin(),
        POSITIONS.cos()], -1).flatten(1), torch.exp(-torch.arange(40.0) / 3.0),
        torch.full((8, 8), float("-inf")).triu(1), torch.tensor([True, False, True]),
        torch.arange(64).view(8, 8).T.flatten(), torch.tensor([1.5, 0.25, 3.75, 2.5, 0.1]),
        10000.0 ** -(torch.arange(0, 64, 2) / 64), torch.logspace(0, 3, 20),
    ],
)  # fmt: skip
def test_written_and_computed_values_do_not(tensor: Tensor) -> None:
    assert not looks_random(tensor)
