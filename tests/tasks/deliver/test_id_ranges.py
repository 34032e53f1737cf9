"""Models with ids, delivered with default options: what their tables hold is what is served."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.signature import TensorSpec
from handoff.artifacts.errors import InputsRefused
from handoff.artifacts.serve.loader import LoadedModel, load
from handoff.tasks.deliver.messages import DeliverResult
from handoff.tasks.deliver.step import deliver
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run as judge
from handoff.tasks.verify.inputs.plan import draw_inputs, plan_cases, special_cases
from tests.tasks.built_release import release_of_delivery

LEAST, MOST = -(2**63), 2**63 - 1
BATCH, STEPS, WIDTH = 6, 5, 8


class Ranks(nn.Module):
    """Embedding: user and item ids `[N]` to a score `[N]`."""

    def __init__(self) -> None:
        super().__init__()
        self.user_embedding = nn.Embedding(5000, WIDTH)
        self.item_embedding = nn.Embedding(300, WIDTH)

    def forward(self, user: Tensor, item: Tensor) -> Any:
        return (self.user_embedding(user) * self.item_embedding(item)).sum(-1)


class Bags(nn.Module):
    """EmbeddingBag: ids `[N, 5]` to `[N, 8]`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(700, WIDTH, mode="sum")

    def forward(self, words: Tensor) -> Any:
        return torch.tanh(self.words(words))


class Shares(nn.Module):
    """One table for what was seen, `[N, 5]`, and for what is offered, `[N]`; 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(900, WIDTH, padding_idx=0)

    def forward(self, seen: Tensor, offered: Tensor) -> Any:
        is_there = (seen != 0).unsqueeze(-1)
        profile = (self.items(seen) * is_there).sum(1) / is_there.sum(1).clamp(min=1)
        return (profile * self.items(offered)).sum(-1)


class Hashes(nn.Module):
    """Any id `[N, 5]`, by its remainder."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets = nn.Embedding(64, WIDTH)

    def forward(self, ids: Tensor) -> Any:
        return self.buckets(ids % 64).mean(1)


class Masks(nn.Module):
    """Tokens `[N, 5]` with a mask: masked scores, and a mean over what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(400, WIDTH)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor, mask: Tensor) -> Any:
        hidden = self.tokens(tokens)
        weights = self.score(hidden).squeeze(-1).masked_fill(mask == 0, -1e4).softmax(-1)
        return (hidden * weights.unsqueeze(-1)).sum(1)


class Places(nn.Module):
    """Tokens, positions and token types, `[N, 5]` each, as BERT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(400, WIDTH)
        self.positions = nn.Embedding(32, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor, positions: Tensor, types: Tensor) -> Any:
        return self.norm(self.tokens(tokens) + self.positions(positions) + self.types(types))


@dataclass(frozen=True)
class Case:
    """A model, an example that holds a few of its ids, and all that its tables hold."""

    make: Callable[[], nn.Module]
    example: dict[str, Tensor]
    ranges: dict[str, tuple[int, int]]


def few(*shape: int, first: int = 21) -> Tensor:
    count = int(torch.tensor(shape).prod())
    return (first + torch.arange(count) % 4).reshape(shape)


CASES = {
    "Embedding": Case(Ranks, {"user": few(BATCH), "item": few(BATCH)},
                      {"user": (0, 4999), "item": (0, 299)}),
    "EmbeddingBag": Case(Bags, {"words": few(BATCH, STEPS)}, {"words": (0, 699)}),
    "shared tables": Case(Shares, {"seen": few(BATCH, STEPS), "offered": few(BATCH)},
                          {"seen": (0, 899), "offered": (0, 899)}),
    "hashed ids": Case(Hashes, {"ids": few(BATCH, STEPS)}, {"ids": (LEAST, MOST)}),
    "masks": Case(Masks, {"tokens": few(BATCH, STEPS), "mask": torch.ones(BATCH, STEPS).long()},
                  {"tokens": (0, 399), "mask": (0, 1)}),
    "positions": Case(
        Places,
        {"tokens": few(BATCH, STEPS), "positions": torch.arange(STEPS).expand(BATCH, STEPS).clone(),
         "types": torch.zeros(BATCH, STEPS).long()},
        {"tokens": (0, 399), "positions": (0, 31), "types": (0, 1)},
    ),
}  # fmt: skip


class Together(nn.Module):
    """All of them in one model: their ids, in the cases' order, to what each makes of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([case.make() for case in CASES.values()])

    def forward(  # noqa: PLR0917 - as many as the models have
        self, user: Tensor, item: Tensor, words: Tensor, seen: Tensor, offered: Tensor,
        ids: Tensor, masked: Tensor, mask: Tensor, tokens: Tensor, positions: Tensor, types: Tensor,
    ) -> Any:  # fmt: skip
        ranks, bags, shares, hashes, masks, places = self.parts
        return (
            ranks(user, item), bags(words), shares(seen, offered),
            hashes(ids), masks(masked, mask), places(tokens, positions, types),
        )  # fmt: skip


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], DeliverResult]:
    """Return what delivers a case: each once, since the tests only read it."""

    @functools.cache
    def once(name: str) -> DeliverResult:
        torch.manual_seed(0)
        case = CASES[name]
        folder = tmp_path_factory.mktemp("delivered") / "toy"
        given = deliver(case.make().eval(), tuple(case.example.values()), folder, name="toy")
        assert given.notes == ()
        return given

    return once


@dataclass(frozen=True)
class Served:
    """The package of all models in one, that model itself, and an example of all its inputs."""

    package: LoadedModel
    model: nn.Module
    example: tuple[Tensor, ...]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Release all of the models as one, as each would be alone."""
    folder = tmp_path_factory.mktemp("served")
    torch.manual_seed(0)
    model = Together().eval()
    example = tuple(ids for case in CASES.values() for ids in case.example.values())
    assert deliver(model, example, folder / "delivery", name="toy").notes == ()
    built = release_of_delivery(folder)
    return Served(load(built.folder, keys=built.key, name="toy"), model, example)


def bounds(spec: TensorSpec) -> tuple[int, int]:
    assert spec.low is not None
    assert spec.high is not None
    return max(int(spec.low), LEAST), min(int(spec.high), MOST)


@pytest.mark.parametrize("name", CASES)
def test_a_contract_has_all_ids_of_the_tables_and_says_which(
    name: str, delivered: Callable[[str], DeliverResult]
) -> None:
    specs = delivered(name).contract.inputs
    assert {spec.name: bounds(spec) for spec in specs} == CASES[name].ranges
    assert not any(spec.is_guessed for spec in specs)
    assert all(spec.origin for spec in specs)


@pytest.mark.parametrize("name", CASES)
def test_such_a_delivery_is_sound(name: str, delivered: Callable[[str], DeliverResult]) -> None:
    judged = judge(TraceabilityJob(delivered(name).folder))
    assert judged.verdict == "sound", judged.findings


@pytest.mark.parametrize("name", CASES)
def test_the_ends_of_each_range_are_verified(
    name: str, delivered: Callable[[str], DeliverResult]
) -> None:
    signature = delivered(name).contract.signature
    cases = plan_cases(signature, seeds=1)
    drawn = [draw_inputs(signature, one) for one in cases]
    drawn += [draw_inputs(signature, one) for one in special_cases(signature, cases[-1].sizes)]
    for place, (low, high) in enumerate(CASES[name].ranges.values()):
        values = torch.cat([inputs[place].flatten() for inputs in drawn])
        assert (int(values.min()), int(values.max())) == (low, high)


@pytest.mark.compile
@pytest.mark.parametrize("name", CASES)
def test_the_served_package_takes_every_id_and_refuses_the_next(name: str, served: Served) -> None:
    example, output = list(served.example), list(CASES).index(name)
    before = [case for case in CASES if list(CASES).index(case) < output]
    first = sum(len(CASES[case].example) for case in before)
    for place, (low, high) in enumerate(CASES[name].ranges.values(), first):
        for values in in_batches(low, high, example[place]):
            given = [values if at == place else tensor for at, tensor in enumerate(example)]
            with torch.no_grad():
                want = served.model(*given)[output]
            torch.testing.assert_close(served.package(*given)[output], want)
        for beyond in (low - 1, high + 1):
            if LEAST <= beyond <= MOST:
                wrong = example[place].clone()
                wrong.view(-1)[-1] = beyond
                given = [wrong if at == place else tensor for at, tensor in enumerate(example)]
                with pytest.raises(InputsRefused, match=f"values from {low} to {high}, got"):
                    served.package(*given)


def in_batches(low: int, high: int, like: Tensor) -> list[Tensor]:
    """Return tensors that hold all numbers of a range; of one without end its ends and more."""
    if high - low > 10_000:
        return [torch.tensor([low, high, -1, 0, 64, 2**40]).repeat_interleave(5).view(like.shape)]
    numbers = torch.arange(low, high + 1)
    parts = numbers.split(like.numel())
    padded = [torch.cat([part, part[-1:].expand(like.numel() - len(part))]) for part in parts]
    return [part.view(like.shape) for part in padded]
