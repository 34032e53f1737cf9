"""`handoff promote` to an alias that isn't there yet: it is said to be new, or was a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from handoff.artifacts.errors import UsageProblem
from handoff.infra.cli.registry import promote
from handoff.tasks.registry.draft import require_intended_alias
from tests.mlflow_server import copy_mlflow_tables
from tests.tasks.registry.registering import SomeRegistry, some_registry


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SomeRegistry:
    """A registry with one version, which `candidate` points to."""
    made = some_registry(tmp_path)
    copy_mlflow_tables(tmp_path / "mlflow.db")
    made.release()
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HANDOFF_STORE", made.stores.objects)
    monkeypatch.setenv("HANDOFF_SIGNING_KEY", str(tmp_path / "keys" / "private" / "signing.pem"))
    monkeypatch.setenv("HANDOFF_TRUSTED_KEYS", made.stores.trusted[0])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(promote, list(arguments))


def test_an_alias_that_is_new_is_said_to_be_and_one_like_another_has_to_be_meant(
    registry: SomeRegistry,
) -> None:
    refused = run("toy@1", "--to", "prod").exception
    assert isinstance(refused, UsageProblem)
    assert "got prod. Did you mean production? Else add --new-alias" in str(refused)
    assert set(registry.entries()[-1].aliases) == {"candidate"}
    ended = run("toy@1")
    text = ended.output
    assert ended.exit_code == 0, ended.exception
    assert "toy: production points to version 1 (a new alias; existing: candidate), entry 2" in text
    text = run("toy@1", "--to", "prod", "--new-alias").output
    assert "toy: prod points to version 1 (a new alias; existing: candidate, production)" in text


@pytest.mark.parametrize(
    ("alias", "meant"),
    [("prod", "production"), ("prodution", "production"), ("cand", "candidate")],
)
def test_an_alias_that_is_like_one_which_is_there_or_is_asked_for_has_to_be_meant(
    alias: str, meant: str
) -> None:
    with pytest.raises(
        UsageProblem, match=f"got {alias}. Did you mean {meant}\\? Else add --new-alias"
    ):
        require_intended_alias("toy", alias, ("candidate",), "Else add --new-alias")


@pytest.mark.parametrize("alias", ["production", "candidate", "canary", "production-eu", "prod"])
def test_an_alias_that_is_like_none_or_that_is_there_needs_nothing(alias: str) -> None:
    require_intended_alias("toy", alias, ("candidate", "prod"), "Else add --new-alias")
