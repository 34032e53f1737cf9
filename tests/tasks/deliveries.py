"""Deliveries for tests, written by `to_folder` itself and not by our exporter."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from handoff.artifacts.delivery.contract import (
    CONTRACT_FILE,
    EXAMPLES_FILE,
    DeliveryContract,
    Lineage,
    ModelSection,
    format_contract,
)
from handoff.artifacts.delivery.signature import Dimension, TensorSpec


def write_delivery(
    folder: Path,
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    *,
    golden: tuple[torch.Tensor, ...] | None = None,
    batch: Dimension | None = None,
) -> Path:
    """Write a delivery of `module`, whose inputs share a batch in axis 0; return the folder.

    The golden outputs are the module's own unless given; an empty tuple stands for none.
    """
    traced = torch.fx.symbolic_trace(module)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with chdir(folder.parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced.to_folder(folder.name, "FxModule")
    if golden is None:
        with torch.no_grad():
            result = module(*[tensor.clone() for tensor in inputs.values()])
        golden = result if isinstance(result, tuple) else (result,)
    tensors = {f"0/inputs/{name}": tensor.contiguous() for name, tensor in inputs.items()}
    tensors |= {f"0/outputs/{i}": tensor.contiguous().clone() for i, tensor in enumerate(golden)}
    save_file(tensors, folder / EXAMPLES_FILE)
    specs = []
    for name, tensor in inputs.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        integer = not tensor.is_floating_point()
        low, high = (float(tensor.min()), float(tensor.max())) if integer else (None, None)
        specs.append(TensorSpec(name, dtype, ("batch", *tensor.shape[1:]), low, high))
    contract = DeliveryContract(
        ModelSection("toy", "FxModule", torch.__version__, "torch.fx"),
        tuple(specs),
        dimensions={"batch": batch or Dimension(1, 64)},
        source=Lineage("https://example.org/models", "0123abc"),
    )
    (folder / CONTRACT_FILE).write_text(format_contract(contract), encoding="utf-8")
    return folder
