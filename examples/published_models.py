"""Models of torchvision, timm and transformers, as their ordinary user delivers them.

    handoff deliver examples.published_models:torchvision_resnet --to delivery
    handoff deliver examples.published_models:timm_vit --to delivery
    handoff deliver examples.published_models:transformers_bert --to delivery

Each needs the package that it is named for, beside torch and safetensors. Weights are random here,
so that nothing is fetched: pass `weights="DEFAULT"`, `pretrained=True`, or take `from_pretrained`.
The trained model is delivered as it is; Handoff leaves its dropouts out and takes dictionaries and
keywords apart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_BATCH = {"batch": (1, 64)}
Delivered = tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]


def torchvision_resnet() -> Delivered:
    """Return ResNet-18 for images `[batch, 3, 224, 224]`."""
    from torchvision.models import resnet18

    model = resnet18(weights=None).eval()
    return model, (torch.randn(2, 3, 224, 224),), {"name": "resnet18", "dimensions": _BATCH}


def timm_vit() -> Delivered:
    """Return a small vision transformer for images `[batch, 3, 224, 224]`."""
    import timm

    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    return model, (torch.randn(2, 3, 224, 224),), {"name": "vit-tiny", "dimensions": _BATCH}


def transformers_bert() -> Delivered:
    """Return a small BERT for ids and a mask `[batch, length]`, called by keywords."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=128, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    model = BertModel(config).eval()
    ids = torch.randint(0, config.vocab_size, (2, 12))
    both = {0: "batch", 1: "length"}
    options = {
        "name": "bert",
        "keywords": {"attention_mask": torch.ones_like(ids)},
        "dynamic": {"input_ids": both, "attention_mask": both},
        "dimensions": {"batch": (1, 32), "length": (2, 64)},
        "ranges": {"input_ids": (0, config.vocab_size - 1), "attention_mask": (0, 1)},
    }
    return model, (ids,), options
