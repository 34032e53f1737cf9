"""What lies between lowered operators goes on in bfloat16, and computes what it did before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.functional import scaled_dot_product_attention

from handoff.tasks.optimize.passes.base import apply_pass
from handoff.tasks.optimize.passes.lower_precision import LowerPrecision
from tests.tasks.optimize.passes.exporting import count, export

_ATEN = torch.ops.aten
HEAVY = "linear,convolution,matmul,attention"


def lowered(module: nn.Module, x: Tensor, *, between: bool = True) -> ExportedProgram:
    program = export(module.eval(), x)
    operators = f"{HEAVY},between" if between else HEAVY
    assert apply_pass(LowerPrecision({"dtype": "bfloat16", "operators": operators}), program)
    program.graph_module.graph.lint()
    return program


def raised(program: ExportedProgram) -> int:
    """Return how many casts to float32 are left."""
    return sum(
        node.target is _ATEN.to.dtype and node.args[1] is torch.float32
        for node in program.graph.nodes
    )


class Residual(nn.Module):
    """As torchvision writes it: in place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.one = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.two, self.head = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.relu(self.stem(x)), 2)
        out = self.two(self.relu(self.one(x)))
        out += x
        out = self.relu(out)
        return self.head(out.mean((2, 3)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Attention with its three inputs from one product, norms and a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.places = nn.Parameter(torch.randn(5, 16))
        self.embed, self.three, self.out = nn.Linear(8, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x) + self.places
        q, k, v = (
            part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.three(y).chunk(3, dim=-1)
        )
        attended = scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = self.norm(y + self.out(attended))
        return self.norm(y + self.down(nn.functional.gelu(self.up(y))) * 0.5)  # type: ignore[no-any-return]


IMAGE = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("module", "x"), [(Residual, IMAGE), (Encoder, ROWS)])
def test_one_cast_back_is_left_at_the_end_and_the_numbers_are_near(
    module: Callable[[], nn.Module], x: Tensor
) -> None:
    program, plain = lowered(module(), x), lowered(module(), x, between=False)
    assert raised(program) == 1
    assert raised(plain) >= 4
    with torch.no_grad():
        got, before, want = program.module()(x), plain.module()(x), module().eval()(x)
    assert got.dtype is torch.float32
    error, usual = ((one - want).norm() / want.norm() for one in (got, before))
    assert 0.0 < float(error) < 4 * float(usual) < 0.08


class ReadBefore(Residual):
    """Reads a value, writes to it, and reads it again."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        before = y.mean((2, 3))
        y.relu_()
        return self.head(before) + self.head(y.mean((2, 3)))  # type: ignore[no-any-return]


class WritesUnderAView(Residual):
    """A view that was made before the write sees it."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        view = y.flatten(2)
        y.relu_()
        return self.head(view.mean(2))  # type: ignore[no-any-return]


class WritesThroughAView(Residual):
    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        y[:, :4].mul_(3.0)
        return self.head(y.mean((2, 3)))  # type: ignore[no-any-return]


class WritesToTheInput(Residual):
    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).mean((2, 3))
        x.relu_()
        return self.head(y) + x.mean()  # type: ignore[no-any-return]


class TakesTwice(Residual):
    """A sum that is written to while somebody else reads the same terms."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        z = self.one(y)
        z += y
        w = self.two(z)
        w += z
        return self.head((w - z).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "module", [ReadBefore, WritesUnderAView, WritesThroughAView, WritesToTheInput, TakesTwice]
)
def test_what_is_written_in_place_is_seen_by_who_saw_it_before(module: type[nn.Module]) -> None:
    program, plain = lowered(module(), IMAGE), lowered(module(), IMAGE, between=False)
    given = [IMAGE.clone() for _ in range(3)]
    with torch.no_grad():
        got, before = program.module()(given[0]), plain.module()(given[1])
        want = module().eval()(given[2])
    assert torch.equal(given[0], given[2])
    assert float((got - want).norm() / want.norm()) < 0.03
    assert float((before - want).norm() / want.norm()) < 0.03


class Mixed(Residual):
    """What the graph itself casts, whole numbers, and what nothing was lowered before."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x).mean((2, 3)).repeat(1, 3)[:, :8]
        z = self.head(y)
        exact = z.double().cumsum(1).float()
        return torch.where(z > 0, exact, z) + z.argmax(1, keepdim=True)  # type: ignore[no-any-return]


def test_what_the_graph_computes_in_other_dtypes_stays_there() -> None:
    program = lowered(Mixed(), IMAGE)
    kinds = {
        str(n.target): n.meta["val"].dtype
        for n in program.graph.nodes
        if n.op == "call_function" and isinstance(n.meta["val"], Tensor)
    }
    assert kinds["aten.sin.default"] is torch.float32
    assert kinds["aten.cumsum.default"] is torch.float64
    assert count(program, _ATEN.argmax.default) == 1
    with torch.no_grad():
        got, want = program.module()(IMAGE), Mixed().eval()(IMAGE)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
