"""Sixteen deliveries of the kind that a careless team hands over, and a name for each fault.

Most are written by `to_folder` itself, as such a team would, with a contract that says no more than
the inputs; what `torch.fx` can't trace at all goes through the exporter.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from handoff.artifacts.delivery.contract import (
    CONTRACT_FILE,
    DeliveryContract,
    ModelSection,
    format_contract,
)
from handoff.artifacts.delivery.signature import Dimension, TensorSpec

CALLS = [0]


class Base(nn.Module):
    """Two linear layers, `[N, 16]` to `[N, 4]`."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 4)

    def net(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class LossInForward(Base):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        return nn.CrossEntropyLoss()(self.net(x), y)  # type: ignore[no-any-return]


class DataDependentIf(Base):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.net(x)
        return self.net(-x)


class LenOfTensor(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) / len(x)


class BatchInView(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).view(8, 2, 2)


class RandInForward(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + 0.1 * torch.rand(16))


class GlobalCounter(Base):
    def forward(self, x: Tensor) -> Tensor:
        CALLS[0] += 1
        return self.net(x) * CALLS[0]


class DropoutLeftOn(Base):
    def __init__(self) -> None:
        super().__init__()
        self.d = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.net(x))  # type: ignore[no-any-return]


class NormLeftInTraining(Base):
    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.bn(x))


class ItemCall(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * x.max().item()


class BufferMutation(Base):
    n: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        self.n += x.mean(0)
        return self.net(x - self.n)


class NanWeights(Base):
    def __init__(self) -> None:
        super().__init__()
        self.a.weight.data[0, 0] = float("nan")


class Gate(nn.Module):
    """A team's own layer, which their tracer keeps as a leaf."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.w) if x.sum() > 0 else x


class OwnLeaf(Base):
    def __init__(self) -> None:
        super().__init__()
        self.g = Gate()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.g(x))


@torch.fx.wrap
def post(x: Tensor) -> Tensor:
    """Return tanh; `torch.fx` keeps the call."""
    return torch.tanh(x)


class WrappedFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        return post(self.net(x))


class NormInChild(Base):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.ln(x))


def remove_child(folder: Path) -> None:
    """Lose a file on the way."""
    (folder / "ln.pt").unlink()


def truncate_state(folder: Path) -> None:
    """Copy half of the weights."""
    data = (folder / "state_dict.pt").read_bytes()
    (folder / "state_dict.pt").write_bytes(data[: len(data) // 2])


def move_paths(folder: Path) -> None:
    """Write the paths of the machine that it was made on."""
    text = (folder / "module.py").read_text()
    (folder / "module.py").write_text(text.replace("r'delivery", "r'/data/run7/delivery"))


@dataclass(frozen=True)
class CarelessDelivery:
    """A careless delivery and what it has to be named for.

    `named` is the code of a finding, part of a refusal's sentence, or empty where the exporter
    mends the fault, so that nothing is left to be named.
    """

    name: str
    kind: type[nn.Module]
    named: str
    training: bool = False
    spoil: Callable[[Path], None] | None = None


CARELESS = (
    CarelessDelivery("loss_in_forward", LossInForward, "left out: 1 CrossEntropyLoss"),
    CarelessDelivery("data_dependent_if", DataDependentIf, "if x.sum() > 0"),
    CarelessDelivery("len_of_tensor", LenOfTensor, "len"),
    CarelessDelivery("batch_in_view", BatchInView, "size-baked-in"),
    CarelessDelivery("rand_in_forward", RandInForward, "burnt-in-random-constant"),
    CarelessDelivery("global_counter", GlobalCounter, "fixed-number"),
    CarelessDelivery("dropout_left_on", DropoutLeftOn, "training-mode", True),
    CarelessDelivery(
        "batchnorm_left_in_train", NormLeftInTraining, "assumed-evaluation-mode", True
    ),
    CarelessDelivery("item_call", ItemCall, "value-read"),
    CarelessDelivery("buffer_mutation", BufferMutation, "uses self.n"),
    CarelessDelivery("nan_weights", NanWeights, "non-finite-weights"),
    CarelessDelivery("own_leaf_not_importable", OwnLeaf, "Gate"),
    CarelessDelivery("wrapped_function", WrappedFunction, "post"),
    CarelessDelivery("missing_pt", NormInChild, "ln.pt", spoil=remove_child),
    CarelessDelivery("truncated_state_dict", Base, "state_dict.pt", spoil=truncate_state),
    CarelessDelivery("absolute_path", NormInChild, "absolute-path", spoil=move_paths),
)  # fmt: skip


def example_of(careless: CarelessDelivery) -> tuple[Tensor, ...]:
    """Return inputs `[8, 16]`, and labels where the model takes them."""
    torch.manual_seed(1)
    x = torch.randn(8, 16)
    return (x, torch.randint(0, 4, (8,))) if careless.kind is LossInForward else (x,)


def make_model(careless: CarelessDelivery) -> nn.Module:
    """Return the model, in the mode that its team left it in."""
    torch.manual_seed(0)
    CALLS[0] = 0
    return careless.kind().train(careless.training)


class GateTracer(torch.fx.Tracer):
    """The team's tracer."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Gate) or super().is_leaf_module(m, module_qualified_name)


def trace(careless: CarelessDelivery) -> torch.fx.GraphModule:
    """Return what `torch.fx` alone makes of the model; raise what it raises where it can't."""
    model = make_model(careless)
    return torch.fx.GraphModule(model, GateTracer().trace(model))


def write_folder(careless: CarelessDelivery, folder: Path) -> None:
    """Write the delivery as its team would."""
    traced = trace(careless)
    folder.mkdir(parents=True)
    with chdir(folder.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced.to_folder(folder.name, "FxModule")
    contract = DeliveryContract(
        ModelSection(careless.name.replace("_", "-"), careless.kind.__name__, torch.__version__),
        (TensorSpec("x", "float32", ("batch", 16)),),
        dimensions={"batch": Dimension(1, 64)},
    )
    (folder / CONTRACT_FILE).write_text(format_contract(contract), encoding="utf-8")
    if careless.spoil is not None:
        careless.spoil(folder)
