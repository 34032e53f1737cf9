"""Forecasters of time series."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.studies.corpus.models.model import CorpusModel


def forecaster(module: str, name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a builder of one of neuralforecast's models."""

    def build() -> nn.Module:
        # Its package wants the libraries of its automatic tuning, which no model file needs.
        spec = importlib.util.find_spec("neuralforecast")
        assert spec is not None
        for package in ("neuralforecast", "neuralforecast.models"):
            known = sys.modules.setdefault(package, types.ModuleType(package))
            folders = spec.submodule_search_locations or []
            known.__path__ = [f"{folder}/{package[15:]}" for folder in folders]
        kind = getattr(importlib.import_module(f"neuralforecast.models.{module}"), name)
        return Windows(kind(h=24, input_size=96, accelerator="cpu", **settings))

    return build


class Windows(nn.Module):
    """Makes the windows of neuralforecast's loader from a series, `[N, L, 1]`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, series: Tensor) -> Any:
        empty = {"futr_exog": None, "hist_exog": None, "stat_exog": None}
        mask = torch.ones_like(series)
        return self.model({"insample_y": series, "insample_mask": mask, **empty})


SERIES = (
    CorpusModel("lstm_forecaster", "time series", forecaster("lstm", "LSTM"),
                lambda batch: ((torch.randn(batch, 96, 1),), {}), 64),
    CorpusModel("tft", "time series", forecaster("tft", "TFT", hidden_size=64),
                lambda batch: ((torch.randn(batch, 96, 1),), {}), 32),
    CorpusModel("patchtst", "time series", forecaster("patchtst", "PatchTST"),
                lambda batch: ((torch.randn(batch, 96, 1),), {}), 64),
)  # fmt: skip
