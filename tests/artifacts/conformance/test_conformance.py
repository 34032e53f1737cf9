"""A conformance table: read back as it was written, kept signed, and compared with another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.conformance.storage import (
    conformance_statement,
    keep_table,
    list_toolchains,
    read_table,
    shipped_table,
    shipped_tables,
    table_key,
)
from handoff.artifacts.conformance.table import (
    Conformance,
    ConformanceRow,
    PlainTensor,
    changed_rows,
    describe_changes,
    parse_conformance,
)
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import PackageRefused, StoreFailed
from handoff.artifacts.record import from_plain, to_plain
from handoff.artifacts.release.signing import make_key, open_signer, read_trust, sign_statement
from handoff.artifacts.stores.folder import FolderStore
from tests.artifacts.conformance.conformance_samples import right_add, table, wrong_amax

GOLDEN = Path(__file__).parents[2] / "golden" / "conformance-1.json"


def signed(one: Conformance, folder: Path) -> bytes:
    secret, public = folder / "signing.pem", folder / "own.pub"
    if not secret.exists():
        make_key(secret, public)
    return sign_statement(conformance_statement(one), open_signer(str(secret), public))


def test_a_table_reads_back_as_it_was_written() -> None:
    one = table()
    assert parse_conformance(one.to_bytes(), "it") == one


def test_a_table_that_was_written_before_is_read_and_written_as_it_was() -> None:
    data = GOLDEN.read_bytes()
    one = parse_conformance(data, GOLDEN.name)
    assert one.to_bytes() == data
    assert one.counts == {"right": 1, "wrong": 1, "crashes": 0, "not compiled": 0}


def test_integers_beyond_what_float64_holds_stay_as_they_are() -> None:
    tensor = PlainTensor("int64", (1,), (2**53 + 1,))
    assert from_plain(PlainTensor, json.loads(json.dumps(to_plain(tensor)))) == tensor
    far = PlainTensor("float32", (2,), (float("inf"), float("nan")))
    values = from_plain(PlainTensor, json.loads(json.dumps(to_plain(far)))).values
    assert str(values) == "(inf, nan)"


def test_what_is_no_table_is_told_in_a_sentence() -> None:
    for data in (b"", b"{}", table().to_bytes().replace(b'"schema":1', b'"schema":9')):
        with pytest.raises(StoreFailed, match="no conformance table"):
            parse_conformance(data, "it")


def test_an_operator_has_one_row_for_each_dtype() -> None:
    with pytest.raises(ValueError, match="one row for each"):
        table(right_add(), right_add())


def test_a_kept_table_is_read_where_its_signature_is_trusted(tmp_path: Path) -> None:
    store, one = FolderStore(tmp_path / "store"), table()
    assert read_table(store, read_trust([]), one.digest) is None
    keep_table(store, one, signed(one, tmp_path))
    assert read_table(store, read_trust([tmp_path / "own.pub"]), one.digest) == one
    assert list_toolchains(store) == [one.digest]
    newer = replace(one, seconds=9.0)
    keep_table(store, newer, signed(newer, tmp_path))
    assert read_table(store, read_trust([tmp_path / "own.pub"]), one.digest) == newer


def test_a_table_that_somebody_has_changed_is_refused(tmp_path: Path) -> None:
    store, one = FolderStore(tmp_path / "store"), table()
    envelope = signed(one, tmp_path)
    keep_table(store, one, envelope)
    trust = read_trust([tmp_path / "own.pub"])
    changed = table(right_add(), replace(wrong_amax(), standing="right", showing=None))
    store.replace(table_key(one.digest), changed.to_bytes())
    with pytest.raises(StoreFailed, match="not signed"):
        read_table(store, trust, one.digest)
    # With another table's signature beside it, no more.
    keep_table(store, changed, envelope)
    with pytest.raises(StoreFailed, match="about something else"):
        read_table(store, trust, one.digest)


def test_a_table_that_a_stranger_has_signed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    store, one = FolderStore(tmp_path / "store"), table()
    keep_table(store, one, signed(one, tmp_path / "other"))
    signed(one, tmp_path)
    with pytest.raises(PackageRefused):
        read_table(store, read_trust([tmp_path / "own.pub"]), one.digest)


def test_what_another_toolchain_breaks_is_told_before_what_it_mends() -> None:
    before = table(right_add(), wrong_amax())
    mended = replace(wrong_amax(), standing="right", showing=None, questions=())
    broken = ConformanceRow("add", "float32", "crashes", "signal SIGSEGV", calls=right_add().calls)
    after = table(broken, mended, ConformanceRow("new", "float32", "wrong"), torch="2.16.0")
    assert [new.pair for _, new in changed_rows(before, after)] == ["add:float32", "amax:int8"]
    sentences = describe_changes(before, after)
    assert "since torch 2.15.0" in sentences[0]
    assert sentences[0].endswith("these are wrong: add:float32")
    assert sentences[1].endswith("these are right again: amax:int8")
    assert describe_changes(before, before) == ()


def test_an_operator_is_found_by_the_suites_name_and_by_atens() -> None:
    one = table()
    for name in ("amax", "aten.amax", "aten.amax.default"):
        assert [row.pair for row in one.rows_of_operator(name)] == ["amax:int8"]
    assert one.rows_of_operator("amin") == ()


def test_the_tables_that_come_with_the_code_are_of_the_locked_torch() -> None:
    found = {one.target: one for one in shipped_tables()}
    assert set(found) == {"cpu-avx2", "cpu-avx512"}
    lock = (Path(__file__).parents[3] / "requirements-torch.lock").read_text(encoding="utf-8")
    for one in found.values():
        assert f"torch=={one.toolchain['torch']} " in lock
        assert shipped_table(one.digest) == one
        assert len(one.rows) + one.unasked > 4600
        assert len(one.to_bytes()) < 1_000_000
        # Public reports that reproduce in it: a table without them was made by a blind runner.
        wrong = {row.operator for row in one.rows if row.standing == "wrong"}
        assert wrong >= {"amax", "amin", "argmin", "floor_divide", "remainder", "ldexp"}
        assert {"pattern.half_and_back", "pattern.scatter_then_overwrite"} <= wrong
        assert "nn.functional.interpolate.nearest" in wrong
    assert shipped_table(digest_bytes(b"another toolchain")) is None
