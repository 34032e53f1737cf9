"""Caches of compiled packages: one for each delivered code, all of them held to a size."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.tasks.compile.caching import package_cache
from handoff.tasks.compile.caching.package_cache import (
    ENTRY_FILE,
    evict_old_packages,
    package_cache_of,
)
from tests.tasks.deliveries import write_delivery


def deliver(folder: Path, module: nn.Module, example: torch.Tensor) -> Path:
    return write_delivery(folder, module, {"input": example})


def test_what_is_trained_further_has_the_same_cache_and_other_code_another(tmp_path: Path) -> None:
    first = deliver(tmp_path / "first", nn.Linear(4, 2), torch.randn(6, 4))
    again = deliver(tmp_path / "again", nn.Linear(4, 2), torch.randn(6, 4))
    contract = again / "delivery.toml"
    text = contract.read_text()
    contract.write_text(text.replace('commit = "0123abc"', 'commit = "fedcba9"'))
    assert contract.read_text() != text
    other = deliver(tmp_path / "other", nn.Linear(4, 2, bias=False), torch.randn(6, 4))
    caches = [package_cache_of(one, tmp_path) for one in (first, again, other)]
    assert caches[0] == caches[1]
    assert caches[0] != caches[2]


def test_another_contract_is_another_cache(tmp_path: Path) -> None:
    first = deliver(tmp_path / "first", nn.Linear(4, 2), torch.randn(6, 4))
    before = package_cache_of(first, tmp_path)
    contract = first / "delivery.toml"
    contract.write_text(contract.read_text().replace("max = 64", "max = 65"))
    assert package_cache_of(first, tmp_path) != before


@pytest.mark.parametrize("kind", ["nothing", "a pipe", "a link", "no contract"])
def test_of_what_is_no_delivery_a_cache_is_named_at_once(kind: str, tmp_path: Path) -> None:
    folder = deliver(tmp_path / "delivery", nn.Linear(4, 2), torch.randn(6, 4))
    before = package_cache_of(folder, tmp_path)
    module = folder / "module.py"
    if kind == "no contract":
        (folder / "delivery.toml").write_bytes(b"\xff = [")
    else:
        module.unlink()
    if kind == "a pipe":
        os.mkfifo(module)
    if kind == "a link":
        module.symlink_to("/etc/passwd")
    assert package_cache_of(folder, tmp_path) != before
    shutil.rmtree(folder)
    assert package_cache_of(folder, tmp_path).parent == tmp_path


def test_entries_of_all_caches_together_are_held_to_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_cache, "_MAX_BYTES", 100_000)
    for age, name in enumerate(("a/newest", "b/next", "a/oldest")):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "model.so").write_bytes(os.urandom(40_000))
        (folder / ENTRY_FILE).write_text("{}")
        os.utime(folder / ENTRY_FILE, (1e9 - age, 1e9 - age))
    evict_old_packages(tmp_path)
    left = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*/model.so")}
    assert left == {"a/newest", "b/next"}
