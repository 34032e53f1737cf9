"""The catalogue by way of real servers: MLflow's, S3's, and one that loses what it is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from handoff.artifacts.errors import RegistryFailed
from handoff.artifacts.mlflow.registry import Catalogue
from tests.artifacts.mlflow.listing import client_of, list_signed, signed_release
from tests.artifacts.recipe.gpu_generations import BOTH, for_gpus
from tests.conftest import BUCKET, served_s3
from tests.faulty_server import FOREVER, Fault, FaultyServer
from tests.mlflow_server import copy_mlflow_tables, mlflow_server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def s3_settings() -> Iterator[dict[str, str]]:
    """One S3 endpoint, for MLflow too."""
    with served_s3(os.environ.get("HANDOFF_TEST_S3", "")) as settings:
        yield {**settings, "MLFLOW_S3_ENDPOINT_URL": settings["AWS_ENDPOINT_URL"]}


@pytest.fixture
def s3(s3_settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """S3 as this process's environment names it."""
    for name, value in s3_settings.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3", endpoint_url=s3_settings["AWS_ENDPOINT_URL"])


@pytest.fixture(scope="module")
def before_s3(
    s3_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An MLflow server that keeps its artifacts in S3."""
    home = tmp_path_factory.mktemp("before-s3")
    with mlflow_server(home, f"s3://{BUCKET}/served", s3_settings) as address:
        yield address


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server that keeps its artifacts in a folder."""
    home = tmp_path_factory.mktemp("server")
    with mlflow_server(home, str(home / "artifacts")) as address:
        yield address


def keys_of(s3: Any) -> list[str]:
    """Return what lies in the bucket."""
    return [one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def downloaded(catalogue: Catalogue, address: str, to: Path) -> Path:
    """Return the folder that MLflow fetches for an address."""
    import mlflow

    to.mkdir()
    return Path(
        mlflow.artifacts.download_artifacts(
            address, dst_path=str(to), tracking_uri=catalogue.tracking_uri
        )
    )


def test_artifacts_go_straight_to_s3_where_that_is_the_root(tmp_path: Path, s3: Any) -> None:
    copy_mlflow_tables(tmp_path / "mlflow.db")
    catalogue = Catalogue(f"sqlite:///{tmp_path / 'mlflow.db'}", f"s3://{BUCKET}/mlflow")
    listing = list_signed(catalogue, signed_release(tmp_path / "release"))
    assert listing.report.startswith(f"s3://{BUCKET}/mlflow/")
    report = listing.report.removeprefix(f"s3://{BUCKET}/")
    assert {report, report.replace("report.html", "MLmodel")} <= set(keys_of(s3))


def test_artifacts_go_to_s3_by_way_of_a_server_and_come_back_whole(
    tmp_path: Path, s3: Any, before_s3: str
) -> None:
    signed = signed_release(tmp_path / "release")
    catalogue = Catalogue(before_s3, "")
    list_signed(catalogue, signed)
    catalogue.set_aliases("toy", {"candidate": 1})
    assert any(key.startswith("served/") for key in keys_of(s3))
    version = client_of(catalogue).get_model_version_by_alias("toy", "candidate")
    folder = downloaded(catalogue, version.source, tmp_path / "back")
    for file in (*signed.manifest.files, signed.manifest.targets[0].files[1]):
        assert (folder / file.path).read_bytes() == (signed.folder / file.path).read_bytes()


def test_a_package_for_several_gpus_is_listed_in_s3_by_way_of_a_server(
    tmp_path: Path, s3: Any, before_s3: str
) -> None:
    target = for_gpus(90, untried=(80,))
    signed = signed_release(tmp_path / "release", target, model="several")
    catalogue = Catalogue(before_s3, "")
    listing = list_signed(catalogue, signed)
    client = client_of(catalogue)
    data = client.get_run(listing.run_id).data
    assert data.metrics["cuda-sm80_sm90/speedup"] == 2.0
    assert data.params["targets"] == data.tags["handoff.targets"] == BOTH
    assert data.tags["handoff.unverified_gpus"] == f"{BOTH}:8.0"
    blessed = "accepted, not yet verified for compute capability 8.0"
    assert data.tags["handoff.blessing.numeric"] == blessed
    version = client.get_model_version("several", "1")
    assert (version.tags["verdict"], version.tags["targets"]) == (blessed, BOTH)
    assert f"`{BOTH}`" in version.description
    folder = downloaded(catalogue, version.source, tmp_path / "back")
    name = f"{BOTH}/model.pt2"
    assert (folder / name).read_bytes() == (signed.folder / name).read_bytes()


def test_what_a_killed_one_left_in_s3_is_taken_away(
    tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    copy_mlflow_tables(tmp_path / "mlflow.db")
    catalogue = Catalogue(f"sqlite:///{tmp_path / 'mlflow.db'}", f"s3://{BUCKET}/killed")
    signed = signed_release(tmp_path / "release")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "finalize_logged_model", stopped)
        with pytest.raises(KeyboardInterrupt, match=r"^$"):
            list_signed(catalogue, signed)
    # The bucket outlives a test.
    left = {key for key in keys_of(s3) if key.startswith("killed/")}
    assert left
    list_signed(catalogue, signed)
    assert not left & set(keys_of(s3))


@pytest.mark.parametrize(
    "path",
    ["runs/create", "logged-models$", "log-batch", "mlflow-artifacts", "logged-models/m-",
     "registered-models/create", "model-versions/create", "model-versions/search", "alias"],
)  # fmt: skip
def test_a_request_that_fails_in_each_way_is_made_again_and_nothing_is_made_twice(
    path: str, tmp_path: Path, upstream: str
) -> None:
    model = f"toy-{path.replace('/', '-').strip('$-')}"
    # The last was done, and is asked for once more.
    faults: list[Fault] = ["unavailable", "reset", "lost_answer"]
    signed = signed_release(tmp_path / "release", model=model)
    with FaultyServer(upstream) as server:
        catalogue = Catalogue(server.url, "")
        for fault in faults:
            server.plan(fault, path=path)
        listing = list_signed(catalogue, signed)
        assert catalogue.set_aliases(model, {"candidate": 1}).unlisted == ()
        assert [one.fault for one in server.log if one.fault] == faults
    client = client_of(Catalogue(upstream, ""))
    (version,) = client.search_model_versions(f"name = '{model}'")
    assert (int(version.version), version.run_id) == (1, listing.run_id)
    experiment = client.get_experiment_by_name("handoff").experiment_id
    query = f"tags.`handoff.release` = '{signed.release}'"
    assert [one.info.run_id for one in client.search_runs([experiment], query)] == [listing.run_id]
    (logged,) = client.search_logged_models([experiment], query)
    assert str(logged.status) == "READY"


def test_a_server_that_stays_unavailable_is_told_and_nothing_is_shown(
    tmp_path: Path, upstream: str
) -> None:
    signed = signed_release(tmp_path / "release", model="toy-unavailable")
    with FaultyServer(upstream) as server:
        catalogue = Catalogue(server.url, "", patience_s=1.0)
        server.plan("unavailable", times=FOREVER, path="model-versions/create")
        with pytest.raises(RegistryFailed, match=r"MLflow could not list a release.*503"):
            list_signed(catalogue, signed)
        assert catalogue.list_versions("toy-unavailable") == {}
        server.clear()
        assert list_signed(catalogue, signed).version == 1
    client = client_of(Catalogue(upstream, ""))
    experiment = client.get_experiment_by_name("handoff").experiment_id
    query = f"tags.`handoff.release` = '{signed.release}'"
    assert len(client.search_runs([experiment], query)) == 1
