"""What the releases for ARM64 come to: the table, and which rows an interrupted run keeps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.studies.corpus.arm import CHOSEN, ArmRow, read_rows, table_of
from tests.studies.corpus.models import MODELS

ACCEPTED = ArmRow(
    "dlrm", calls=20, largest=1.2e-7, replayed=6e-8, compile_s=61, verify_s=34, probe_s=52,
    replay_s=15, release_s=200, pulled_bytes=2_800_000,
)  # fmt: skip
REFUSED = ArmRow("bert", "verdict: batch=1 seed=0, output 0: 3 | 5 elements lie outside")


def test_the_table_says_what_was_accepted_and_replayed_and_why_another_was_refused() -> None:
    *rows, _, summary = table_of([ACCEPTED, REFUSED]).splitlines()
    assert rows[2:] == [
        "| dlrm | accepted | 1.2e-07 | 20 | 61 s, 34 s, 52 s | 200 s | 6.0e-08, 15 s | 2.8 MB |",
        "| bert | refused: verdict: batch=1 seed=0, output 0: 3 / 5 elements lie outside | 0.0e+00 "
        "| 0 | 0 s, 0 s, 0 s | 0 s |  |  |",
    ]
    assert summary == "1 of 2 refused."


def test_a_run_that_was_interrupted_keeps_its_rows_and_the_last_one_of_a_model(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rows.jsonl"
    assert read_rows(file) == {}
    again = ArmRow("bert", calls=3)
    file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in (ACCEPTED, REFUSED, again)))
    assert read_rows(file) == {"dlrm": ACCEPTED, "bert": again}


def test_ten_models_of_the_corpus_are_released_without_a_name() -> None:
    names = {model.name for model in MODELS}
    assert len([name for name in CHOSEN if name in names]) == 10
