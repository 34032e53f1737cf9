"""A factory of the training team's is called, its model named, and its mistakes reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from handoff.artifacts.delivery.contract import DeliveryContract
from handoff.artifacts.errors import UsageProblem
from handoff.tasks.deliver.factory import default_name
from handoff.tasks.deliver.messages import DeliverJob
from handoff.tasks.deliver.step import run

FACTORY = """
import torch
from torch import nn

def build_net():
    return nn.Linear(8, 4), (torch.zeros(2, 8),), {"dimensions": {"batch": (1, 16)}}

def build():
    return nn.Linear(8, 4), torch.zeros(2, 8)

def breaks():
    raise RuntimeError("no weights here")

def leaves():
    raise SystemExit("usage: train --data")

def returns_a_model():
    return nn.Linear(8, 4)

def has_odd_options():
    return nn.Linear(8, 4), (torch.zeros(2, 8),), {"batch": 3}

def has_a_typo():
    return nn.Linear(8, 4), (torch.zeros(2, 8),), {"range": {"input": (0, 1)}}

def names_no_input():
    return nn.Linear(8, 4), (torch.zeros(2, 8),), {"ranges": {"inputs": (0, 1)}}

model = nn.Linear(8, 4)
"""


def deliver_by(factory: str, home: Path, name: str = "") -> DeliveryContract:
    for module in ("toy_training", "broken_training"):
        sys.modules.pop(module, None)  # that of another test's folder
    (home / "toy_training.py").write_text(FACTORY)
    (home / "broken_training.py").write_text("import no_such_package_here\ndef build(): pass\n")
    return run(DeliverJob(factory, home, home / "out", name)).contract


@pytest.mark.parametrize(
    ("factory", "name", "chosen"),
    [
        ("toy_training:build_net", "", "build-net"),
        ("toy_training:build", "", "toy-training"),
        ("toy_training:build", "mine", "mine"),
    ],
)
def test_a_factory_is_called_and_its_model_named(
    factory: str, name: str, chosen: str, tmp_path: Path
) -> None:
    contract = deliver_by(factory, tmp_path, name)
    assert contract.model.name == chosen
    assert contract.dimensions["batch"].max == (16 if factory.endswith("net") else 1024)
    assert contract.source.created


@pytest.mark.parametrize(
    ("factory", "match"),
    [
        ("toy_training", "expected MODULE:FACTORY, got 'toy_training'"),
        ("toy_training:", "expected MODULE:FACTORY"),
        (":build", "expected MODULE:FACTORY"),
        ("toy_training:build()", "expected MODULE:FACTORY"),
        ("toy_training.py:build", r"Write toy_training:build$"),
        ("./jobs/toy_training.py:build", r"Write jobs\.toy_training:build$"),
        ("jobs.toy_training.build", r"Write jobs\.toy_training:build$"),
        ("toy_trainin:build", r"none named toy_trainin\. Did you mean toy_training\?"),
        ("no_such_training:build", "no module no_such_training: .*none named no_such_training"),
        ("broken_training:build", r"^broken_training.py:1: .*no_such_package_here"),
        (
            "toy_training:bild",
            r"has no function bild.*one of breaks, build, build_net.*Did you mean build\?",
        ),
        ("toy_training:model", "got Linear"),
        ("toy_training:breaks", r"^toy_training.py:\d+: .*no weights here"),
        ("toy_training:leaves", "SystemExit: usage"),
        ("toy_training:returns_a_model", "got Linear"),
        ("toy_training:has_odd_options", "got batch"),
        ("toy_training:has_a_typo", r"got range\. Did you mean ranges\?"),
        ("toy_training:names_no_input", r"one of input, got inputs\. Did you mean input\?"),
    ],
)
def test_a_factory_that_can_not_be_used_is_reported_in_a_sentence(
    factory: str, match: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageProblem, match=match):
        deliver_by(factory, tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("UserModel", "user-model"),
        ("BERTRanker", "bert-ranker"),
        ("Two_Towers", "two-towers"),
        # These say nothing: the factory's own name counts.
        ("Net", "toy-training"),
        ("Model", "toy-training"),
    ],
)
def test_a_model_is_named_after_its_class_where_that_says_something(kind: str, name: str) -> None:
    model = type(kind, (nn.Module,), {"__module__": "toy_training"})()
    assert default_name("toy_training:build", model)[0] == name


def test_a_class_of_torchs_names_no_model() -> None:
    assert default_name("jobs.toy_training:build_net", nn.Sequential())[0] == "build-net"
