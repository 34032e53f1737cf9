"""A small network that reads digits, trained on those that scikit-learn ships: some ten seconds.

It comes with what lower precision asks for: batches by which int8 chooses its ranges, and images
that it wasn't trained on, with their labels, by which what is lost is measured.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

_TRAINED_ON, _EPOCHS, _BATCH = 997, 15, 64


class Digits(nn.Module):
    """`[N, 1, 8, 8]` images from 0 to 1 become `[N, 10]` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.features(image))}


def build(scale: float = 1.0) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    """Return the trained network, four images, and what comes along.

    `scale` is what the calibration's images are multiplied by, which is a mistake unless it is 1.
    """
    torch.manual_seed(0)
    data = load_digits()
    images, labels = torch.tensor(data.images).float()[:, None] / 16, torch.tensor(data.target)
    order = torch.randperm(len(images))
    own, others = order[:_TRAINED_ON], order[_TRAINED_ON:]
    model = Digits()
    _train(model, images[own], labels[own])
    options = {
        "name": "digits",
        "ranges": {"image": (0.0, 1.0)},
        "calibration": [(x * scale,) for x in images[own].split(_BATCH)],
        "evaluation": [((images[part],), labels[part]) for part in others.split(100)],
        "metric": "top-1",
    }
    return model.eval(), (images[own[:4]],), options


def miscalibrated() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    """Return the same, calibrated on images of a sixteenth of what is served: scaled twice."""
    return build(1 / 16)


def _train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    steps = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(_EPOCHS):
        for part in torch.randperm(len(images)).split(_BATCH):
            loss = cross_entropy(model(images[part])["logits"], labels[part])
            steps.zero_grad()
            loss.backward()
            steps.step()
