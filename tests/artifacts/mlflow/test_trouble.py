"""A registry that is locked, down or not there is reported, and names that it would misread."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff.artifacts.delivery.contract import require_alias_name, require_model_name
from handoff.artifacts.errors import RegistryFailed
from handoff.artifacts.mlflow.registry import Catalogue
from tests.artifacts.mlflow.listing import (
    list_signed,
    signed_release,
)
from tests.limits import LIMIT_S


def test_a_locked_database_is_waited_for(tmp_path: Path, catalogue: Catalogue) -> None:
    list_signed(catalogue, signed_release(tmp_path / "first", version=1))
    second = signed_release(tmp_path / "second", version=2)
    other = sqlite3.connect(catalogue.tracking_uri.removeprefix("sqlite:///"))
    other.execute("BEGIN EXCLUSIVE")
    with ThreadPoolExecutor(1) as pool:
        listing = pool.submit(list_signed, catalogue, second)
        with pytest.raises(TimeoutError):
            listing.result(timeout=2)
        other.rollback()
        assert listing.result(timeout=LIMIT_S).version == 2


def test_a_database_that_stays_locked_is_told(tmp_path: Path, catalogue: Catalogue) -> None:
    signed = signed_release(tmp_path / "first", version=1)
    list_signed(catalogue, signed)
    hasty = Catalogue(catalogue.tracking_uri, catalogue.artifact_root, patience_s=0)
    other = sqlite3.connect(catalogue.tracking_uri.removeprefix("sqlite:///"))
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(RegistryFailed, match=r"list the versions.*database is locked"):
            hasty.list_versions("toy")
    finally:
        other.rollback()


def test_reading_a_registry_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    catalogue = Catalogue(f"sqlite:///{tmp_path / 'mlflow.db'}", str(tmp_path / "mlflow"))
    assert catalogue.list_versions("toy") == {}
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_down_is_told_without_its_password() -> None:
    hasty = Catalogue("http://user:secret@127.0.0.1:9", "", patience_s=0)
    with pytest.raises(RegistryFailed, match=r"MLflow at http://127.0.0.1:9") as caught:
        hasty.list_versions("toy")
    assert "secret" not in str(caught.value)


_MISLEADING = st.sampled_from(
    [" ", "\t", "\n", "\r", "\u00a0", "\u200b", "\u200d", "\ufeff", "\u2003", "\u202e",
     "\uff41", "\u0430", "\u0660", "\uff10", "/", ":", "'", "%", "\x00", "\u212a"]
)  # fmt: skip


@given(before=st.text("abz09", max_size=3), odd=_MISLEADING, after=st.text("abz09", max_size=3))
def test_no_misleading_character_gets_into_a_name(before: str, odd: str, after: str) -> None:
    for check in (require_model_name, require_alias_name):
        with pytest.raises(ValueError, match="expected a"):
            check(f"a{before}{odd}{after}")


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,62}", fullmatch=True))
def test_every_alias_that_is_let_through_is_one_of_mlflow(alias: str) -> None:
    from mlflow.utils.validation import (
        _validate_model_alias_name,
        _validate_model_alias_name_reserved,
    )

    try:
        require_alias_name(alias)
    except ValueError:
        assert alias.lower() == "latest" or alias[1:].isdigit()
        return
    _validate_model_alias_name(alias)  # type: ignore[no-untyped-call]
    _validate_model_alias_name_reserved(alias)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("alias", ["latest", "Latest", "v1", "V12", "", "-a", "1", "a" * 64, "a b"])
def test_an_alias_that_mlflow_keeps_for_itself_is_refused(alias: str, catalogue: Catalogue) -> None:
    with pytest.raises(ValueError, match="expected an alias"):
        catalogue.set_aliases("toy", {alias: 1})
