"""Settings: where state lives, and what a child process may see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from handoff.artifacts.delivery.uri import LocalSource, parse_delivery_uri
from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.infra.commands.release import require_folder
from handoff.infra.documenting.split_lock import split
from handoff.infra.engine.environments import child_environment, prepare_prefect
from handoff.infra.settings import (
    paths_kept_from_steps,
    read_settings,
    require_writable_home,
    step_memory_bytes,
)
from tests.limits import LIMIT_S


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("HANDOFF_HOME", "HANDOFF_STORE", "HANDOFF_SIGNING_KEY", "HANDOFF_TRUSTED_KEYS")
    for name in (*names, "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)


def test_places_that_a_person_names_from_a_folder_beside_are_passed_on_as_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("deploying", "training/delivery"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "module.py").touch()
    (tmp_path / "deploying" / "link").symlink_to(tmp_path / "training" / "delivery")
    monkeypatch.chdir(tmp_path / "deploying")
    monkeypatch.setenv("HANDOFF_HOME", "../home")
    monkeypatch.setenv("HANDOFF_STORE", "../store")
    settings = read_settings()
    assert (settings.home, settings.stores.objects) == (tmp_path / "home", str(tmp_path / "store"))
    folder = tmp_path / "training" / "delivery"
    assert require_folder(Path("../training/delivery")) == folder
    assert require_folder(Path("link/../delivery")) == folder
    assert parse_delivery_uri(str(require_folder(Path("../training/delivery")))) == (
        LocalSource(folder)
    )


def test_by_default_everything_lies_where_the_platform_expects_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = read_settings()
    assert settings.home == tmp_path / "handoff"
    assert settings.stores.objects == str(tmp_path / "handoff" / "store")
    mlflow = tmp_path / "handoff" / "mlflow"
    assert settings.stores.tracking_uri == f"sqlite:///{mlflow / 'mlflow.db'}"
    assert settings.stores.artifact_root == str(mlflow / "artifacts")
    assert settings.is_embedded


def test_with_s3_mlflows_own_artifacts_go_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.setenv("HANDOFF_STORE", "s3://models/handoff/")
    assert read_settings().stores.artifact_root == "s3://models/handoff/mlflow"


def test_a_server_says_itself_where_its_artifacts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    settings = read_settings()
    assert settings.stores.artifact_root == ""
    assert not settings.is_embedded


def test_trusted_keys_are_those_that_are_named_else_those_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    assert read_settings().stores.trusted == (str(tmp_path / "home" / "keys" / "trusted"),)
    (tmp_path / "team").mkdir()
    (tmp_path / "own.pub").touch()
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", f"{tmp_path / 'team'}:{tmp_path / 'own.pub'}")
    assert read_settings().stores.trusted == (str(tmp_path / "team"), str(tmp_path / "own.pub"))
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", str(tmp_path / "nowhere"))
    with pytest.raises(UsageProblem, match="HANDOFF_TRUSTED_KEYS names a place that isn't there"):
        read_settings()


def test_a_key_is_made_where_none_is_named_and_never_in_the_place_of_a_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    assert read_settings().signing_key.make_missing
    monkeypatch.setenv("HANDOFF_SIGNING_KEY", "awskms:alias/release")
    monkeypatch.setenv("HANDOFF_SIGNING_PUBLIC_KEY", str(tmp_path / "release.pub"))
    key = read_settings().signing_key
    assert (key.uri, key.public) == ("awskms:alias/release", tmp_path / "release.pub")
    assert not key.make_missing


@pytest.mark.parametrize("store", ["gs://models", "s3:/models", "file:/models", "http://models"])
def test_another_scheme_is_told(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_STORE", store)
    with pytest.raises(UsageProblem, match=f"a folder or s3://bucket/prefix, got {store}"):
        read_settings()


def test_the_setting_is_named_whose_folder_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", str(tmp_path / "store"))
    require_writable_home(read_settings())
    for name in ("HANDOFF_STORE", "HANDOFF_HOME"):
        place = str(tmp_path / "file" / "below")
        monkeypatch.setenv(name, place)
        with pytest.raises(EnvironmentLacking, match=f"state to {place}.* Set {name} to a wri"):
            require_writable_home(read_settings())


def test_a_child_sees_its_compiler_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "GITHUB_TOKEN", "CXX"):
        monkeypatch.setenv(name, "value")
    bare = child_environment(stores=False)
    assert "CXX" in bare
    assert "PATH" in bare
    assert not {"AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "GITHUB_TOKEN"} & set(bare)
    stores = child_environment(stores=True)
    assert {"AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"} <= set(stores)
    assert "GITHUB_TOKEN" not in stores


@pytest.mark.parametrize(
    ("key", "seen"),
    [
        ("", set()),
        ("/keys/release.pem", set()),
        ("file:/keys/release.pem", set()),
        ("awskms:///alias/releases", {"AWS_SECRET_ACCESS_KEY", "https_proxy"}),
        ("gcpkms://projects/p", {"GOOGLE_APPLICATION_CREDENTIALS", "https_proxy"}),
        ("azurekms://vault/key", {"AZURE_CLIENT_SECRET", "https_proxy"}),
    ],
)
def test_signing_sees_its_key_services_credentials_and_no_other(
    key: str, seen: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET",
        "MLFLOW_TRACKING_PASSWORD", "https_proxy",
    }  # fmt: skip
    for name in secrets:
        monkeypatch.setenv(name, "value")
    monkeypatch.setenv("HANDOFF_SIGNING_KEY", key)
    signing = child_environment(keys=True)
    assert signing["HANDOFF_SIGNING_KEY"] == key
    assert secrets & set(signing) == seen
    assert "HANDOFF_SIGNING_KEY" not in child_environment(stores=True)


def test_a_keys_file_elsewhere_is_kept_from_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_HOME", "/srv/handoff")
    kept = (Path("/srv/handoff/keys/private"), Path("/srv/handoff/stack"))
    assert paths_kept_from_steps() == kept
    monkeypatch.setenv("HANDOFF_SIGNING_KEY", "awskms:///alias/releases")
    assert paths_kept_from_steps() == kept
    for key in ("/etc/handoff/release.pem", "file:///etc/handoff/release.pem"):
        monkeypatch.setenv("HANDOFF_SIGNING_KEY", key)
        assert paths_kept_from_steps() == (*kept, Path("/etc/handoff/release.pem"))


def test_a_home_where_every_compiler_makes_its_files_can_not_be_kept_from_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", "/tmp/handoff")
    assert paths_kept_from_steps() == ()


def test_what_steps_write_to_is_there_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", str(tmp_path / "objects"))
    settings = read_settings()
    require_writable_home(settings)
    assert {path.name for path in settings.home.iterdir()} == {
        "builds", "keys", "ledgers", "mlflow",
    }  # fmt: skip
    assert (tmp_path / "objects").is_dir()
    assert settings.private_keys.stat().st_mode & 0o777 == 0o700


def test_what_the_user_has_set_for_prefect_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    prepare_prefect(read_settings())
    assert os.environ["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["PREFECT_HOME"] == str(tmp_path / "prefect")


def test_a_lock_is_split_without_losing_an_entry() -> None:
    entries = ["boto3==1 \\\n    --hash=sha256:a\n", "nvidia-nccl==2 \\\n    --hash=sha256:b\n",
               "torch==3 \\\n    --hash=sha256:c\n", "torchlike==4 \\\n    --hash=sha256:d\n",
               "triton==5 \\\n    --hash=sha256:e\n"]  # fmt: skip
    rest, torch = split("".join(entries))
    for entry in entries:
        assert (entry in rest) != (entry in torch)
    assert "boto3" in rest
    assert all(name in torch for name in ("nvidia-nccl", "torch==3", "triton"))


def test_a_step_may_take_the_memory_that_is_named_or_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.delenv("HANDOFF_STEP_MEMORY", raising=False)
    monkeypatch.setattr("handoff.infra.settings.has_gpu", lambda: False)
    assert whole // 2 <= (step_memory_bytes() or 0) <= whole
    monkeypatch.setattr("handoff.infra.settings.has_gpu", lambda: True)
    assert step_memory_bytes() is None
    for text, found in (("64G", 64 * 10**9), ("4000M", 4 * 10**9), ("600000000", 6 * 10**8)):
        monkeypatch.setenv("HANDOFF_STEP_MEMORY", text)
        assert step_memory_bytes() == found
    for text in ("much", "0", "-1G", "64 T", "9" * 5000):
        monkeypatch.setenv("HANDOFF_STEP_MEMORY", text)
        with pytest.raises(UsageProblem, match="HANDOFF_STEP_MEMORY is no amount of memory"):
            step_memory_bytes()
    for text in ("5", "64M"):
        monkeypatch.setenv("HANDOFF_STEP_MEMORY", text)
        with pytest.raises(UsageProblem, match="is too little for any step: expected 500M or more"):
            step_memory_bytes()


def test_what_was_set_for_prefect_here_is_not_for_the_process_that_takes_this_ones_place(
    tmp_path: Path,
) -> None:
    code = """
import json, sys
from handoff.infra.engine.environments import (
    prepare_prefect, replace_process, worker_environment,
)
from handoff.infra.settings import read_settings

prepare_prefect(read_settings(), retries=1)
show = "import json, os; print(json.dumps(dict(os.environ)))"
replace_process([sys.executable, "-c", show], worker_environment(read_settings(), None))
"""
    mine = {"PREFECT_SERVER_LOGGING_LEVEL": "DEBUG", "HANDOFF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **mine}, capture_output=True, text=True,
        check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    after = json.loads(done.stdout)
    assert not {"PREFECT_LOGGING_LEVEL", "PREFECT_CLIENT_MAX_RETRIES"} & set(after)
    assert after["PREFECT_SERVER_LOGGING_LEVEL"] == "DEBUG"
    assert after["DO_NOT_TRACK"] == "true"
    assert after["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
