"""What a release learns of its operators: by the store's table, the code's own, or by none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.conformance.storage import conformance_statement, keep_table
from handoff.artifacts.conformance.table import Conformance
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.host import Stores
from handoff.artifacts.recipe.target import CpuTarget, CudaTarget
from handoff.artifacts.release.signing import make_key, open_signer, sign_statement
from handoff.artifacts.stores.folder import FolderStore
from handoff.tasks.compile.toolchain import conformance_toolchain
from handoff.tasks.conformance import known_faults, tables
from handoff.tasks.conformance.known_faults import fault_findings
from handoff.tasks.conformance.messages import KnownWrongJob, ReadTablesJob
from tests.artifacts.conformance.conformance_samples import ADD, AMAX, table, toolchain

COMPILER = "g++"
# Of which no table comes with the code.
TARGET = CpuTarget("amx")


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    make_key(tmp_path / "signing.pem", tmp_path / "own.pub")
    return Stores(str(tmp_path / "store"), "", trusted=(str(tmp_path / "own.pub"),))


def keep(stores: Stores, folder: Path, one: Conformance) -> None:
    signer = open_signer(str(folder / "signing.pem"), folder / "own.pub")
    envelope = sign_statement(conformance_statement(one), signer)
    keep_table(FolderStore(Path(stores.objects)), one, envelope)


def todays(options: dict[str, object] | None = None) -> Conformance:
    return replace(table(), toolchain=conformance_toolchain(COMPILER, TARGET, options or {}))


def job(stores: Stores, options: dict[str, object] | None = None) -> KnownWrongJob:
    return KnownWrongJob(stores, COMPILER, (TARGET,), options or {}, (AMAX, ADD))


def codes(found: KnownWrongJob) -> list[str]:
    return [finding.code for finding in fault_findings(known_faults.known_wrong(found), {})]


def test_a_graph_with_a_wrong_operator_is_reported_by_the_stores_table(
    stores: Stores, tmp_path: Path
) -> None:
    keep(stores, tmp_path, todays())
    assert codes(job(stores)) == ["known-wrong-operator"]
    assert codes(replace(job(stores), calls=(ADD,))) == []


def test_without_a_table_that_is_reported_and_nothing_else(stores: Stores) -> None:
    (finding,) = known_faults.known_wrong(job(stores)).notes
    assert (finding.code, finding.severity) == ("no-conformance-table", "note")
    assert "cpu-amx" in finding.message


def test_a_table_of_another_toolchain_doesnt_count(stores: Stores, tmp_path: Path) -> None:
    keep(stores, tmp_path, replace(table(), toolchain=toolchain("2.12.0", "cpu-amx")))
    assert codes(job(stores)) == ["no-conformance-table"]


def test_the_table_without_options_stands_in_where_there_is_none_of_the_recipes(
    stores: Stores, tmp_path: Path
) -> None:
    keep(stores, tmp_path, todays())
    assert codes(job(stores, {"freezing": True})) == ["known-wrong-operator"]
    right = replace(todays({"freezing": True}), rows=table().rows[:1])
    keep(stores, tmp_path, right)
    assert codes(job(stores, {"freezing": True})) == []


def test_a_gpus_operators_are_not_known(stores: Stores, tmp_path: Path) -> None:
    keep(stores, tmp_path, todays())
    both = replace(job(stores), targets=(TARGET, CudaTarget(90)))
    assert sorted(codes(both)) == ["known-wrong-operator", "no-conformance-table"]


def test_a_table_that_nobody_who_is_trusted_has_signed_is_refused(
    stores: Stores, tmp_path: Path
) -> None:
    keep(stores, tmp_path, todays())
    (tmp_path / "own.pub").unlink()
    make_key(tmp_path / "other.pem", tmp_path / "own.pub")
    with pytest.raises(PackageRefused):
        known_faults.known_wrong(job(stores))


def test_the_night_reads_todays_table_and_the_newest_of_another_toolchain(
    stores: Stores, tmp_path: Path
) -> None:
    looking = ReadTablesJob(stores, COMPILER, TARGET, 0.0)
    assert tables.read_tables(looking).today is None
    assert not tables.read_tables(looking).is_kept
    older = replace(table(), toolchain={**todays().toolchain, "torch": "2.13.0"}, made="2026-01-01")
    old = replace(table(), toolchain={**todays().toolchain, "torch": "2.14.0"}, made="2026-06-01")
    for one in (older, old, todays()):
        keep(stores, tmp_path, one)
    assert tables.read_tables(looking).today == todays()
    assert tables.read_tables(looking).is_kept
    assert tables.read_tables(looking).before == old
