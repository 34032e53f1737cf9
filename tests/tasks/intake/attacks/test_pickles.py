"""Attacks in pickles: nothing in them is called, and nothing but values comes out of them."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.tasks.intake.attacks.planting import Canary, refuse, rewrite_pickle


@pytest.mark.parametrize("name", ["norm.pt", "state_dict.pt"])
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_never_runs_a_pickle_that_calls(folder: Path, name: str, protocol: int) -> None:
    evil = pickle.dumps(Canary(folder.parent / "canary"), protocol)
    rewrite_pickle(folder / name, lambda _: evil)
    refuse(folder, name)


def test_never_runs_a_call_beside_an_honest_module(folder: Path) -> None:
    evil = pickle.dumps(Canary(folder.parent / "canary"), 2)[2:-1] + b"0"
    rewrite_pickle(folder / "norm.pt", lambda data: data[:2] + evil + data[2:])
    refuse(folder, "norm.pt")


def test_names_the_class_of_the_team_s_own_that_a_file_holds(folder: Path) -> None:
    rewrite_pickle(
        folder / "norm.pt", lambda data: data.replace(b"torch.nn.modules.normalization", b"gates")
    )
    error = refuse(folder, "own code")
    assert error.got == "gates.LayerNorm"
    assert "handoff deliver" in error.remedy


@pytest.mark.parametrize("odd", [b"a\tb", b"\x1b[2J", "\u202e".encode(), b"x" * 10_000])
def test_a_name_that_a_file_holds_is_shown_in_one_printable_line(folder: Path, odd: bytes) -> None:
    rewrite_pickle(
        folder / "norm.pt",
        lambda data: data.replace(b"torch.nn.modules.normalization", b"gates").replace(
            b"LayerNorm", odd, 1
        ),
    )
    message = str(refuse(folder, r"norm\.pt"))
    assert message.isprintable()
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("_forward_hooks", {0: torch.nn.functional.relu}, "without hooks"),
        ("_forward_pre_hooks", {0: torch.nn.functional.relu}, "without hooks"),
        ("forward", torch.nn.functional.relu, "hide no method"),
        ("__call__", torch.nn.functional.relu, "hide no method"),
        ("__class__", 3, "hide no method"),
        ("reset_parameters", 3, "hide no method"),
        ("normalized_shape", torch.nn.functional.relu, "numbers, text and tuples"),
        ("activation", torch.nn.init.zeros_, "an activation"),
        ("activation", torch.hub.list, "an activation"),
        ("eps", {"a": [torch.zeros(1)]}, "numbers, text and tuples"),
    ],
)
def test_refuses_a_module_that_holds_more_than_values(
    folder: Path, name: str, value: object, match: str
) -> None:
    layer = nn.LayerNorm(16)
    vars(layer)[name] = value
    torch.save(layer, folder / "norm.pt")
    refuse(folder, match)


def test_refuses_a_module_inside_itself(folder: Path) -> None:
    outer = nn.Module()
    outer._modules["again"] = outer
    torch.save(outer, folder / "norm.pt")
    refuse(folder, "inside itself")


def test_refuses_modules_that_are_shared_without_end(folder: Path) -> None:
    layer: nn.Module = nn.ReLU()
    for _ in range(45):
        above = nn.Module()
        above._modules.update(a=layer, b=layer)
        layer = above
    torch.save(layer, folder / "norm.pt")
    refuse(folder, "at most 100000 modules")


def test_refuses_parameters_of_parameters(folder: Path) -> None:
    call = b"ctorch._utils\n_rebuild_parameter\n"
    nested = call * 5000 + b"N" + b"\x89ccollections\nOrderedDict\n)R\x87R" * 5000
    rewrite_pickle(folder / "state_dict.pt", lambda data: b"\x80\x02" + nested + b".")
    refuse(folder, "state_dict.pt")
    state = b"\x80\x02ccollections\nOrderedDict\n)RX\x05\x00\x00\x00a.b.c" + nested + b"s."
    rewrite_pickle(folder / "state_dict.pt", lambda data: state)
    refuse(folder, "state_dict.pt")


def test_refuses_values_that_are_shared_without_end(folder: Path) -> None:
    layer = nn.LayerNorm(16)
    value: tuple[object, ...] = (1, 2)
    for _ in range(11):
        value = (value,) * 40
    layer.eps = value  # type: ignore[assignment]
    torch.save(layer, folder / "norm.pt")
    refuse(folder, "too many")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("norm.bias"),
        lambda state: state.update({"more": torch.zeros(1)}),
        lambda state: state.update({"norm.bias": torch.zeros(17)}),
        lambda state: state.update({"norm.bias": torch.zeros(16, dtype=torch.float64)}),
        lambda state: state.update({"norm.bias": torch.full((16,), 1e-9)}),
        lambda state: state.update({"norm.bias": "text"}),
        lambda state: state.update({"norm.bias": torch.zeros(16).to_sparse()}),
        lambda state: state.update({"norm.bias": torch.zeros(16, device="meta")}),
        lambda state: state.update({"norm.bias": torch.zeros(1).expand(16)}),
    ],
)
def test_refuses_a_state_of_another_model(folder: Path, change: Callable[[Any], Any]) -> None:
    state = torch.load(folder / "state_dict.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "state_dict.pt")
    refuse(folder, "state_dict.pt")


def test_refuses_a_quantised_tensor_with_a_way_out(folder: Path) -> None:
    state = torch.load(folder / "state_dict.pt", weights_only=True)
    with pytest.warns(UserWarning, match="deprecated"):
        quantised = torch.quantize_per_tensor(torch.zeros(16), 0.1, 0, torch.qint8)
    torch.save({**state, "norm.bias": quantised}, folder / "state_dict.pt")
    assert "before quantisation" in refuse(folder, "dense tensors").remedy


def test_refuses_a_tensor_that_reaches_beyond_its_storage(folder: Path) -> None:
    size = b"K\x10\x85"
    assert size in zipfile.ZipFile(folder / "norm.pt").read("norm/data.pkl")
    rewrite_pickle(folder / "norm.pt", lambda data: data.replace(size, b"K\x11\x85", 1))
    refuse(folder, "within its storage of 16 elements")
