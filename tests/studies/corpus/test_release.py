"""What the releases of the corpus come to: the table, and which rows an interrupted run keeps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.studies.corpus.release import ReleaseRow, keep_row, read_released, table_of

RELEASED = ReleaseRow(
    "dlrm", cases=20, elements=400, incomparable=2, reference_s=1.0, compile_s=40.0, verify_s=10.0
)
REFUSED = ReleaseRow("bert", "verify", "batch=1 seed=0, output 0: 3 | 5 elements lie outside")


def test_the_table_counts_what_was_refused_and_says_by_what() -> None:
    *rows, _, summary = table_of([RELEASED, REFUSED]).splitlines()
    assert rows[2:] == [
        "| dlrm | released | 20 | 0.50% | 1.0 s | 40.0 s | 10.0 s | 0.25 |",
        "| bert | refused by verify: batch=1 seed=0, output 0: 3 / 5 elements lie outside | 0 |  "
        "| 0.0 s | 0.0 s | 0.0 s |  |",
    ]
    assert summary == "1 of 2 refused wrongly; verify/compile median 0.25, at most 0.25."


def test_a_run_that_was_interrupted_does_again_what_was_not_released(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    assert read_released(file) == {}
    for row in (RELEASED, REFUSED):
        keep_row(row, file)
    assert read_released(file) == {"dlrm": RELEASED}
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        asdict(RELEASED), asdict(REFUSED)
    ]  # fmt: skip
