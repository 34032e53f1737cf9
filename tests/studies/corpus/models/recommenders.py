"""Recommenders: embedding tables, dense layers, histories."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.studies.corpus.models.model import VOCABULARY, CorpusModel, Inputs, ids

_FEATURES, _DENSE, _WIDTH, _HISTORY = 26, 13, 16, 30


def rechub(module: str, name: str) -> Callable[[], nn.Module]:
    """Return a builder of one of torch-rechub's models."""

    def build() -> nn.Module:
        from torch_rechub import models
        from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature

        importlib.import_module(f"torch_rechub.models.{module}")
        kind = getattr(getattr(models, module), name)
        users = [SparseFeature(f"u{i}", VOCABULARY, _WIDTH) for i in range(4)]
        item = [SparseFeature("item", VOCABULARY, _WIDTH)]
        tower = {"dims": [128, 64], "activation": "prelu"}
        if name == "DeepFM":
            sparse = [SparseFeature(f"c{i}", VOCABULARY, _WIDTH) for i in range(_FEATURES)]
            dense = [DenseFeature(f"d{i}") for i in range(_DENSE)]
            layers = {"dims": [256, 128], "dropout": 0.2, "activation": "relu"}
            return Columns(kind(sparse + dense, sparse, layers))
        if name == "DIN":
            history = SequenceFeature(
                "hist", VOCABULARY, _WIDTH, pooling="concat", shared_with="item"
            )
            return Sequences(kind(users, [history], item, {"dims": [200, 80]}, {"dims": [36]}))
        pooled = SequenceFeature("hist", VOCABULARY, _WIDTH, pooling="mean", padding_idx=0)
        return Sequences(kind([*users, pooled], item, tower, dict(tower)))

    return build


def deepctr() -> nn.Module:
    """Return deepctr-torch's DeepFM, which takes ids and numbers in one table."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    sparse = [SparseFeat(f"c{i}", VOCABULARY, _WIDTH) for i in range(_FEATURES)]
    columns = [*sparse, *(DenseFeat(f"d{i}", 1) for i in range(_DENSE))]
    return DeepFM(columns, columns)  # type: ignore[no-any-return]


def dlrm() -> nn.Module:
    """Return torchrec's DLRM with plain embedding tables."""
    sys.meta_path.insert(0, MissingKernels())
    from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

    return RankingModel(
        DenseArch(_DENSE, [64, _WIDTH]),
        InteractionArch(_FEATURES),
        OverArch(_WIDTH + (_FEATURES * (_FEATURES + 1)) // 2, [128, 64, 1]),
    )


class Columns(nn.Module):
    """Hands the columns of two tables, `[N, 26]` and `[N, 13]`, over by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, categories: Tensor, numbers: Tensor) -> Any:
        named = {f"c{i}": categories[:, i] for i in range(_FEATURES)}
        return self.model(named | {f"d{i}": numbers[:, i] for i in range(_DENSE)})


class Sequences(nn.Module):
    """Hands a user `[N, 4]`, a history `[N, 30]` and an item `[N]` over by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, user: Tensor, history: Tensor, item: Tensor) -> Any:
        named = {f"u{i}": user[:, i] for i in range(4)}
        return self.model(named | {"hist": history, "item": item})


class RankingModel(nn.Module):
    """The three parts of a DLRM around plain embedding bags."""

    def __init__(self, dense: nn.Module, interaction: nn.Module, over: nn.Module) -> None:
        super().__init__()
        self.dense, self.interaction, self.over = dense, interaction, over
        bags = [nn.EmbeddingBag(VOCABULARY, _WIDTH, mode="sum") for _ in range(_FEATURES)]
        self.tables = nn.ModuleList(bags)

    def forward(self, numbers: Tensor, categories: Tensor) -> Any:
        found = [bag(categories[:, i : i + 1]) for i, bag in enumerate(self.tables)]
        return self.over(self.interaction(self.dense(numbers), torch.stack(found, 1)))


class MissingKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for fbgemm_gpu, which torchrec imports and its dense layers never call.

    Its binaries fit one minor version of torch each, and none is published for the newest.
    """

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "fbgemm_gpu":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        class Anything(type):
            def __getattr__(cls, name: str) -> type:
                if name.startswith("__"):
                    raise AttributeError(name)
                return Anything(name, (), {})

        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = lambda name: getattr(Anything("kernels", (), {}), name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it was made."""


def _sequences(batch: int) -> Inputs:
    return (ids(batch, 4), ids(batch, _HISTORY), ids(batch)), {}


def _table(batch: int) -> Inputs:
    return (torch.cat([ids(batch, _FEATURES).float(), torch.rand(batch, _DENSE)], 1),), {}


RECOMMENDERS = (
    CorpusModel("rechub_deepfm", "recommender", rechub("ranking", "DeepFM"),
                lambda batch: ((ids(batch, _FEATURES), torch.rand(batch, _DENSE)), {}), 256),
    CorpusModel("rechub_din", "recommender", rechub("ranking", "DIN"), _sequences, 128),
    CorpusModel("rechub_dssm", "recommender", rechub("matching", "DSSM"), _sequences, 256),
    CorpusModel("deepctr_deepfm", "recommender", deepctr, _table, 256),
    CorpusModel("dlrm", "recommender", dlrm,
                lambda batch: ((torch.rand(batch, _DENSE), ids(batch, _FEATURES)), {}), 256),
)  # fmt: skip
