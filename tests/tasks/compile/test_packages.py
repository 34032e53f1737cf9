"""What of a compiled package is shipped."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from handoff.tasks.compile import packages
from handoff.tasks.compile.packages import write_package

FOLDER = "model/data/aotinductor/model"
ENTRIES = {
    f"{FOLDER}/a.wrapper.cpp": b"int main() {}", f"{FOLDER}/a.wrapper_metadata.json": b"{}",
    f"{FOLDER}/a.wrapper.so": b"compiled", f"{FOLDER}/a.log": b"said", "model/byteorder": b"little",
}  # fmt: skip


@pytest.mark.parametrize("found_by_source", [False, True])
def test_no_source_is_shipped_and_its_name_alone_where_torch_looks_for_it(
    found_by_source: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_FOUND_BY_SOURCE", found_by_source)
    original, library, shipped = (tmp_path / name for name in ("original", "library", "shipped"))
    with zipfile.ZipFile(original, "w") as archive:
        for name, data in ENTRIES.items():
            archive.writestr(name, data)
    library.write_bytes(b"linked again")
    write_package(original, library, shipped)
    with zipfile.ZipFile(shipped) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    kept = {name: data for name, data in ENTRIES.items() if name.endswith((".json", "byteorder"))}
    named = {f"{FOLDER}/a.wrapper.cpp": b""} if found_by_source else {}
    assert found == {**kept, **named, f"{FOLDER}/a.wrapper.so": b"linked again"}
