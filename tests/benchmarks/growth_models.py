"""Models that grow in one direction, as the source of a module with a `build` for `deliver`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_LAYER_MB = 64  # 4096 x 4096 float32


@dataclass(frozen=True)
class Growing:
    """What grows, by how much, and the exponent of the seconds that one would expect of it."""

    what: str
    sizes: tuple[int, ...]
    expected: str
    source: Callable[[int], str]
    recipe: Callable[[int], str] = lambda size: ""


def _module(body: str, example: str, imports: str = "") -> str:
    return (
        f"import torch\nfrom torch import nn\n{imports}\n\n{body}\n\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        f"    return Grown().eval(), ({example},)\n"
    )


def _weights(megabytes: int) -> str:
    layers = max(1, megabytes // _LAYER_MB)
    width = int(math.sqrt(megabytes * 1e6 / 4 / layers))
    body = (
        "class Grown(nn.Sequential):\n"
        "    def __init__(self):\n"
        f"        super().__init__(*[nn.Linear({width}, {width}) for _ in range({layers})])\n"
    )
    return _module(body, f"torch.randn(2, {width})")


def _nodes(count: int) -> str:
    # Four operators a layer, since each layer is a file of the delivery, of which 10 000 are read.
    # Shrinking, so that depth doesn't amplify the last bit.
    body = (
        "class Grown(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        layers = [nn.Linear(16, 16) for _ in range({count // 4})]\n"
        "        self.layers = nn.ModuleList(layers)\n\n"
        "    def forward(self, x):\n"
        "        for layer in self.layers:\n"
        "            x = torch.tanh(layer(x)) * 0.5 + 0.25\n"
        "        return x\n"
    )
    return _module(body, "torch.randn(2, 16)")


def _outputs(count: int) -> str:
    body = (
        "class Grown(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.trunk = nn.Linear(64, 64)\n"
        f"        self.heads = nn.ModuleList(nn.Linear(64, 4) for _ in range({count}))\n\n"
        "    def forward(self, x):\n"
        "        x = torch.relu(self.trunk(x))\n"
        "        return tuple(head(x) for head in self.heads)\n"
    )
    return _module(body, "torch.randn(2, 64)")


def _targets(count: int) -> str:
    slugs = ("cpu-avx512", "cpu-avx2", "cpu-avx512-bf16")[:count]
    return "targets = [" + ", ".join(f'"{slug}"' for slug in slugs) + "]\n"


CURVES = {
    "weights": Growing("MB of weights", (10, 100, 1000, 2000), "0 to 1: bytes", _weights),
    "nodes": Growing("operators", (100, 1000, 5000, 20_000), "1", _nodes),
    "outputs": Growing("outputs", (1, 10, 100, 1000), "0 to 1: a kernel each", _outputs),
    "targets": Growing("targets", (1, 2, 3), "1", lambda _: _weights(10), _targets),
}
