"""A second machine joins a stack: what it is given, what it asks, and what it takes from nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, UsageProblem
from handoff.artifacts.release.signing import read_trust
from handoff.infra.prefect.pools import make_pools, online_workers
from handoff.infra.prefect.prefect_api import open_client
from handoff.infra.prefect.stack_settings import (
    StackSettings,
    read_stack_settings,
    write_stack_settings,
)
from handoff.infra.settings import read_settings
from handoff.infra.stack import joining
from handoff.infra.stack.joining import join, share_settings
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_server
from tests.tasks.registry.registering import SomeRegistry, some_registry

if TYPE_CHECKING:
    from prefect.client.schemas.actions import VariableUpdate

pytestmark = pytest.mark.server
POOL = "handoff-build"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API's address of the stack's Prefect server."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address


@pytest.fixture
def stack(api: str, tmp_path: Path) -> SomeRegistry:
    """A stack whose server knows what it was set up with."""
    found = some_registry(tmp_path)
    Path(found.stores.objects).mkdir(parents=True, exist_ok=True)
    environment = {
        "HANDOFF_HOME": str(tmp_path / "home"), "PREFECT_API_URL": api,
        "HANDOFF_TRUSTED_KEYS": found.stores.trusted[0], "HANDOFF_STORE": found.stores.objects,
        "HANDOFF_SIGNING_KEY": found.key.uri,
        "HANDOFF_SIGNING_PUBLIC_KEY": str(found.key.public),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "AWS_SECRET_ACCESS_KEY": "not told to anybody", "AWS_DEFAULT_REGION": "eu-central-1",
    }  # fmt: skip
    with patch.dict(os.environ, environment):
        share_settings(read_settings(), "", os.environ)
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """Another machine's home, where nothing is set; what is set meanwhile is undone."""
    bare = {n: v for n, v in os.environ.items() if not n.startswith(("HANDOFF_", "AWS_", "MLFLOW"))}
    bare["HANDOFF_HOME"] = str(tmp_path / "elsewhere")
    with patch.dict(os.environ, bare, clear=True):
        yield tmp_path / "elsewhere"


def id_of(stack: SomeRegistry) -> str:
    (key,) = read_trust(stack.stores.trusted).keys
    return key.keyid


def test_a_machine_that_joins_has_the_stacks_settings_and_trusts_the_key_that_was_named(
    stack: SomeRegistry, api: str, elsewhere: Path
) -> None:
    join(api.removesuffix("/api"), [id_of(stack)[:12]], registers=True)
    assert os.environ["PREFECT_API_URL"] == api
    assert os.environ["AWS_DEFAULT_REGION"] == "eu-central-1"
    settings = read_settings()
    assert settings.home == elsewhere
    assert settings.stores.objects == stack.stores.objects
    assert settings.stores.tracking_uri.endswith("mlflow.db")
    assert read_trust(settings.stores.trusted).ids == (id_of(stack)[:12],)
    # The key that signs is a file of the other machine's: who has it brings it.
    assert "HANDOFF_SIGNING_KEY" not in os.environ
    assert settings.signing_key.public.read_bytes() == stack.key.public.read_bytes()


def test_no_secret_is_told_and_nothing_but_settings_is_taken(
    stack: SomeRegistry, api: str, elsewhere: Path
) -> None:
    assert elsewhere
    assert "not told" not in str(read_stack_settings(api, ""))
    shared = read_stack_settings(api, "")
    more = {"LD_PRELOAD": "/tmp/its.so", "PYTHONPATH": "/tmp", "CXX": "its"}
    write_stack_settings(
        api, "", StackSettings({**shared.settings, **more}, shared.trusted, shared.signs)
    )
    os.environ.pop("CXX", None)
    join(api, [id_of(stack)], registers=True)
    assert not {"LD_PRELOAD", "CXX"} & set(os.environ)
    assert os.environ.get("PYTHONPATH") != "/tmp"


def test_a_shell_that_knows_no_stores_changes_nothing_of_what_is_shared(
    stack: SomeRegistry, api: str, elsewhere: Path
) -> None:
    assert elsewhere
    before = read_stack_settings(api, "")
    assert id_of(stack)
    os.environ["PREFECT_API_URL"] = api
    share_settings(read_settings(), "", os.environ)
    assert read_stack_settings(api, "") == before


def test_what_the_environment_says_already_counts(
    stack: SomeRegistry, api: str, elsewhere: Path
) -> None:
    os.environ |= {
        "HANDOFF_STORE": str(elsewhere), "HANDOFF_TRUSTED_KEYS": stack.stores.trusted[0],
    }  # fmt: skip
    join(api, [], registers=True)
    assert os.environ["HANDOFF_STORE"] == str(elsewhere)
    assert os.environ["HANDOFF_TRUSTED_KEYS"] == stack.stores.trusted[0]


@pytest.mark.parametrize("named", [[], ["0" * 12], ["short"]])
def test_nobodys_word_is_no_trust_and_the_sentence_has_the_id_to_compare(
    stack: SomeRegistry, api: str, elsewhere: Path, named: list[str]
) -> None:
    named = [id_of(stack)[:8] if name == "short" else name for name in named]
    with pytest.raises(UsageProblem) as refused:
        join(api, named, registers=True)
    assert f"--trust {id_of(stack)}" in refused.value.remedy
    assert not (elsewhere / "keys").exists()
    # Who only has a target's hardware registers nothing.
    join(api, [], registers=False)


@pytest.mark.parametrize(("answer", "agrees"), [("yes", True), ("no", False)])
def test_a_person_at_the_terminal_is_asked(
    stack: SomeRegistry,
    api: str,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    *,
    agrees: bool,
) -> None:
    assert elsewhere
    monkeypatch.setattr(joining, "on_terminal", lambda: True)
    monkeypatch.setattr(joining, "ask", lambda *_: answer)
    if agrees:
        join(api, [], registers=True)
        assert read_trust(read_settings().stores.trusted).ids == (id_of(stack)[:12],)
    else:
        with pytest.raises(UsageProblem, match="which of the stack's keys to trust"):
            join(api, [], registers=True)


def test_an_address_of_the_stacks_machine_alone_is_reached_by_its_name_or_refused(
    stack: SomeRegistry, api: str, elsewhere: Path
) -> None:
    assert elsewhere
    shared = read_stack_settings(api, "")
    here = {**shared.settings, "MLFLOW_TRACKING_URI": "http://127.0.0.1:5000"}
    write_stack_settings(api, "", StackSettings(here, shared.trusted, shared.signs))
    # The same server, by a name that isn't this machine's alone.
    by_name = api.replace("127.0.0.1", "127.1")
    with patch.object(joining, "_ask_mlflow_login"):
        join(by_name, [id_of(stack)], registers=True)
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.1:5000"
    write_stack_settings(
        api, "", StackSettings({**here, "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    )
    with pytest.raises(EnvironmentLacking, match="for trying out"):
        join(by_name, [], registers=True)


def test_a_store_that_is_a_folder_has_to_be_there(
    stack: SomeRegistry, api: str, elsewhere: Path, tmp_path: Path
) -> None:
    shared = read_stack_settings(api, "")
    missing = {"HANDOFF_STORE": str(tmp_path / "not mounted")}
    write_stack_settings(api, "", StackSettings(missing, shared.trusted, shared.signs))
    with pytest.raises(EnvironmentLacking, match="a folder that this machine doesn't have"):
        join(api, [id_of(stack)], registers=True)
    assert not elsewhere.exists()


@pytest.mark.parametrize(
    "url", ["stack.example.org", "ftp://stack/", "http://user:secret@stack:4200", "http://"]
)
def test_an_address_that_is_none_is_told_without_its_password(url: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        join(url, [], registers=True)
    assert "secret" not in str(refused.value)


@pytest.mark.long
def test_a_server_that_tells_nothing_of_a_stack_is_said_to(tmp_path: Path) -> None:
    with prefect_server(tmp_path / "prefect") as bare:
        with pytest.raises(EnvironmentLacking, match="doesn't tell the settings of a stack"):
            read_stack_settings(bare, "")
        with open_client(bare, "") as client:
            for value in ("a text", {"settings": 1}, {"settings": {}, "trusted": ["no key"]}):
                write_stack_settings(bare, "", StackSettings())
                client.update_variable(_variable(value))
                with pytest.raises(HandoffError, match="doesn't tell the settings of a stack"):
                    read_stack_settings(bare, "")


def _variable(value: Any) -> VariableUpdate:
    from prefect.client.schemas.actions import VariableUpdate

    return VariableUpdate(name="handoff-stack", value=value)


@pytest.mark.long
def test_the_command_joins_proves_and_works_with_nothing_set_but_the_key(
    stack: SomeRegistry, api: str, elsewhere: Path, tmp_path: Path
) -> None:
    make_pools(api, "", [POOL])
    command = [
        sys.executable, "-m", "handoff", "worker", "--join", api.removesuffix("/api"),
        "--trust", id_of(stack)[:16], "--name", "joined",
    ]  # fmt: skip
    without = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert without.returncode == 1, without.stderr
    assert "no key signs here" in " ".join(without.stderr.split()), without.stderr
    assert "HANDOFF_SIGNING_KEY" in without.stderr
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            env={**os.environ, "HANDOFF_SIGNING_KEY": stack.key.uri},
        )  # fmt: skip
        try:
            deadline = time.monotonic() + LIMIT_S
            with open_client(api, "") as client:
                while "joined" not in online_workers(client).get(POOL, []):
                    assert time.monotonic() < deadline, log.read_text()
                    assert worker.poll() is None, log.read_text()
                    time.sleep(0.5)
        finally:
            worker.terminate()
            worker.wait(60)
    text = log.read_text()
    assert f"from the stack: HANDOFF_STORE is {stack.stores.objects}" in text
    assert "which is trusted" in text
    assert elsewhere.is_dir()
