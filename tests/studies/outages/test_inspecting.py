"""Each kind of damage that the inspection claims to see is planted, and seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.mlflow.tags import VERSION_TAG
from handoff.artifacts.release.layout import (
    DELIVERY_FILE,
    ENTRY_FILE,
    SUMS_FILE,
    ledger_key,
    version_key,
    write_parts,
)
from handoff.artifacts.release.ledger import Pointer
from handoff.artifacts.stores.objects import object_key
from handoff.tasks.registry import sign
from handoff.tasks.registry.changes import ReleaseRequest, SignJob
from handoff.tasks.registry.messages import UploadJob
from tests.artifacts.stores.store_fixtures import overwrite
from tests.studies.outages.children import run_in_child
from tests.studies.outages.inspecting import (
    kept_versions,
    see_half,
    see_other_numbers,
    see_unsettled,
)
from tests.studies.outages.litter import for_collector, see_litter, see_processes
from tests.studies.outages.numbered_faults import s3_process
from tests.studies.outages.outcomes import see_lost
from tests.studies.outages.registries import Place, make_place, release_first
from tests.tasks.registry.registering import Here

Damage = Callable[[Place], None]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A registry with one version, without MLflow."""
    place = make_place(tmp_path_factory.mktemp("plain"))
    release_first(place, is_shown=False)
    return place


@pytest.fixture
def place(kept: Place) -> Place:
    """That registry, as it was at first."""
    kept.restore()
    return kept


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A registry with one version, which MLflow shows."""
    place = make_place(tmp_path_factory.mktemp("shown"))
    run_in_child(lambda: release_first(place))
    return place


def key_at(place: Place, key: str) -> Path:
    return Path(place.registry.stores.objects, key)


def write(place: Place, key: str, data: bytes) -> None:
    key_at(place, key).parent.mkdir(parents=True, exist_ok=True)
    overwrite(place.registry.releases.store, key, data) if key_at(place, key).exists() else key_at(
        place, key
    ).write_bytes(data)


def first_pointer(place: Place) -> Pointer:
    return kept_versions(place.registry.entries())[1]


def some_part(place: Place) -> Path:
    releases = place.registry.releases
    parts = releases.parts(releases.read("toy", first_pointer(place)).claim)
    path = next(path for path in sorted(parts) if path.endswith("model.so"))
    return key_at(place, object_key(parts[path][0].digest))


def cut_chain(place: Place) -> None:
    write(place, ledger_key("toy", 1), key_at(place, ledger_key("toy", 2)).read_bytes())


def drop_part(place: Place) -> None:
    some_part(place).unlink()


def damage_part(place: Place) -> None:
    key = some_part(place).relative_to(place.registry.stores.objects).as_posix()
    write(place, key, b"x" * some_part(place).stat().st_size)


def drop_delivery(place: Place) -> None:
    releases = place.registry.releases
    listed = releases.delivery_parts(releases.read("toy", first_pointer(place)).claim)
    key_at(place, object_key(listed["module.py"][0].digest)).unlink()


def keep_other_delivery(place: Place) -> None:
    registry, second = place.registry, place.second
    job = UploadJob(second.manifest, second.folder, registry.stores, second.staged)
    uploaded = Here().run(job)
    assert place.first.staged is not None
    objects = registry.releases.objects
    other = {path.name: objects.put_parts(path) for path in place.first.staged.iterdir()}
    wrong = replace(uploaded, delivery=objects.put_bytes(write_parts(other)))
    manifest = second.manifest
    request = ReleaseRequest("toy", manifest.digest, manifest.fingerprint, "candidate")
    registry.change(request, manifest=manifest, uploaded=wrong)


def point_at_retired(place: Place) -> None:
    releases, head = place.registry.releases, place.registry.releases.require_head("toy")
    entry = replace(
        head.entry, sequence=3, previous=head.digest, action="retire", alias="", retired=(1,)
    )
    signed = sign.run(SignJob(place.registry.key, entry))
    assert releases.commit(signed.entry_envelope.encode(), "toy", 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_chain, "the ledger can't be read"),
        (drop_part, "version 1 can't be read: an object is not in the store"),
        (damage_part, "version 1 can't be read: an object in"),
        (drop_delivery, "version 1 can't be read: an object is not in the store"),
        (keep_other_delivery, "the parts of version 2's delivery are another delivery"),
        (
            lambda place: key_at(place, version_key("toy", 1, DELIVERY_FILE)).unlink(),
            "versions/1/DELIVERY is missing",
        ),
        (point_at_retired, "production stands for version 1, which isn't there"),
        (
            lambda place: write(place, "models/toy/versions/9/PARTS", b""),
            "versions/9 is shown, which the ledger doesn't have",
        ),
        (
            lambda place: key_at(place, version_key("toy", 1, SUMS_FILE)).unlink(),
            "versions/1/SHA256SUMS is missing",
        ),
        (
            lambda place: write(place, version_key("toy", 1, "manifest.json"), b"{}"),
            "versions/1/manifest.json is not what was signed",
        ),
        (
            lambda place: write(place, "models/toy/aliases/candidate.json", b"{}"),
            "aliases/candidate.json is no entry of the ledger",
        ),
    ],
)
def test_what_is_half_there_is_seen(place: Place, damage: Damage, message: str) -> None:
    assert see_half(place.registry.stores) == []
    damage(place)
    assert any(message in text for text in see_half(place.registry.stores)), message


def drop_hints(place: Place) -> None:
    shutil.rmtree(key_at(place, "models/toy/fingerprints"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda place: key_at(place, version_key("toy", 1, ENTRY_FILE)).unlink(),
            f"versions/1/{ENTRY_FILE} is missing",
        ),
        (
            lambda place: key_at(place, "models/toy/aliases/production.json").unlink(),
            "aliases/production.json is not the entry that moved it",
        ),
        (drop_hints, "version 1 isn't found by what it was made from"),
        (drop_part, "version 1 can't be pulled"),
    ],
)
def test_what_a_second_run_has_to_make_up_for_is_seen(
    place: Place, damage: Damage, message: str
) -> None:
    assert see_unsettled(place.registry.stores) == []
    damage(place)
    assert any(message in text for text in see_unsettled(place.registry.stores)), message


def test_versions_and_aliases_that_are_not_what_they_should_be_are_seen(place: Place) -> None:
    assert see_lost(place, [1]) == []
    assert see_lost(place, [1, 2]) == ["the ledger has the versions [1], not [1, 2]"]
    place.registry.release("2026-11-29T00:00:00+00:00", alias="trial")
    assert see_lost(place, [1, 2]) == ["candidate is not version 2 but 1"]
    place.registry.release("2026-11-30T00:00:00+00:00")
    place.registry.promote(3)
    assert see_lost(place, [1, 2, 3]) == ["production is not version 1 but 3"]


def damage_catalogue(place: Place) -> None:
    """Plant what can be wrong side by side: another version, runs and models that never ended."""
    client = mlflow_client(place)
    (listed,) = client.search_model_versions("name = 'toy'")
    experiment = client.get_experiment_by_name("handoff").experiment_id
    running = client.create_run(experiment)
    client.create_logged_model(experiment, name="toy", source_run_id=running.info.run_id)
    other = client.create_model_version("toy", source="/nowhere", tags={VERSION_TAG: "7"})
    client.create_model_version("toy", source="/nowhere", tags={VERSION_TAG: "1"})
    client.set_registered_model_alias("toy", "candidate", other.version)
    next(Path(listed.source.removeprefix("file://")).rglob("model.so")).unlink()
    (place.state / "mlflow" / "artifacts" / "stray").write_bytes(b"stray")
    (place.state / "mlflow" / ".unfinished").mkdir(exist_ok=True)
    (place.state / "mlflow" / ".unfinished" / "left").write_bytes(b"")


def mlflow_client(place: Place) -> Any:
    from mlflow import MlflowClient

    uri = place.registry.stores.tracking_uri
    return MlflowClient(uri, registry_uri=uri)


def test_what_mlflow_shows_half_or_otherwise_than_the_ledger_is_seen(shown: Place) -> None:
    def look() -> list[str]:
        stores = shown.registry.stores
        unlike = see_other_numbers(stores)
        return [*see_half(stores), *see_unsettled(stores), *unlike, *see_litter(stores)]

    shown.restore()
    assert run_in_child(look).value == []
    run_in_child(lambda: damage_catalogue(shown))
    message = "\n".join(run_in_child(look).value)
    for sentence in (
        "MLflow lists version '7', which the ledger doesn't have",
        "MLflow's version 1 is another release",
        "MLflow's version 1 is of no model that is logged",
        "/model.so, or another one",
        "MLflow lists the versions [1, 1, 7], the ledger has [1]",
        "MLflow's version 2 is the ledger's 7",
        "MLflow's aliases are {'candidate': 7, 'production': 1}",
        "is RUNNING",
        "is PENDING",
        "stray belongs to nothing that MLflow lists",
        "is left of a database",
    ):
        assert sentence in message, message


def test_files_that_were_left_lying_about_are_seen(place: Place, tmp_path: Path) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    scratch.mkdir()
    left = {
        key_at(place, ".unfinished/half"): ".unfinished/half is left in the store",
        home / "builds/20261121-030000-1/log": "the build 20261121-030000-1 is left",
        home / "builds/packages/0a/.entry-1/half": "builds/packages/0a/.entry-1 is left",
        home / "builds/programs/.building-1/half": "builds/programs/.building-1 is left",
        home / "builds/compiler/ready/.writing-0a": "builds/compiler/ready/.writing-0a is left",
        home / "ledgers/.writing-0b": "ledgers/.writing-0b is left",
        home / "keys/private/.writing-0c": "keys/private/.writing-0c is left",
        scratch / "handoff-catalogue-1": "handoff-catalogue-1 was left",
    }
    stores = place.registry.stores
    assert see_litter(stores, home=home, scratch=[scratch]) == []
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    found = see_litter(stores, home=home, scratch=[scratch])
    for sentence in left.values():
        assert any(sentence in text for text in found), sentence
    assert len(found) == len(left)
    (home / "builds/20261121-030000-1/refused").touch()
    assert len(see_litter(stores, home=home, scratch=[scratch])) == len(left) - 1


def test_a_process_that_was_left_is_seen(tmp_path: Path) -> None:
    assert see_processes(tmp_path) == []
    environment = {**os.environ, "HANDOFF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, env=environment) as process:
        try:
            (message,) = see_processes(tmp_path)
        finally:
            process.kill()
    assert f"process {process.pid} is left" in message


def test_what_a_killed_command_has_started_is_ended(tmp_path: Path) -> None:
    script = """
import subprocess, sys, time
from handoff.infra.prefect.orphans import end_orphans_later
end_orphans_later()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("started", flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "HANDOFF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        assert len(see_processes(tmp_path)) == 3, "the command, the one that waits, and a child"
        process.kill()
    deadline = time.monotonic() + 10
    while see_processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert see_processes(tmp_path) == []


@pytest.mark.server
def test_what_is_left_for_the_collector_is_counted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_at(place, "selftest").mkdir()
    key_at(place, "selftest/0123").write_bytes(b"one")
    assert for_collector(place.registry.stores) == 1
    with s3_process() as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        import boto3

        boto3.session.Session().client("s3").create_multipart_upload(Bucket="models", Key="a/b")
        assert for_collector(replace(place.registry.stores, objects="s3://models/a")) == 1
        assert for_collector(replace(place.registry.stores, objects="s3://models/c")) == 0
