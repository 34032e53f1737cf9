"""What of two deliveries differs, by the objects that a store keeps them as."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.release.difference import compare_deliveries, delivery_digests
from handoff.artifacts.stores.objects import Objects, Part
from handoff.artifacts.stores.store import open_store
from handoff.tasks.deliver.step import deliver

_FILES = {
    "module": "module.py", "state": "state_dict.pt", "layer": "layer1.pt",
    "contract": "delivery.toml", "evaluation": "evaluation.safetensors",
}  # fmt: skip


def delivery(**contents: str) -> dict[str, str]:
    """Return the digests of a delivery whose files hold these words, an object for each word."""
    files = {
        "module.py": "code", "__init__.py": "code", "sources.json": "lines", "delivery.toml": "new",
        "state_dict.pt": "head weights tail", "layer1.pt": "layer",
        "examples.safetensors": "examples",
    }  # fmt: skip
    for name, words in contents.items():
        files[_FILES[name]] = words
    objects = {
        digest_bytes(word.encode()): word for text in files.values() for word in text.split()
    }
    parts = {
        name: tuple(Part(digest_bytes(word.encode()), len(word)) for word in words.split())
        for name, words in files.items()
    }
    return delivery_digests(parts, lambda digest, _: objects[digest].encode())


@pytest.mark.parametrize(
    ("other", "kinds"),
    [
        ({}, []),
        ({"state": "head others tail"}, ["weights"]),
        ({"layer": "other"}, ["weights"]),
        ({"module": "other"}, ["code"]),
        ({"module": "other", "state": "head others tail"}, ["code", "weights"]),
        ({"evaluation": "labels"}, ["evaluation"]),
        # It names a commit and a moment; what it says of the inputs is compared by itself.
        ({"contract": "other"}, []),
    ],
)
def test_what_differs_of_a_delivery_is_named_by_what_it_is(
    other: dict[str, str], kinds: list[str]
) -> None:
    changes = compare_deliveries(delivery(), delivery(**other))
    assert sorted(change.name for change in changes) == kinds
    assert {change.section for change in changes} <= {"source"}
    assert all(change.before != change.after for change in changes)


def test_a_piece_that_moves_to_another_file_is_a_difference() -> None:
    before, after = delivery(state="head weights tail"), delivery(state="weights head tail")
    assert [change.name for change in compare_deliveries(before, after)] == ["weights"]


def test_of_a_delivery_that_was_not_kept_nothing_is_said() -> None:
    assert compare_deliveries({}, delivery()) == compare_deliveries(delivery(), {}) == ()


def test_a_model_that_was_only_trained_on_has_other_weights_and_the_same_code(
    tmp_path: Path,
) -> None:
    objects = Objects(open_store(str(tmp_path / "store")))
    example = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))

    def delivered(folder: Path, seed: int, hidden: int = 16) -> dict[str, str]:
        torch.manual_seed(seed)
        module = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 2)).eval()
        deliver(
            module, (example,), folder, name="toy", lineage=Lineage("https://a.org/b", str(seed))
        )
        files = {path.name: objects.put_parts(path) for path in folder.iterdir()}
        return delivery_digests(files, objects.read_bytes)

    first, again = delivered(tmp_path / "first", 0), delivered(tmp_path / "again", 0)
    assert compare_deliveries(first, again) == ()
    trained = compare_deliveries(first, delivered(tmp_path / "trained", 1))
    # The examples hold what the model gave.
    assert {change.name for change in trained} == {"weights", "examples"}
    wider = compare_deliveries(first, delivered(tmp_path / "wider", 0, hidden=32))
    assert {"code", "weights"} <= {change.name for change in wider}
