"""ResNet-18, written out the way torchvision has it, with random weights.

Source of the architecture: He et al., Deep Residual Learning for Image Recognition (2015), with
the attribute names of torchvision, so that its weights would load.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map `[N, C, H, W]` to `[N, outputs, H / stride, W / stride]`."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        identity = x if self.downsample is None else self.downsample(x)
        return self.relu(out + identity)  # type: ignore[no-any-return]


class ResNet18(nn.Module):
    """The 18-layer residual network for images of three channels."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64), BasicBlock(64, 64))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images `[N, 3, H, W]` to class scores `[N, classes]`."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]


def build() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, object]]:
    """Return the network, eight images, and a batch that may be 1 to 1024.

    The batch norms have statistics and weights as a training leaves them: with those of a fresh
    network (mean 0, variance 1) folding them would be next to nothing, and with statistics that
    don't fit the weights the scores would hardly depend on the image.
    """
    torch.manual_seed(0)
    model = ResNet18()
    norms = [part for part in model.modules() if isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.0, 0.2)
    _set_statistics(model, norms)
    options: dict[str, object] = {"name": "resnet18", "dimensions": {"batch": (1, 1024)}}
    return model.eval(), (torch.randn(8, 3, 224, 224),), options


def _set_statistics(model: ResNet18, norms: list[nn.BatchNorm2d]) -> None:
    """Set the running statistics to those of four random images."""
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 224, 224))
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
