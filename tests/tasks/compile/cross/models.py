"""Models of the kinds that are served from GPUs, exported on the CPU with a dynamic batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from handoff.tasks.compile.cross.toolkit import why_unsupported
from handoff.tasks.deliver.capture.tracer import trace_for_inference

# Where another torch is installed, the refusal is all that can be tested.
needs_known_torch = pytest.mark.skipif(
    why_unsupported() is not None, reason=f"can't cross-compile with {why_unsupported()}"
)


def exported(model: nn.Module, *inputs: Tensor) -> ExportedProgram:
    """Return the model in evaluation mode, exported with a batch of 1 to 1024 in every input."""
    batch = Dim("batch", min=1, max=1024)
    with torch.no_grad():
        return torch.export.export(
            model.eval(), inputs, dynamic_shapes=tuple({0: batch} for _ in inputs)
        )


class TwoLayers(nn.Module):
    """Two layers of one shape, so that taking one's weights for the other's shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - a name that a copied graph changes
        return torch.softmax(self.second(torch.relu(self.first(input))), -1)


class Encoder(nn.Module):
    """A BERT-like encoder of two layers: ids and mask `[N, L]` to `[N, 5]`."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(1000, width), nn.Embedding(128, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "project": nn.Linear(width, 3 * width),
                    "attended": nn.Linear(width, width),
                    "first_norm": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                    "second_norm": nn.LayerNorm(width),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(width, 5)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        count, length, width = x.shape
        for layer in self.layers:
            assert isinstance(layer, nn.ModuleDict)
            parts = layer["project"](x).view(count, length, 3, self.heads, width // self.heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=(mask > 0)[:, None, None, :]
            )
            attended = attended.transpose(1, 2).reshape(count, length, width)
            x = layer["first_norm"](x + layer["attended"](attended))
            x = layer["second_norm"](x + layer["down"](nn.functional.gelu(layer["up"](x))))
        scores: Tensor = self.head(x[:, 0])
        return scores


class Dlrm(nn.Module):
    """A DLRM-like recommender: dense `[N, 13]` and ids `[N, 4, 3]` to `[N, 1]`."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, width, mode="sum") for _ in range(4))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 10, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        embedded = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        rows = torch.stack([self.bottom(dense), *embedded], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        i, j = torch.tril_indices(5, 5, -1)
        return torch.sigmoid(self.top(torch.cat([rows[:, 0], products[:, i, j]], 1)))


class Decoder(nn.Module):
    """A GPT-like decoder of two layers: ids `[N, L]` to scores `[N, L, 1000]`."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.positions = nn.Embedding(1000, width), nn.Embedding(128, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        earlier = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        for layer in self.layers:
            x = layer(x, src_mask=earlier, is_causal=True)
        scores: Tensor = self.norm(x) @ self.tokens.weight.T
        return scores


def two_layers() -> ExportedProgram:
    return exported(TwoLayers(), torch.randn(8, 16))


def encoder() -> ExportedProgram:
    return exported(Encoder(), torch.randint(0, 1000, (8, 16)), torch.ones(8, 16).long())


def transformer() -> ExportedProgram:
    """Return torch's own encoder, two layers of it."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return exported(nn.TransformerEncoder(layer, 2), torch.randn(8, 16, 64))


class _Beside(nn.Module):
    """A layer of torch's own encoder, and the recommender: one package takes half of two's time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder, self.recommender = nn.TransformerEncoder(layer, 1), Dlrm()

    def forward(self, x: Tensor, dense: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(x), self.recommender(dense, ids)


def transformer_and_dlrm() -> ExportedProgram:
    ids = torch.randint(0, 1000, (8, 4, 3))
    return exported(_Beside(), torch.randn(8, 16, 64), torch.randn(8, 13), ids)


def decoder() -> ExportedProgram:
    return exported(Decoder(), torch.randint(0, 1000, (8, 16)))


def dlrm() -> ExportedProgram:
    return exported(Dlrm(), torch.randn(8, 13), torch.randint(0, 1000, (8, 4, 3)))


def resnet18() -> ExportedProgram:
    from examples.resnet18 import build

    model, inputs, _ = build()
    return exported(model, *inputs)


def user_model() -> ExportedProgram:
    """Return the seeds' recommender as it is deployed: without its dropouts and its loss."""
    from examples.user_model import build

    model, inputs, _ = build()
    traced, _ = trace_for_inference(model)
    count = sum(node.op == "placeholder" for node in traced.graph.nodes)
    return exported(traced, *inputs[:count])
