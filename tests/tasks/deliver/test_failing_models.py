"""The mistakes that are made most in forward and its inputs: their line, and what helps."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import rnn

from handoff.artifacts.errors import DeliveryUnsound, HandoffError, NotCapturable, error_from_record
from handoff.infra.explaining.explain import hint_for_error
from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.loading import read_delivery

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(0, 100, (4, 6), generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([6, 3, 2, 5])


def deliver_it(model: nn.Module, folder: Path, *inputs: Tensor, **options: Any) -> DeliverResult:
    torch.manual_seed(0)
    return deliver(model, inputs, folder, name="toy", **options)


def line_at(error: HandoffError) -> str:
    """Return what is written on the line that a refusal names, which has to be of this file."""
    file, _, number = error.where.rpartition(":")
    assert file.endswith("test_failing_models.py")
    return Path(__file__).read_text().splitlines()[int(number) - 1].strip()


class Encoder(nn.Module):
    def __init__(self, rows: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 8)
        self.rows = rows

    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        found = self.table(ids)
        found = found.masked_fill(mask.unsqueeze(-1), 0.0)
        rows = self.rows or ids.shape[0]
        return found.view(rows, 6, 2, 4)


MASK = torch.zeros(4, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ("ids", "mask", "line", "expected"),
    [
        (IDS.float(), MASK, "found = self.table(ids)", "ids float32 [4, 6], mask bool [4, 6]"),
        (IDS, MASK.long(), "found = found.masked_fill(", "ids int64 [4, 6], mask int64 [4, 6]"),
        (IDS[0], MASK[0], "return found.view(", "ids int64 [6], mask bool [6]"),
    ],
)
def test_example_inputs_that_a_model_fails_on_are_reported_with_names_dtypes_and_the_line(
    ids: Tensor, mask: Tensor, line: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(DeliveryUnsound, match="the model fails on its example inputs") as caught:
        deliver_it(Encoder(), tmp_path / "toy", ids, mask)
    assert line_at(caught.value).startswith(line)
    assert caught.value.got.startswith(f"`{line}")
    assert expected in caught.value.expected
    assert "finite" not in str(caught.value)
    if ids.is_floating_point():
        assert "Ids are whole numbers" in caught.value.remedy


def test_a_size_that_is_baked_in_is_to_be_taken_from_the_shape(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnsound, match=r"batch = 5.*Take sizes from x\.shape") as caught:
        deliver_it(Encoder(rows=4), tmp_path / "toy", IDS, MASK)
    assert line_at(caught.value).startswith("return found.view(")
    # As it reaches the command line, from the process that it was raised in.
    error = error_from_record(caught.value.as_record())
    assert (type(error), error.exit_code) == (DeliveryUnsound, 2)
    assert hint_for_error(error) == "handoff explain size-baked-in"
    deliver_it(Encoder(), tmp_path / "toy", IDS, MASK)
    deliver_it(Encoder(rows=4), tmp_path / "fixed", IDS, MASK, dynamic={})


class Packs(nn.Module):
    """The last step of each row, as it is mostly written."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        packed = rnn.pack_padded_sequence(
            self.table(ids), lengths, batch_first=True, enforce_sorted=False
        )
        return self.rnn(packed)[1][0][-1]


class TakesLastSteps(Packs):
    """The same, as the refusal says it."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Any:
        out, _ = self.rnn(self.table(ids))
        return out[torch.arange(out.shape[0]), lengths.clamp(1, out.shape[1]) - 1]


def test_packed_sequences_are_refused_with_what_does_the_same(tmp_path: Path) -> None:
    with pytest.raises(NotCapturable, match=r"can't follow a packed sequence.*mask") as caught:
        deliver_it(Packs(), tmp_path / "toy", IDS, LENGTHS)
    assert line_at(caught.value) == "return self.rnn(packed)[1][0][-1]"
    assert "out[torch.arange(out.shape[0]), lengths.clamp(1, out.shape[1]) - 1]" in (
        caught.value.remedy
    )
    model = TakesLastSteps().eval()
    deliver_it(
        model, tmp_path / "toy", IDS, LENGTHS, ranges={"lengths": (1, 64)},
        dynamic={"ids": {0: "batch", 1: "length"}, "lengths": {0: "batch"}},
        dimensions={"length": (1, 64)},
    )  # fmt: skip
    packing = Packs().eval()
    packing.load_state_dict(model.state_dict())
    delivered = read_delivery(tmp_path / "toy").module(IDS, LENGTHS)
    torch.testing.assert_close(delivered, packing(IDS, LENGTHS))


def test_packed_sequences_of_several_lengths_are_refused_with_the_same_words(
    tmp_path: Path,
) -> None:
    """At another length the lengths of the example don't fit: that isn't the fault."""
    two = {"ids": {0: "batch", 1: "length"}, "lengths": {0: "batch"}}
    with pytest.raises(NotCapturable, match="the model packs sequences") as caught:
        deliver_it(Packs(), tmp_path / "toy", IDS, LENGTHS, dynamic=two)
    assert "lengths.clamp(1, out.shape[1]) - 1]" in caught.value.remedy
    assert "rnn" in line_at(caught.value)


class LastOf(Encoder):
    def forward(self, ids: Tensor, mask: Tensor) -> Any:
        return self.table(ids)[torch.arange(ids.shape[0]), mask - 1]


def test_counts_that_are_too_large_for_another_size_are_to_be_clamped(tmp_path: Path) -> None:
    two = {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch"}}
    with pytest.raises(DeliveryUnsound, match="If ids or mask holds counts that are too large"):
        deliver_it(LastOf(), tmp_path / "toy", IDS, LENGTHS, dynamic=two, ranges={"mask": (1, 6)})


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 4)

    def forward(self, ids: Tensor, x: Tensor) -> Any:
        return self.table(ids).sum(0), x * 2.0


def test_inputs_without_a_common_batch_are_said_to_be_fixed_and_how_they_vary(
    tmp_path: Path,
) -> None:
    ids, x = torch.arange(12), torch.randn(3, 2)
    note = deliver_it(Apart(), tmp_path / "fixed", ids, x).notes[0]
    assert "all sizes are fixed to the example's" in note
    assert "(ids 12, x 3)" in note
    varying = {"ids": {0: "words"}, "x": {0: "batch"}}
    for folder, inputs, model, dynamic in (
        ("varying", (ids, x), Apart(), varying), ("together", (IDS, MASK), Encoder(), None)
    ):  # fmt: skip
        notes = deliver_it(model, tmp_path / folder, *inputs, dynamic=dynamic).notes
        assert not any("are fixed to the example's" in one for one in notes)


class Copies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        return copy.deepcopy(self.layer)(x)


class Differentiates(Copies):
    def forward(self, x: Tensor) -> Any:
        with torch.enable_grad():
            given = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self.layer(given).sum(), given)
        return gradient


class Autocasts(Copies):
    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


class Casts(Copies):
    def forward(self, x: Tensor) -> Any:
        weight, bias = self.layer.weight.bfloat16(), self.layer.bias.bfloat16()
        return nn.functional.linear(x.bfloat16(), weight, bias)


class MapsRows(Copies):
    def forward(self, x: Tensor) -> Any:
        return torch.vmap(self.layer)(x)


class HoldsScript(Copies):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.jit.script(nn.Linear(8, 4))  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Branches(Copies):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:
            return self.layer(x)
        return x[:, :4]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Copies, r"return copy\.deepcopy.*Copy modules in __init__"),
        (Differentiates, r"py:\d+: .*`\(gradient,\) =.*gradients, which.*Write the derivative out"),
        (Autocasts, r"py:\d+: .*`with torch\.autocast.*x\.to\(torch\.bfloat16\)"),
        (MapsRows, r"py:\d+: .*`return torch\.vmap\(self\.layer\).*whole batch"),
        (
            HoldsScript,
            r"TorchScript already \(layer\)\. Use the nn.Module that it was scripted from",
        ),
        (Branches, r"`if x\.sum\(\) > 0:`.*torch\.where"),
    ],
)
def test_what_no_graph_can_hold_is_reported_with_what_helps_against_it(
    kind: type[nn.Module], message: str, tmp_path: Path
) -> None:
    with pytest.raises(NotCapturable, match=message) as caught:
        deliver_it(kind(), tmp_path / "toy", X)
    assert caught.value.exit_code == 3
    assert "'handoff deliver'" not in caught.value.remedy
    assert "(unhinted" not in str(caught.value)
    assert hint_for_error(caught.value) == "handoff explain NotCapturable"


@pytest.mark.parametrize("kind", [Casts])
def test_what_the_refusals_advise_is_delivered(kind: type[nn.Module], tmp_path: Path) -> None:
    deliver_it(kind(), tmp_path / "toy", X)
