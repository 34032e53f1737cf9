"""New weights for code that is open: what is shared, and what isn't taken for it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest
from handoff.artifacts.serve.loader import LoadedModel, load
from tests.artifacts.samples import sample_key, sign_release
from tests.tasks.built_release import BuiltRelease
from tests.tasks.follow.versions import Shelf, shelf_of
from tests.tasks.registry.registering import some_registry

pytestmark = pytest.mark.compile


@pytest.fixture
def shelf(tmp_path: Path, built_release: BuiltRelease) -> Shelf:
    return shelf_of(some_registry(tmp_path), built_release)


def signed(shelf: Shelf, factor: float, library: bytes | None = None) -> Path:
    """Return the folder of a signed version that multiplies the scores."""
    manifest, folder = shelf.write(factor, factor, library)
    return sign(manifest, folder)


def sign(manifest: Manifest, folder: Path) -> Path:
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    sign_release(folder, manifest)
    return folder


def opened(folder: Path) -> LoadedModel:
    return load(folder, keys=sample_key().trust, known_code=True, runners=2)


def libraries() -> int:
    """Return how many sealed libraries this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[4] for line in lines if "memfd:model.so" in line})


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_versions_of_one_code_share_it_and_each_has_its_own_weights(shelf: Shelf) -> None:
    first = opened(signed(shelf, 1.0))
    # What other tests have left is closed now, or while the models are opened.
    gc.collect()
    count, held = libraries(), descriptors()
    models = {factor: opened(signed(shelf, factor)) for factor in (2.0, 3.0, 4.0)}
    assert libraries() == count
    assert descriptors() <= held
    for factor, model in models.items():
        assert shelf.factor_of(*model(*shelf.call)) == factor
    assert shelf.factor_of(*first(*shelf.call)) == 1.0
    del models, model
    gc.collect()
    assert shelf.factor_of(*first(*shelf.call)) == 1.0


def test_its_outputs_are_bit_by_bit_those_of_the_library_itself(shelf: Shelf) -> None:
    opened(signed(shelf, 1.0))
    folder = signed(shelf, 0.7)
    count = libraries()
    by_known_code = opened(folder)(*shelf.call)
    assert libraries() == count
    by_itself = load(folder, keys=sample_key().trust)(*shelf.call)
    assert libraries() == count + 1
    assert torch.equal(*by_known_code, *by_itself)


def test_other_code_is_opened_beside_it(shelf: Shelf) -> None:
    opened(signed(shelf, 1.0))
    count = libraries()
    library = (shelf.built.package / "model.so").read_bytes()
    # A word of the compiler about itself, which nothing reads.
    place = library.rindex(b"GCC: (")
    other = library[:place] + b"gcc" + library[place + 3 :]
    model = opened(signed(shelf, 1.0, other))
    assert libraries() == count + 1
    assert shelf.factor_of(*model(*shelf.call)) == 1.0
