"""Monte Carlo arithmetic: what rounding moves moves, and what is exact doesn't."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from handoff.tasks.verify.conditioning import Conditioning, run_perturbed
from handoff.tasks.verify.float64 import flatten_tensors

Model = Callable[..., object]


def moves(model: Model, *inputs: torch.Tensor, runs: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far each element of the first output moves, and that output."""
    torch.manual_seed(0)
    with torch.no_grad():
        eager = flatten_tensors(model(*[tensor.clone() for tensor in inputs]))
    return Conditioning(model, inputs, eager, "case").moved(0, runs), eager[0]


_X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x // 0.3,
        lambda x: (x * 2) // 0.3,
        lambda x: x % 0.7,
        lambda x: torch.div(x, 0.3, rounding_mode="floor"),
        lambda x: x.half().float() == x,
        lambda x: x.half().float(),
        lambda x: (x > 0).float().sum(-1) == 32,
        lambda x: torch.floor(x).sum(-1),
        lambda x: torch.where(x > 0, x, -x)[:, ::2].flip(0),
        lambda x: torch.eye(64) @ x,
        lambda x: x.argsort(-1),
        lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
        lambda x: (x * 8).round().to(torch.int8).sum(-1),
        lambda x: torch.round((x * 8).long() * 0.5),
        lambda x: torch.floor((x * 8).long() / 4),
        lambda x: torch.floor((x * 8).long().sum(-1, dtype=torch.float32) * 0.25),
    ],
)
def test_what_rounds_nothing_does_not_move(model: Model) -> None:
    grid = torch.arange(64 * 64).reshape(64, 64) * 0.3 - 100
    for inputs in (_X, grid):
        moved, _ = moves(model, inputs)
        assert float(moved.max()) == 0.0


def test_a_step_that_follows_a_rounded_product_flips_in_some_runs_where_it_is_near() -> None:
    near = torch.arange(48) * 0.3 / 2.5
    far = near + 0.05
    assert 0 < int((moves(lambda x: (x * 2.5) // 0.3, near)[0] > 0).sum()) < 48
    assert float(moves(lambda x: (x * 2.5) // 0.3, far)[0].max()) == 0.0


@pytest.mark.parametrize(
    ("model", "least", "most"),
    [
        (lambda x: x @ x, 1e-7, 3e-6),
        (lambda x: torch.softmax(x * 100, -1), 1e-9, 3e-5),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x)), 1e-8, 3e-6),
        (lambda x: torch.linalg.inv(x + 64 * torch.eye(64)), 1e-9, 3e-6),
        (lambda x: nn.functional.scaled_dot_product_attention(x, x, x), 1e-8, 3e-6),
        (lambda x: x.to(torch.bfloat16) @ x.to(torch.bfloat16), 1e-3, 5e-2),
        (lambda x: x.double() @ x.double(), 1e-16, 3e-14),
        # Nearly constant rows: what is left of them is mostly rounding.
        (lambda x: nn.functional.layer_norm(1000 + 1e-3 * x, (64,)), 1e-3, 1.0),
    ],
)
def test_what_rounds_moves_by_about_its_precision(model: Model, least: float, most: float) -> None:
    moved, eager = moves(model, _X)
    relative = float(moved.mean() / eager.double().square().mean().sqrt())
    assert least < relative < most


def test_a_chaotic_map_lands_anywhere() -> None:
    def logistic(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = 3.99 * x * (1 - x)
        return x

    moved, _ = moves(logistic, torch.rand(64, generator=torch.Generator().manual_seed(0)))
    assert float(moved.mean()) > 0.3


def test_truths_and_classes_move_only_where_numbers_are_near_each_other() -> None:
    weights = torch.randn(64, 10, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    scores = _X.to(torch.bfloat16)
    moved, _ = moves(lambda x: (x @ weights).argmax(-1), scores)
    assert 0.0 <= float((moved > 0).double().mean()) < 0.3
    assert float(moves(lambda x: (x @ weights * 0).argmax(-1), scores)[0].max()) == 0.0


def test_models_that_work_in_place_and_layers_with_kernels_of_their_own_move_too() -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x.mul_(0.1).sum(-1)

    assert float((moves(in_place, _X)[0] > 0).double().mean()) > 0.9
    torch.manual_seed(0)
    recurrent = nn.LSTM(64, 16, batch_first=True)
    moved, _ = moves(lambda x: recurrent(x)[0], _X[None])
    assert 1e-9 < float(moved.mean()) < 1e-5
    convolution = nn.Conv1d(64, 8, 3)
    moved, _ = moves(convolution, _X[None])
    assert 1e-8 < float(moved.mean()) < 1e-5


def test_the_same_seed_moves_alike_and_inputs_and_weights_stay_as_they_are() -> None:
    layer = nn.Linear(64, 8)
    before, kept = layer.weight.clone(), _X.clone()
    first, again = (run_perturbed(layer, (_X,), seed=3)[0] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, run_perturbed(layer, (_X,), seed=4)[0])
    assert torch.equal(layer.weight, before)
    assert torch.equal(_X, kept)


def test_more_runs_never_tell_of_less() -> None:
    conditioning = Conditioning(lambda x: x @ x, (_X,), (_X @ _X,), "case")
    few = conditioning.moved(0, 2).clone()
    assert bool((conditioning.moved(0, 6) >= few).all())


def test_what_a_model_gives_otherwise_than_it_should_is_no_move() -> None:
    right = _X.clamp(max=0.5)
    wrong = Conditioning(lambda x: x.clamp(max=0.4), (_X,), (right,), "case")
    assert float(wrong.moved(0, 4).max()) == 0.0
    other = Conditioning(lambda x: x[:3], (_X,), (right,), "case")
    assert float(other.moved(0, 4).max()) == 0.0, "nor is another shape"
