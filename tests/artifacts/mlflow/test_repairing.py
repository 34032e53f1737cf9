"""Files that MLflow lost, as where its artifacts didn't move along, are uploaded again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from handoff.artifacts.errors import RegistryFailed
from handoff.artifacts.mlflow.registry import Catalogue
from tests.artifacts.mlflow.listing import (
    EVIDENCE,
    Signed,
    all_files,
    client_of,
    list_signed,
    signed_release,
)
from tests.mlflow_server import mlflow_server


def lacking(catalogue: Catalogue, signed: Signed) -> tuple[str, ...]:
    return catalogue.missing_files(signed.manifest, signed.release, EVIDENCE)


def upload_again(catalogue: Catalogue, signed: Signed) -> None:
    catalogue.upload_again(
        signed.claim, signed.manifest, signed.folder, release=signed.release, evidence=EVIDENCE
    )


def test_what_is_whole_lacks_nothing_and_what_was_lost_comes_back(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    signed = signed_release(tmp_path / "release")
    list_signed(catalogue, signed)
    root = Path(catalogue.artifact_root)
    # MLmodel tells when it was written.
    whole = {p: (root / p).read_bytes() for p in all_files(root) if not p.endswith("MLmodel")}
    assert lacking(catalogue, signed) == ()

    # A report of the run, and a package that was cut.
    (report,) = [p for p in root.rglob("report.html") if "models" not in p.relative_to(root).parts]
    report.unlink()
    package = next(iter(root.rglob("*.so")))
    package.write_bytes(package.read_bytes()[:-1])
    assert lacking(catalogue, signed) == (
        next(f.path for f in signed.manifest.targets[0].files if f.path.endswith(package.name)),
        "report.html",
    )
    upload_again(catalogue, signed)
    assert lacking(catalogue, signed) == ()
    assert {path: (root / path).read_bytes() for path in whole} == whole
    assert list_signed(catalogue, signed).version == 1


@pytest.mark.server
@pytest.mark.long
def test_a_server_whose_artifacts_did_not_move_along_gets_them_again(tmp_path: Path) -> None:
    signed = signed_release(tmp_path / "release")
    place = tmp_path / "artifacts"
    with mlflow_server(tmp_path / "server", str(place)) as address:
        catalogue = Catalogue(address, "")
        list_signed(catalogue, signed)
        before = all_files(place)
        shutil.rmtree(place)
        assert catalogue.list_versions("toy")[1].release == signed.release
        assert {"report.html", "MLmodel", "manifest.json"} <= {*lacking(catalogue, signed)}
        upload_again(catalogue, signed)
        assert lacking(catalogue, signed) == ()
        assert all_files(place) == before
        assert len(client_of(catalogue).search_model_versions("name = 'toy'")) == 1


def test_where_an_embedded_one_keeps_them_elsewhere_by_now_it_is_a_sentence(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    signed = signed_release(tmp_path / "release")
    list_signed(catalogue, signed)
    shutil.rmtree(catalogue.artifact_root)
    moved = Catalogue(catalogue.tracking_uri, str(tmp_path / "elsewhere"))
    assert lacking(moved, signed)
    with pytest.raises(RegistryFailed, match=r"mlflow\.db .* aside and run 'handoff sync'"):
        upload_again(moved, signed)
    assert not Path(catalogue.artifact_root).exists()
