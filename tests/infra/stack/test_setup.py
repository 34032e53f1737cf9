"""A stack comes up again as it was set up, whatever the shell; a difference is never silent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.infra.stack.layout import Choices, StackLayout
from handoff.infra.stack.setup import (
    Setup,
    describe_setup,
    differences,
    read_setup,
    resolve_setup,
    settings_of,
    write_setup,
)

S3 = {
    "HANDOFF_STORE": "s3://models/handoff",
    "AWS_ENDPOINT_URL": "http://ceph:7480",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret-that-must-not-be-told",
}
LOGIN = {"PREFECT_SERVER_API_AUTH_STRING": "handoff:password-that-must-not-be-told"}


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A fresh shell, in which nothing is set that a stack is made of."""
    before = dict(os.environ)
    for name in settings_of(os.environ, tries_out=False):
        monkeypatch.delenv(name)
    for name in [name for name in os.environ if name.startswith(("HANDOFF_", "AWS_"))]:
        monkeypatch.delenv(name)
    yield monkeypatch
    # `resolve_setup` sets the variables of this process, which the next test is not to have.
    os.environ.clear()
    os.environ.update(before)


def setup_of(settings: dict[str, str], **chosen: Any) -> Setup:
    return Setup(Choices(**{"builds": 2, **chosen}), settings)


def test_a_fresh_shell_gets_the_settings_and_options_that_were_kept(tmp_path: Path) -> None:
    place = StackLayout(tmp_path)
    place.folder.mkdir()
    write_setup(place, setup_of({**S3, **LOGIN}, host="10.0.0.7"))
    assert place.setup.stat().st_mode & 0o777 == 0o600
    settled = resolve_setup(Choices(), read_setup(place), None)
    assert settled == setup_of({**S3, **LOGIN}, host="10.0.0.7")
    assert {name: os.environ.get(name) for name in {**S3, **LOGIN}} == {**S3, **LOGIN}


def test_the_same_shell_agrees_with_itself(shell: pytest.MonkeyPatch) -> None:
    for name, value in {**S3, **LOGIN}.items():
        shell.setenv(name, value)
    first = resolve_setup(Choices(builds=2), None, None)
    assert first == setup_of({**S3, **LOGIN})
    assert resolve_setup(Choices(), first, None) == first


def test_an_option_that_is_given_goes_before_the_one_that_was_kept() -> None:
    kept = setup_of({}, host="10.0.0.7", s3=True)
    settled = resolve_setup(Choices(builds=4, s3=False), kept, None)
    assert settled.choices == Choices(host="10.0.0.7", builds=4, s3=False)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HANDOFF_STORE", "s3://others/place", "HANDOFF_STORE is s3://others/place, and was s3://"),
        ("CXX", "clang++", "CXX is clang++, and was not set"),
        ("AWS_SECRET_ACCESS_KEY", "another", "another AWS_SECRET_ACCESS_KEY"),
        ("MLFLOW_AUTH_ADMIN_PASSWORD", "pass-of-now", "MLFLOW_AUTH_ADMIN_PASSWORD, where there"),
    ],
)
def test_another_setting_is_refused_and_either_can_be_chosen(
    name: str, value: str, says: str, shell: pytest.MonkeyPatch
) -> None:
    kept = setup_of(S3)
    for known, setting in S3.items():
        shell.setenv(known, setting)
    shell.setenv(name, value)
    with pytest.raises(UsageProblem) as refused:
        resolve_setup(Choices(), kept, None)
    assert says in str(refused.value)
    for secret in ("must-not-be-told", "pass-of-now"):
        assert secret not in str(refused.value)
    assert resolve_setup(Choices(), kept, "shell").settings[name] == value
    assert resolve_setup(Choices(), kept, "kept").settings == S3
    # The processes that are started see what was chosen.
    assert os.environ.get(name) == S3.get(name)


def test_what_a_shell_does_not_say_is_no_difference() -> None:
    assert differences(S3, {}) == []
    assert differences(S3, {"HANDOFF_STORE": S3["HANDOFF_STORE"]}) == []


def test_access_keys_are_kept_for_a_store_in_s3_alone_and_temporary_ones_never() -> None:
    keys = {name: value for name, value in S3.items() if name != "HANDOFF_STORE"}
    assert settings_of(keys, tries_out=False) == {}
    assert settings_of(S3, tries_out=False) == S3
    assert settings_of(S3, tries_out=True) == {}
    temporary = settings_of({**S3, "AWS_SESSION_TOKEN": "token"}, tries_out=False)
    assert set(temporary) == {"HANDOFF_STORE", "AWS_ENDPOINT_URL"}


def test_places_mean_the_same_in_another_folder(shell: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shell.chdir(tmp_path)
    settings = settings_of({"HANDOFF_STORE": "a/../store", "HANDOFF_RECIPES": "r"}, tries_out=False)
    assert settings == {
        "HANDOFF_STORE": str(tmp_path / "store"), "HANDOFF_RECIPES": str(tmp_path / "r"),
    }  # fmt: skip


def test_what_was_kept_is_told_without_its_secrets() -> None:
    words = describe_setup(setup_of({**S3, **LOGIN}, host="10.0.0.7", builds=None, sqlite=False))
    assert words == "store s3://models/handoff, 4 more settings, --host 10.0.0.7"
    url = {"HANDOFF_STORE": "s3://user:must-not-be-told@models/x"}
    assert "must-not-be-told" not in describe_setup(setup_of(url))


@pytest.mark.parametrize("text", ["{", "[]", '{"choices": 3, "settings": {}}', '{"choices": {}}'])
def test_a_file_that_is_none_is_reported(text: str, tmp_path: Path) -> None:
    place = StackLayout(tmp_path)
    place.folder.mkdir()
    place.setup.write_text(text)
    with pytest.raises(EnvironmentLacking, match="set up with can't be read"):
        read_setup(place)


def test_options_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    place = StackLayout(tmp_path)
    place.folder.mkdir()
    place.setup.write_text('{"choices": {"builds": 3, "of_tomorrow": 1}, "settings": {}}')
    assert read_setup(place) == Setup(Choices(builds=3), {})


def test_down_keeps_it(tmp_path: Path) -> None:
    place = StackLayout(tmp_path)
    place.make()
    write_setup(place, setup_of(S3))
    place.remove_runtime_files()
    assert read_setup(place) == setup_of(S3)
