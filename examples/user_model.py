"""`user_model`: a small recommender over two-dimensional sequences.

The prototype measured a model "of two-dimensional sequence data with many `torch.where` and
`torch.mul`" that it doesn't show. This one is of that kind: a user's clicks, carts and purchases
are sequences of item and category ids with a watch time; each is cleaned, gated, weighted by age
and pooled under a mask, crossed with the candidate item, and scored by a small network. As in the
prototype, the training side has left a dropout and a loss in the forward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ITEMS, CATEGORIES, WIDTH, LENGTH = 20_000, 500, 32, 50
_EVENTS = ("clicks", "carts", "purchases")


class SequencePooling(nn.Module):
    """Pools one kind of event: `[N, L]` ids and seconds become `[N, 2 * WIDTH]`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(WIDTH))
        self.age = nn.Parameter(torch.linspace(-2.0, 0.0, LENGTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, embedded: Tensor, ids: Tensor, seconds: Tensor, target: Tensor) -> Tensor:
        """Return the masked mean and the attention towards `target` `[N, WIDTH]`."""
        present = ids > 0
        zero = torch.zeros_like(seconds)
        # Watch times are noisy: none for padding, no negative ones, and none beyond ten minutes.
        watched = torch.where(present, seconds, zero)
        watched = torch.where(watched > 0.0, watched, zero)
        watched = torch.where(watched < 600.0, watched, torch.full_like(seconds, 600.0))
        short = watched < 3.0
        strength = torch.where(short, torch.mul(watched, 0.1), torch.log1p(watched))
        weight = torch.mul(strength, torch.exp(self.age))
        weight = torch.where(present, weight, zero)
        gated = torch.mul(embedded, torch.sigmoid(self.gate))
        gated = torch.where(gated > 0.0, gated, torch.mul(gated, 0.2))
        weighted = torch.mul(gated, weight.unsqueeze(-1))
        total = torch.where(weight.sum(1) > 0.0, weight.sum(1), torch.ones_like(weight[:, 0]))
        mean = torch.mul(weighted.sum(1), torch.reciprocal(total).unsqueeze(-1))
        score = torch.mul(gated, target.unsqueeze(1)).sum(-1)
        score = torch.where(present, torch.mul(score, WIDTH**-0.5), torch.full_like(score, -1e9))
        attention = torch.softmax(score, dim=1)
        attention = torch.where(present, attention, zero)
        attended = torch.mul(gated, attention.unsqueeze(-1)).sum(1) + self.bias
        return torch.cat([mean, attended], dim=1)


class UserModel(nn.Module):
    """Scores a candidate item for a user by the user's three event sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=0)
        self.categories = nn.Embedding(CATEGORIES, WIDTH, padding_idx=0)
        self.pools = nn.ModuleDict({event: SequencePooling() for event in _EVENTS})
        self.network = nn.Sequential(
            nn.Linear(2 * WIDTH * len(_EVENTS) + 2 * WIDTH, 128),
            nn.PReLU(),
            nn.Dropout(0.2),
            nn.Linear(128, 64),
            nn.PReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 1),
        )
        for part in self.network:
            if isinstance(part, nn.Linear):
                nn.init.kaiming_normal_(part.weight)

    def forward(
        self, items: Tensor, categories: Tensor, seconds: Tensor, candidate: Tensor, label: Tensor
    ) -> Tensor:
        """Map `items`, `categories`, `seconds` `[N, 3, L]` and `candidate` `[N]` to a loss.

        The deployed model gives the scores `[N]`, because the tracer leaves the loss out.
        """
        target = self.items(candidate)
        pooled = []
        for index, event in enumerate(_EVENTS):
            ids, kinds = items[:, index], categories[:, index]
            known = torch.where(ids > 0, kinds, torch.zeros_like(kinds))
            embedded = self.items(ids) + torch.mul(self.categories(known), 0.5)
            pooled.append(self.pools[event](embedded, ids, seconds[:, index], target))
        crossed = torch.mul(target, pooled[0][:, :WIDTH])
        crossed = torch.where(crossed.abs() > 1e-6, crossed, torch.zeros_like(crossed))
        score = self.network(torch.cat([*pooled, target, crossed], dim=1)).squeeze(1)
        return nn.BCEWithLogitsLoss()(score, label)  # type: ignore[no-any-return]


def build() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, object]]:
    """Return the model, 64 users, and a batch that may be 1 to 1024."""
    torch.manual_seed(0)
    model = UserModel().eval()
    count = 64
    shape = (count, len(_EVENTS), LENGTH)
    items = torch.randint(0, ITEMS, shape)
    items = torch.where(torch.rand(shape) < 0.3, torch.zeros_like(items), items)
    categories = torch.randint(0, CATEGORIES, shape)
    seconds = torch.rand(shape) * 700.0 - 20.0
    inputs = (items, categories, seconds, torch.randint(1, ITEMS, (count,)), torch.rand(count))
    options: dict[str, object] = {
        "name": "user-model",
        "dimensions": {"batch": (1, 1024)},
        "ranges": {
            "items": (0, ITEMS - 1),
            "categories": (0, CATEGORIES - 1),
            "seconds": (-20.0, 680.0),
            "candidate": (1, ITEMS - 1),
        },
    }
    return model, inputs, options
