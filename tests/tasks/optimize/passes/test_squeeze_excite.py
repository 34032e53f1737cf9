"""Squeeze and excite: which blocks become our own function's, and which don't."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from handoff.tasks.optimize.passes.convolution_to_linear import ConvolutionToLinear
from handoff.tasks.optimize.passes.squeeze_excite import SqueezeExcite
from tests.tasks.optimize.passes.exporting import apply, count

_OWN = torch.ops.handoff.squeeze_excite.default
X = torch.randn(6, 24, 5, 7, generator=torch.Generator().manual_seed(0))


class Convolutions(nn.Module):
    """A block as torchvision writes it: an average pool, and convolutions of one point."""

    def __init__(
        self,
        channels: int = 24,
        activation: type[nn.Module] = nn.ReLU,
        gate: type[nn.Module] = nn.Hardsigmoid,
        **options: Any,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pool, self.activation, self.gate = nn.AdaptiveAvgPool2d(1), activation(), gate()
        self.first = nn.Conv2d(channels, 6, 1, **options)
        self.second = nn.Conv2d(6, channels, 1, **options)

    def gates(self, x: Tensor) -> Tensor:
        return self.gate(self.second(self.activation(self.first(self.pool(x)))))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.gates(x) * x


class Means(Convolutions):
    """A block as timm writes it: a mean, activations in place, the image first."""

    def forward(self, x: Tensor) -> Tensor:
        squeezed = self.first(x.mean((2, 3), keepdim=True))
        return x * self.second(self.activation(squeezed)).sigmoid()  # type: ignore[no-any-return]


class Linears(nn.Module):
    """A block as the paper's authors and most tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Sequential(
            nn.Linear(24, 6, bias=False), nn.ReLU(inplace=True), nn.Linear(6, 24, bias=False),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, _, _ = x.size()
        gates = self.fc(x.mean([-1, -2]).view(batch, channels)).view(batch, channels, 1, 1)
        return x * gates  # type: ignore[no-any-return]


class AfterActivation(Convolutions):
    """The image is what an activation in place left."""

    def forward(self, x: Tensor) -> Tensor:
        image = torch.relu_(x * 2)
        return self.gates(image) * image


class Twice(nn.Module):
    """Two blocks that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Convolutions()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x) + 1.0)  # type: ignore[no-any-return]


def apply_behind_linear(module: nn.Module, x: Tensor = X) -> tuple[bool, Any]:
    """Apply the pass behind the one that it belongs behind; the outputs are compared."""

    class Both(SqueezeExcite):
        def call(self, program: Any) -> bool:
            ConvolutionToLinear({}).call(program)
            self.found = super().call(program)
            return True

    both = Both({})
    _, program = apply(both, module, x)
    return both.found, program


@pytest.mark.parametrize(
    ("module", "blocks"),
    [
        (Convolutions(), 1),
        (Convolutions(activation=nn.SiLU, gate=nn.Sigmoid, bias=False), 1),
        (Convolutions(activation=nn.Hardswish), 1),
        (Means(), 1),
        (Linears(), 1),
        (AfterActivation(), 1),
        (Twice(), 2),
    ],
    ids=["torchvision", "without biases", "hardswish", "timm", "linear", "in place", "twice"],
)
def test_blocks_become_our_own_function(module: nn.Module, blocks: int) -> None:
    modified, program = apply_behind_linear(module)
    assert modified
    assert count(program, _OWN) == blocks
    assert count(program, torch.ops.aten.linear.default) == 0
    kept = [name for name in program.state_dict if not name.endswith(("rows", "columns", "bias"))]
    assert kept == [], "the layers' own weights aren't shipped beside the function's"


class OfAnother(Convolutions):
    """The gates are another image's."""

    def forward(self, x: Tensor) -> Tensor:
        return self.gates(x + 1.0) * x


class Looked(Convolutions):
    """What the gates are is given, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        gates = self.gates(x)
        return gates * x, gates


class WrittenLater(Convolutions):
    """The image changes between its means and the product."""

    def forward(self, x: Tensor) -> Tensor:
        image = x * 2
        gates = self.gates(image)
        image.add_(1.0)
        return gates * image


class OverRows(Convolutions):
    """Means over one of both dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.second(self.activation(self.first(x.mean(3, keepdim=True))))) * x  # type: ignore[no-any-return]


class Computed(nn.Module):
    """Weights that the graph computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.squeeze, self.excite = nn.Parameter(torch.randn(6, 24)), nn.Linear(6, 24)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.linear(x.mean((2, 3)), self.squeeze * 2).relu()
        return self.excite(hidden).sigmoid()[:, :, None, None] * x  # type: ignore[no-any-return]


class Together(nn.Module):
    """Gates that the means of two images make together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(40, 6), nn.Linear(6, 40)

    def forward(self, x: Tensor) -> Tensor:
        image = x.mean(0).reshape(2, 20, 3, 7)
        hidden = self.first(image.mean((2, 3)).view(1, 40)).relu()
        return image * self.second(hidden).sigmoid().view(2, 20, 1, 1)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (Convolutions(channels=8), X[:, :8]),
        (Convolutions(gate=nn.Tanh), X),
        (Convolutions(activation=nn.GELU), X),
        (OfAnother(), X),
        (Looked(), X),
        (WrittenLater(), X),
        (OverRows(), X),
        (Computed(), X),
        (Together(), X),
    ],
    ids=["few", "tanh", "gelu", "another", "looked at", "written", "rows", "computed", "together"],
)
def test_other_products_are_left_alone(module: nn.Module, x: Tensor) -> None:
    modified, program = apply_behind_linear(module, x.contiguous())
    assert not modified
    assert count(program, _OWN) == 0
