"""MLflow loads and serves a released package, after its signature and its bytes were verified."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from handoff.artifacts.errors import PackageRefused, UsageProblem
from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.release.statement import RELEASE_FILE
from handoff.artifacts.serve.loader import load
from tests.artifacts.mlflow.listing import Signed, list_signed, read_signed
from tests.artifacts.samples import sample_key, sign_release
from tests.mlflow_server import copy_mlflow_tables, mlflow_process
from tests.tasks.built_release import ITEMS, BuiltRelease

pytestmark = pytest.mark.compile


@pytest.fixture
def listed(built_release: BuiltRelease, tmp_path: Path) -> Catalogue:
    """A registry that lists the recommender as version 3, the candidate."""
    copy_mlflow_tables(tmp_path / "mlflow.db")
    catalogue = Catalogue(f"sqlite:///{tmp_path / 'mlflow.db'}", str(tmp_path / "mlflow"))
    list_signed(catalogue, signed_copy(built_release, tmp_path / "release"))
    catalogue.set_aliases(built_release.manifest.model, {"candidate": 3})
    return catalogue


def signed_copy(built: BuiltRelease, folder: Path) -> Signed:
    """Return the built release in a folder of its own, beside the key that signed it."""
    shutil.copytree(built.folder, folder)
    shutil.copyfile(built.key, folder / "key.pub")
    return read_signed(folder)


@pytest.fixture
def trusting(built_release: BuiltRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine trusts the key that signed it."""
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", str(built_release.key))


@pytest.fixture
def tracked(listed: Catalogue) -> Iterator[str]:
    """MLflow looks into that registry; yield the candidate's address."""
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(listed.tracking_uri)
    yield "models:/toy@candidate"
    mlflow.set_tracking_uri(before)


def inputs(rows: int = 5) -> dict[str, Any]:
    """Return a call's inputs as arrays."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, ITEMS, (rows, 20))
    return {"ids": ids, "features": rng.standard_normal((rows, 64)).astype(np.float32)}


def expected(built: BuiltRelease, given: dict[str, Any]) -> Any:
    """Return what the loader itself makes of the same."""
    model = load(built.folder, keys=built.key)
    tensors = [torch.from_numpy(given[spec.name]) for spec in model.signature.inputs]
    return model(*tensors)[0].numpy()


def listed_folder(catalogue: Catalogue) -> Path:
    """Return where MLflow keeps the version's files."""
    return Path(catalogue.list_versions("toy")[3].report).parent


@pytest.mark.usefixtures("trusting")
def test_the_candidate_predicts_what_the_loader_does(
    built_release: BuiltRelease, tracked: str
) -> None:
    import mlflow

    model = mlflow.pyfunc.load_model(tracked)
    given = inputs()
    np.testing.assert_array_equal(model.predict(given), expected(built_release, given))
    example = model.input_example
    assert example["ids"].shape == (1, 20)
    assert model.predict(example).shape == (1, 3)
    declared = {spec.name: (spec.type.name, spec.shape) for spec in model.metadata.signature.inputs}
    assert declared == {"ids": ("int64", (-1, 20)), "features": ("float32", (-1, 64))}


@pytest.mark.usefixtures("trusting")
def test_a_dataframe_of_rows_gives_the_same(built_release: BuiltRelease, tracked: str) -> None:
    import mlflow

    given = inputs()
    frame = pd.DataFrame({name: array.tolist() for name, array in given.items()})
    found = mlflow.pyfunc.load_model(tracked).predict(frame)
    np.testing.assert_array_equal(found, expected(built_release, given))


@pytest.mark.usefixtures("trusting")
def test_inputs_that_the_model_does_not_take_are_refused_and_it_goes_on(
    built_release: BuiltRelease, tracked: str
) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    model = mlflow.pyfunc.load_model(tracked)
    given = inputs()
    with pytest.raises(MlflowException, match=f"ids is not what.*values from 0 to {ITEMS - 1}"):
        model.predict({**given, "ids": given["ids"] + ITEMS})
    with pytest.raises(MlflowException, match="expected batch = 5 as in another input, got 4"):
        model.predict({**given, "features": given["features"][:4]})
    with pytest.raises(MlflowException, match="does not match expected shape"):
        model.predict({**given, "ids": given["ids"][:, :3]})
    np.testing.assert_array_equal(model.predict(given), expected(built_release, given))


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("model.so", "model.so is not the file that was released"),
        ("manifest.json", "is not the one that was signed"),
        (RELEASE_FILE, "is not verified"),
    ],
)
def test_a_flipped_bit_in_what_mlflow_serves_is_refused(
    name: str, match: str, listed: Catalogue, tracked: str
) -> None:
    import mlflow

    (file,) = listed_folder(listed).rglob(name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    with pytest.raises(PackageRefused, match=match):
        mlflow.pyfunc.load_model(tracked)


def test_a_release_that_nobody_here_trusts_is_refused(
    tracked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.delenv("HANDOFF_TRUSTED_KEYS", raising=False)
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    with pytest.raises(PackageRefused, match="got none that is trusted here"):
        mlflow.pyfunc.load_model(tracked)
    other = tmp_path / "other.pub"
    other.write_bytes(sample_key("another").pem)
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", str(other))
    with pytest.raises(PackageRefused, match="expected a signature by a trusted key"):
        mlflow.pyfunc.load_model(tracked)


def test_keys_of_the_settings_count_only_where_this_machine_trusts_none(
    built_release: BuiltRelease, tracked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    monkeypatch.delenv("HANDOFF_TRUSTED_KEYS", raising=False)
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    settings = {"keys": str(built_release.key)}
    model = mlflow.pyfunc.load_model(tracked, model_config=settings)
    assert model.predict(inputs(2)).shape == (2, 3)
    trusted = tmp_path / "home" / "keys" / "trusted"
    trusted.mkdir(parents=True)
    (trusted / "other.pub").write_bytes(sample_key("another").pem)
    with pytest.raises(PackageRefused, match="expected a signature by a trusted key"):
        mlflow.pyfunc.load_model(tracked, model_config=settings)


@pytest.mark.usefixtures("trusting")
def test_an_older_release_put_in_a_version_s_place_is_refused(
    built_release: BuiltRelease, listed: Catalogue, tracked: str
) -> None:
    import mlflow

    sign_release(listed_folder(listed), built_release.manifest, version=2)
    with pytest.raises(PackageRefused, match="version 2"):
        mlflow.pyfunc.load_model(tracked)


def test_a_setting_that_a_release_does_not_know_is_told(tmp_path: Path) -> None:
    from handoff.infra.flavor import _load_pyfunc

    with pytest.raises(UsageProblem, match="got trust"):
        _load_pyfunc(str(tmp_path), {"trust": "everybody"})


@pytest.mark.server
def test_mlflow_serves_the_candidate_over_http(
    built_release: BuiltRelease, listed: Catalogue, tmp_path: Path
) -> None:
    options = ["-m", "models:/toy@candidate", "--env-manager", "local", "--workers", "1"]
    environment = {
        "MLFLOW_TRACKING_URI": listed.tracking_uri,
        "HANDOFF_TRUSTED_KEYS": str(built_release.key),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    given = inputs(3)
    with mlflow_process(tmp_path, "models serve", options, environment, "/ping") as address:
        status, answer = invoke(address, {name: array.tolist() for name, array in given.items()})
        assert status == 200, answer
        found = np.array(json.loads(answer)["predictions"], dtype=np.float32)
        np.testing.assert_array_equal(found, expected(built_release, given))
        beyond = {**given, "ids": given["ids"] + ITEMS}
        status, answer = invoke(address, {name: array.tolist() for name, array in beyond.items()})
        assert status == 400
        assert "ids is not what the model takes: expected values from 0 to 999" in answer
        status, answer = invoke(address, {"ids": [[1, 2]], "features": [[0.5]]})
        assert status == 400
        assert "shape" in answer
        status, _ = invoke(address, {name: array.tolist() for name, array in given.items()})
        assert status == 200


def invoke(address: str, given: dict[str, Any]) -> tuple[int, str]:
    """Ask a server for predictions; return the status and what it says."""
    request = urllib.request.Request(
        f"{address}/invocations",
        data=json.dumps({"inputs": given}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
