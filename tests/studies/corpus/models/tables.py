"""Models of tables and of graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.studies.corpus.models.model import CorpusModel, Inputs, ids


def table_transformer() -> nn.Module:
    """Return the feature tokenizer with a transformer, as its authors publish it."""
    from rtdl_revisiting_models import FTTransformer

    return FTTransformer(  # type: ignore[no-any-return]
        n_cont_features=12, cat_cardinalities=[10, 20, 30], d_out=1,
        **FTTransformer.get_default_kwargs(),
    )  # fmt: skip


def table_resnet() -> nn.Module:
    """Return the residual network for tables, as its authors publish it."""
    from rtdl_revisiting_models import ResNet

    return ResNet(  # type: ignore[no-any-return]
        d_in=40, d_out=1, n_blocks=4, d_block=192, d_hidden=None, d_hidden_multiplier=2.0,
        dropout1=0.3, dropout2=0.0,
    )  # fmt: skip


def graph_network() -> nn.Module:
    """Return two dense graph convolutions and a head."""
    from torch_geometric.nn import DenseGCNConv

    return GraphClassifier([DenseGCNConv(32, 128), DenseGCNConv(128, 128)])


class GraphClassifier(nn.Module):
    """Dense graph convolutions, a mean over the nodes and a linear head."""

    def __init__(self, convolutions: list[nn.Module]) -> None:
        super().__init__()
        self.convolutions, self.head = nn.ModuleList(convolutions), nn.Linear(128, 5)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Any:
        for convolution in self.convolutions:
            nodes = torch.relu(convolution(nodes, adjacency))
        return self.head(nodes.mean(1))


def _graphs(batch: int) -> Inputs:
    return (torch.randn(batch, 40, 32), (torch.rand(batch, 40, 40) > 0.8).float()), {}


TABLES = (
    CorpusModel("ft_transformer", "tabular", table_transformer,
                lambda batch: ((torch.randn(batch, 12), ids(batch, 3, high=10)), {}), 128),
    CorpusModel("table_resnet", "tabular", table_resnet,
                lambda batch: ((torch.randn(batch, 40),), {}), 256),
    CorpusModel("graph_classifier", "graph", graph_network, _graphs, 32),
)  # fmt: skip
