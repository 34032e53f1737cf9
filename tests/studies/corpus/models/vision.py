"""Classifiers, a segmenter and a detector of images."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.studies.corpus.models.model import CorpusModel, Inputs


def images(size: int = 224) -> Callable[[int], Inputs]:
    """Return a maker of images, `[N, 3, size, size]`."""
    return lambda batch: ((torch.randn(batch, 3, size, size),), {})


def torchvision_model(name: str) -> Callable[[], nn.Module]:
    """Return a builder of one of torchvision's models."""

    def build() -> nn.Module:
        from torchvision import models

        return getattr(models, name)()  # type: ignore[no-any-return]

    return build


def vision_transformer() -> nn.Module:
    """Return torchvision's vision transformer, small."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(224, 16, 6, 6, 384, 1536)  # type: ignore[no-any-return]


def timm_vit() -> nn.Module:
    """Return timm's vision transformer."""
    import timm

    return timm.create_model("vit_tiny_patch16_224", pretrained=False)  # type: ignore[no-any-return]


def unet() -> nn.Module:
    """Return a U-Net on a ResNet-18."""
    import segmentation_models_pytorch

    return segmentation_models_pytorch.Unet("resnet18", encoder_weights=None, classes=4)  # type: ignore[no-any-return]


def yolo() -> nn.Module:
    """Return YOLOv8's detector with its boxes alone."""
    from ultralytics.nn.tasks import DetectionModel

    return Picks(DetectionModel("yolov8n.yaml", verbose=False).eval(), 0)


class Picks(nn.Module):
    """Returns one of a model's several outputs."""

    def __init__(self, model: nn.Module, place: int) -> None:
        super().__init__()
        self.model, self.place = model, place

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[self.place]  # type: ignore[no-any-return]


VISION = (
    CorpusModel("resnet18", "vision", torchvision_model("resnet18"), images()),
    CorpusModel("mobilenet_v3_small", "vision", torchvision_model("mobilenet_v3_small"),
                images(), 8),
    CorpusModel("vit_small", "vision", vision_transformer, images()),
    CorpusModel("efficientnet_b0", "vision", torchvision_model("efficientnet_b0"), images()),
    CorpusModel("timm_vit_tiny", "vision", timm_vit, images()),
    CorpusModel("unet_resnet18", "vision", unet, images(256), 2),
    CorpusModel("yolov8n", "vision", yolo, images(320), 2),
)  # fmt: skip
