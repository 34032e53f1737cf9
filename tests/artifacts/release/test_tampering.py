"""What was changed after it was signed is refused with a sentence, and nothing of it runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from handoff.artifacts.errors import HandoffError, PackageRefused
from handoff.artifacts.release.package import check_packages, check_release
from handoff.artifacts.serve import loader
from handoff.artifacts.serve.loader import load
from handoff.artifacts.serve.sealing import seal_file
from tests.artifacts.mlflow.canaries import CANARY, Pulled, canary_library, pull_canaries
from tests.artifacts.release.tampering import ACCEPTED, OPENED, TAMPERINGS, Tampering
from tests.artifacts.release.tampering_table import TABLE, expected_row, render
from tests.artifacts.samples import sample_key

pytestmark = pytest.mark.compile
NAMED = {tampering.what: tampering for tampering in TAMPERINGS}


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a package writes its word to when it is opened."""
    monkeypatch.setenv(CANARY, str(tmp_path / "canary"))
    return tmp_path / "canary"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the canaries are built."""
    return tmp_path_factory.mktemp("built")


@pytest.fixture
def pulled(built: Path, tmp_path: Path) -> Pulled:
    """A fresh signed release of canaries."""
    return pull_canaries(tmp_path / "pulled", built)


@pytest.mark.parametrize("what", NAMED)
def test_load_opens_nothing_that_was_tampered_with(
    what: str, pulled: Pulled, built: Path, canary: Path
) -> None:
    tampering = NAMED[what]
    tampering.change(pulled, built)
    # A canary is opened, and is no model.
    message = "can't be opened" if tampering.load == OPENED else tampering.load
    with pytest.raises(PackageRefused, match=message) as refused:
        _load(tampering, pulled)
    assert "\n" not in str(refused.value)
    assert canary.exists() is (tampering.load == OPENED)


def _load(tampering: Tampering, pulled: Pulled) -> object:
    return load(
        pulled.folder, keys=sample_key().trust, name=tampering.name, version=tampering.version,
        target=tampering.target, file=tampering.file,
    )  # fmt: skip


@pytest.mark.parametrize("what", NAMED)
def test_a_check_refuses_what_was_tampered_with_and_opens_nothing(
    what: str, pulled: Pulled, built: Path, canary: Path
) -> None:
    tampering = NAMED[what]
    tampering.change(pulled, built)

    def check() -> Any:
        return check_release(
            pulled.folder, torch.__version__, sample_key().trust,
            name=tampering.name, version=tampering.version,
        )  # fmt: skip

    if tampering.verify_pattern == ACCEPTED:
        assert check().claim.version == 3
    else:
        with pytest.raises(PackageRefused, match=tampering.verify_pattern):
            check()
    assert not canary.exists()


@pytest.mark.parametrize("file", ["model.so", "model.pt2"])
def test_a_file_that_is_swapped_between_check_and_load_is_not_what_is_loaded(
    file: Any, pulled: Pulled, built: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_checked = loader._open

    def swap_first(sealed: str, path: Path, device: str, runners: int) -> Any:
        path.write_bytes(canary_library("swapped", built))
        return open_checked(sealed, path, device, runners)

    monkeypatch.setattr(loader, "_open", swap_first)
    with pytest.raises(PackageRefused, match="can't be opened"):
        load(pulled.folder, keys=sample_key().trust, file=file)
    assert canary.read_text() == "released\n"


def test_a_sealed_copy_can_be_written_to_by_nobody(pulled: Pulled) -> None:
    file = pulled.manifest.targets[0].files[0]
    descriptor = seal_file(pulled.folder, file, hold=True)
    again = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    try:
        for change in (lambda: os.pwrite(again, b"x", 0), lambda: os.truncate(again, 0)):
            with pytest.raises(PermissionError, match="not permitted"):
                change()
    finally:
        os.close(again)
    assert seal_file(pulled.folder, file, hold=True) == descriptor


def test_another_release_is_taken_where_nothing_is_pinned(
    pulled: Pulled, built: Path, canary: Path
) -> None:
    tampering = NAMED["another model's signed release in its place, the name pinned"]
    tampering.change(pulled, built)
    assert check_release(pulled.folder, None, sample_key().trust).claim.model == "other"


def test_what_was_never_run_is_checked_for_those_alone_who_compare_it_now(pulled: Pulled) -> None:
    (target, *others) = pulled.manifest.targets
    waiting = replace(target, accepted=False, unverified="compiled where there is no such GPU")
    manifest = replace(pulled.manifest, targets=(waiting, *others))
    with pytest.raises(PackageRefused, match="handoff verify FOLDER --delivery PATH"):
        check_packages(pulled.folder, manifest, None)
    slugs = check_packages(pulled.folder, manifest, None, unverified=True)
    assert slugs == check_packages(pulled.folder, pulled.manifest, None)
    refused = replace(target, accepted=False, unverified="")
    with pytest.raises(PackageRefused, match="not for this machine"):
        check_packages(
            pulled.folder, replace(manifest, targets=(refused, *others)), None, unverified=True
        )


def test_keys_are_named_by_file_folder_or_both(pulled: Pulled, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    with pytest.raises(PackageRefused, match="a public key to verify it with, got none that is"):
        load(pulled.folder, keys=folder)
    stranger = folder / "stranger.pub"
    stranger.write_bytes(sample_key("stranger").pem)
    with pytest.raises(PackageRefused, match="a trusted key"):
        load(pulled.folder, keys=folder)
    own = tmp_path / "own.pem"
    own.write_bytes(sample_key().pem)
    for keys in (own, str(own), [folder, own]):
        with pytest.raises(PackageRefused, match="can't be opened"):
            load(pulled.folder, keys=keys)
    with pytest.raises(HandoffError, match="No such file"):
        load(pulled.folder, keys=tmp_path / "none.pub")


def test_the_table_tells_what_these_tests_ask_for() -> None:
    assert TABLE.read_text() == render([expected_row(tampering) for tampering in TAMPERINGS])
