"""Models that grow in one direction, as the source of a module with a `build` for `deliver`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_LAYER_MB = 64  # 4096 x 4096 float32


@dataclass(frozen=True)
class GrowthCurve:
    """What grows, by how much, and the exponent that one would expect of each figure of a release.

    The release that isn't counted is of the size in `first_place` of those that are measured: the
    first, or the last where only that one makes all that later ones find.
    """

    what: str
    sizes: tuple[int, ...]
    expected: Mapping[str, str]
    source: Callable[[int], str]
    recipe: Callable[[int], str] = lambda size: ""
    first_place: int = 0


def _expected(*, seconds: str, largest: str, tree: str, disk: str) -> dict[str, str]:
    return {
        "seconds": seconds, "CPU seconds": seconds, "largest process, GiB": largest,
        "all processes, GiB": tree, "kept on disk, MB": disk,
    }  # fmt: skip


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


# A release has a constant: what stays below it for a while is expected to grow by at most its
# exponent, and what is nothing but bytes by just that.
_AT_MOST_LINEAR = _expected(seconds="<= 1", largest="<= 1", tree="<= 1", disk="<= 1")

CURVES = {
    "weights": GrowthCurve(
        "MB of weights", (10, 100, 1000, 2000), {**_AT_MOST_LINEAR, "kept on disk, MB": "1"},
        _weights,
    ),
    "nodes": GrowthCurve("operators", (100, 1000, 5000, 20_000), _AT_MOST_LINEAR, _nodes),
    "outputs": GrowthCurve("outputs", (1, 10, 100, 1000), _AT_MOST_LINEAR, _outputs),
    # Each is compiled, verified and timed for itself, and compilers run at once. The other targets'
    # precompiled headers are made once a home.
    "targets": GrowthCurve(
        "targets", (1, 2, 3), _expected(seconds="1", largest="0", tree="<= 1", disk="<= 1"),
        lambda _: _weights(10), _targets, first_place=-1,
    ),
}  # fmt: skip
