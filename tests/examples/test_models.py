"""The example models are what the seeds describe, and exact enough a test of a release."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn

from examples import resnet18, user_model
from handoff.artifacts.delivery.signature import Dimension
from handoff.tasks.deliver.capture.tracer import trace_for_inference, without_training_modules
from handoff.tasks.deliver.step import deliver
from handoff.tasks.intake.loading import read_delivery


def count_operators(module: torch.fx.GraphModule) -> Counter[str]:
    calls = [node for node in module.graph.nodes if node.op in ("call_function", "call_method")]
    return Counter(str(getattr(node.target, "__name__", node.target)) for node in calls)


@pytest.mark.parametrize("example", [resnet18, user_model])
def test_an_example_is_the_same_each_time(example: object) -> None:
    (one, inputs, _), (two, again, _) = (getattr(example, "build")() for _ in range(2))  # noqa: B009
    assert not one.training
    for tensor, other in zip(inputs, again, strict=True):
        assert torch.equal(tensor, other)
    for (name, tensor), other in zip(
        one.state_dict().items(), two.state_dict().values(), strict=True
    ):
        assert torch.equal(tensor, other), name


def test_resnet18_has_the_weights_that_torchvision_has() -> None:
    model = resnet18.ResNet18()
    assert sum(weight.numel() for weight in model.parameters()) == 11_689_512
    names = set(model.state_dict())
    assert {"conv1.weight", "layer1.0.bn1.running_mean", "layer2.0.downsample.0.weight",
            "layer4.1.conv2.weight", "fc.bias"} <= names  # fmt: skip


def test_resnet18_has_norms_worth_folding() -> None:
    model, _, _ = resnet18.build()
    for norm in (part for part in model.modules() if isinstance(part, nn.BatchNorm2d)):
        assert norm.running_var is not None
        assert not torch.allclose(norm.running_var, torch.ones_like(norm.running_var), atol=0.05)


def test_resnet18_tells_images_apart() -> None:
    model, (images,), _ = resnet18.build()
    with torch.no_grad():
        scores = model(images)
    assert float(scores.std(0).mean()) > 0.1 * float(scores.std())


def test_resnet18_is_traced_as_layers() -> None:
    model, _, _ = resnet18.build()
    traced, notes = trace_for_inference(model)
    assert notes == ()
    kinds = Counter(
        type(traced.get_submodule(str(node.target))).__name__
        for node in traced.graph.find_nodes(op="call_module")
    )
    assert kinds == {"Conv2d": 20, "BatchNorm2d": 20, "ReLU": 17, "MaxPool2d": 1,
                     "AdaptiveAvgPool2d": 1, "Linear": 1}  # fmt: skip


def test_user_model_is_mostly_where_and_mul() -> None:
    model, _, _ = user_model.build()
    counts = count_operators(trace_for_inference(model)[0])
    assert counts["where"] >= 25
    assert counts["mul"] >= 25


def test_user_model_returns_a_loss_and_is_delivered_as_scores(tmp_path: Path) -> None:
    model, inputs, options = user_model.build()
    with torch.no_grad():
        assert model(*inputs).dim() == 0
        with without_training_modules():
            scores = model(*inputs)
    name = str(options.pop("name"))
    result = deliver(model, inputs, tmp_path / name, name=name, **options)  # type: ignore[arg-type]
    assert [spec.name for spec in result.contract.inputs] == [
        "items", "categories", "seconds", "candidate"
    ]  # fmt: skip
    assert result.contract.dimensions == {"batch": Dimension(1, 1024)}
    assert result.contract.model.captured_by == "torch.fx"
    loaded = read_delivery(tmp_path / name).module
    assert torch.equal(loaded(*inputs[:4]), scores)
    assert scores.shape == (64,)
    assert 0.1 < float(scores.std()) < 10.0


def test_user_model_ignores_what_stands_beside_padding() -> None:
    model, inputs, _ = user_model.build()
    items, categories, seconds, candidate, label = inputs
    padding = items == 0
    other = torch.where(padding, torch.full_like(seconds, 99.0), seconds)
    kinds = torch.where(padding, torch.full_like(categories, 7), categories)
    with torch.no_grad(), without_training_modules():
        one = model(items, categories, seconds, candidate, label)
        two = model(items, kinds, other, candidate, label)
    torch.testing.assert_close(one, two)
