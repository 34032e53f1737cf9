"""A store that an old version wrote is listed, verified, pulled, served and added to by today's.

`tests/golden/store-f3f543c.tar.xz` was written once, by the code of commit f3f543c (0.1.0), and is
kept: a release of `nn.Sequential(nn.Linear(4, 3), nn.ReLU())` for cpu-avx2 and its promotion, the
key that signed, MLflow's file MLmodel, and what that version's own loader answered.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import handoff
from handoff.artifacts.digest import Digest
from handoff.artifacts.recipe.compatibility import installed_torch
from handoff.artifacts.release.manifest import parse_manifest
from handoff.artifacts.release.releases import open_releases
from handoff.artifacts.stores.objects import object_key
from tests.infra.commands.test_cli import assert_is_a_sentence
from tests.infra.commands.test_cli import handoff as command

KEPT = Path(__file__).parents[2] / "golden" / "store-f3f543c.tar.xz"


@dataclass(frozen=True)
class OldStore:
    """The store, a home that trusts nothing by itself, and what the old version answered."""

    folder: Path
    home: Path
    key: Path
    inputs: torch.Tensor
    outputs: torch.Tensor

    @property
    def settings(self) -> dict[str, str]:
        """Return what a serving machine sets."""
        return {"HANDOFF_STORE": str(self.folder), "HANDOFF_TRUSTED_KEYS": str(self.key)}

    def flip(self, place: str) -> None:
        """Flip one bit in the middle of a file of the store's."""
        path = self.folder / place
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OldStore:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    store = OldStore(
        tmp_path / "store", tmp_path / "home", tmp_path / "release.pub",
        torch.tensor(expected["inputs"]), torch.tensor(expected["outputs"]),
    )  # fmt: skip
    for name in [name for name in os.environ if name.startswith(("HANDOFF_", "MLFLOW"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HANDOFF_HOME", str(store.home))
    for name, value in store.settings.items():
        monkeypatch.setenv(name, value)
    return store


@pytest.fixture
def pulled(old: OldStore, tmp_path: Path) -> Path:
    """The package in a folder; skips where the machine can't run what it was compiled to."""
    manifest = parse_manifest((old.folder / "models/small/versions/1/manifest.json").read_bytes())
    fit = manifest.targets[0].fit
    assert fit
    if misfit := fit.misfit(installed_torch()):
        pytest.skip(f"the old version's package doesn't fit this machine: {misfit}")
    assert handoff.pull("small@production", tmp_path / "pulled").version == 1
    return tmp_path / "pulled"


def test_its_ledger_is_verified_with_the_key_that_signed_it(old: OldStore, tmp_path: Path) -> None:
    releases = open_releases(str(old.folder), (str(old.key),), tmp_path / "seen.json")
    assert releases.models() == ("small",)
    entries = releases.entries("small")
    assert [entry.action for entry in entries] == ["release", "promote"]
    assert {alias: held.version for alias, held in entries[-1].aliases.items()} == {
        "candidate": 1, "production": 1,
    }  # fmt: skip
    release = releases.read("small", releases.find("small", "production"))
    assert (release.claim.version, release.manifest.verdict) == (1, "sound")


def test_its_model_is_listed_and_shown(old: OldStore) -> None:
    listed = command("list", "--json", home=old.home, settings=old.settings)
    assert [row["name"] for row in json.loads(listed.stdout)["models"]] == ["small"], listed.stderr
    shown = command("show", "small@production", home=old.home, settings=old.settings)
    title = "small version 1 (@candidate, @production): record c8defb9d6ca6, delivery sound"
    assert title in shown.stdout, shown.stderr
    assert "cpu-avx2   accepted" in shown.stdout


@pytest.mark.parametrize(
    ("asked", "says"),
    [(("history", "small"), "What was in production"), (("diff", "small@1", "small"), "differ in")],
)
def test_its_versions_make_pages(
    asked: tuple[str, ...], says: str, old: OldStore, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    for _ in range(2):
        result = command(*asked, "--html", str(page), home=old.home, settings=old.settings)
        assert result.returncode == 0, result.stderr
    assert says in page.read_text()
    page.write_text("notes of mine")
    result = command(*asked, "--html", str(page), home=old.home, settings=old.settings)
    assert_is_a_sentence(result, 64, "is there already", "it was left alone")
    assert page.read_text() == "notes of mine"


def test_its_package_is_pulled_for_another_machine_whatever_this_one_is(
    old: OldStore, tmp_path: Path
) -> None:
    result = handoff.pull("small@production", tmp_path / "pulled", target="cpu-avx2")
    assert (result.version, result.target) == (1, "cpu-avx2")
    assert (tmp_path / "pulled" / "cpu-avx2" / "model.so").stat().st_size == 1_612_968


def test_its_package_answers_what_it_answered_then(old: OldStore, pulled: Path) -> None:
    served = handoff.load(pulled, keys=old.key, name="small", version=1)
    (outputs,) = served(old.inputs)
    torch.testing.assert_close(outputs, old.outputs, rtol=1e-6, atol=1e-7)
    with pytest.raises(handoff.InputsRefused, match="expected shape"):
        served(old.inputs[:, :3].contiguous())


def test_what_it_showed_in_mlflow_is_loaded_by_its_former_name(old: OldStore, pulled: Path) -> None:
    import mlflow

    shutil.copyfile(old.key.parent / "mlflow" / "MLmodel", pulled / "MLmodel")
    assert "loader_module: infra.flavor" in (pulled / "MLmodel").read_text()
    model = mlflow.pyfunc.load_model(str(pulled))
    found = model.predict(old.inputs.numpy())
    np.testing.assert_allclose(found, old.outputs.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("entry", [1, 2])
def test_a_flipped_bit_in_its_ledger_is_refused_in_a_sentence(entry: int, old: OldStore) -> None:
    old.flip(f"models/small/ledger/{entry:08}.json")
    result = command("history", "small", home=old.home, settings=old.settings)
    assert_is_a_sentence(result, 6, f"entry {entry}", "is not verified")


@pytest.mark.parametrize("record", ["manifest", "release"])
def test_a_flipped_bit_in_a_record_that_its_ledger_names_is_refused_in_a_sentence(
    record: str, old: OldStore, tmp_path: Path
) -> None:
    releases = open_releases(str(old.folder), (str(old.key),), None)
    named: Digest = getattr(releases.entries("small")[0], record)
    old.flip(object_key(named))
    arguments = ("pull", "small@production", "--to", str(tmp_path / "pulled"))
    result = command(*arguments, home=old.home, settings=old.settings)
    assert_is_a_sentence(result, 5, "not what its digest says")
    assert not (tmp_path / "pulled").exists()


def test_without_its_key_nothing_of_it_is_believed(old: OldStore, tmp_path: Path) -> None:
    from tests.artifacts.samples import sample_key

    other = tmp_path / "other.pub"
    other.write_bytes(sample_key("another").pem)
    settings = {**old.settings, "HANDOFF_TRUSTED_KEYS": str(other)}
    result = command("list", home=old.home, settings=settings)
    assert_is_a_sentence(result, 6, "expected a signature by a trusted key")
