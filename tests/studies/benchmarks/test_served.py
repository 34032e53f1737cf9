"""What the benchmark prints: ratios only beyond the noise, and verdicts that follow from them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from handoff.artifacts.recipe.target import host_cpu_flags
from tests.processors import needs_int8
from tests.studies.benchmarks.served.__main__ import format_standings, unknown_among
from tests.studies.benchmarks.served.build import PRECISIONS, brought_along, recipe_of, target_of
from tests.studies.benchmarks.served.competitors import COMPETITORS, RIVALS
from tests.studies.benchmarks.served.conditions import Conditions, format_conditions
from tests.studies.benchmarks.served.race import HANDOFF, HANDOFF_FLOAT32
from tests.studies.benchmarks.served.standing import (
    Standing,
    keep_standings,
    read_standings,
    summarize,
)
from tests.studies.benchmarks.served.table import failures_of, noise_of, table_of, verdict_of
from tests.studies.benchmarks.served.turns import Ratio
from tests.studies.corpus.models import MODELS

CONDITIONS = Conditions(
    day="2026-11-23", commit="8a51019", built="8a51019", cpu="AMD EPYC", cores=2, threads=2,
    versions={"torch": "2.15.0"},
)  # fmt: skip


def standing(name: str, **over_eager: Ratio) -> Standing:
    """Return a model's standing, Handoff's ratios to others being those of the medians."""
    rivals = {one.replace("_", " "): ratio for one, ratio in over_eager.items()}
    ours = rivals.get(HANDOFF)
    against = {
        rival: Ratio(ours.value / ratio.value, ours.low / ratio.high, ours.high / ratio.low)
        for rival, ratio in {"eager": Ratio(1.0, 1.0, 1.0), **rivals}.items()
        if ours and rival != HANDOFF
    }
    return Standing(
        name=name, kind="vision", conditions=CONDITIONS, batch=4, rounds=(20, 22),
        chosen={HANDOFF: "freezing"}, eager_ms=10.0,
        over_eager=rivals, handoff_over=against, error={}, allowed=0.01, failed={},
        others=0.0, load=0.0,
    )  # fmt: skip


CLEAR, EVEN = Ratio(2.0, 1.9, 2.1), Ratio(1.01, 0.97, 1.05)


def test_a_difference_within_the_noise_is_no_ratio() -> None:
    assert str(CLEAR) == "2.00 (1.90 to 2.10)"
    assert str(EVEN) == "no difference (0.97 to 1.05)"
    (row,) = table_of([standing("even", Handoff=EVEN)])[2:-1]
    assert row.split("|")[4].strip() == "="


def test_the_verdict_counts_who_is_slower_for_sure_and_who_by_the_median() -> None:
    wins = standing("wins", Handoff=Ratio(3.0, 2.9, 3.1), OpenVINO=CLEAR)
    even = standing("even", Handoff=Ratio(1.99, 1.9, 2.1), OpenVINO=CLEAR)
    loses = standing("loses", Handoff=Ratio(0.5, 0.4, 0.6), OpenVINO=CLEAR)
    against_best, below_eager = verdict_of([wins, even, loses])
    assert against_best == (
        "Not significantly slower than the best competitor: 2 of 3 models (significantly faster: "
        "1; no difference larger than the noise: 1). At or above the best by the median: 1 of 3. "
        "Significantly slower: loses."
    )
    assert below_eager == "Significantly slower than eager: loses."


def test_beside_eager_alone_nobody_is_held_against_a_best_one() -> None:
    assert verdict_of([standing("alone", Handoff=CLEAR)]) == [
        "Significantly slower than eager: none."
    ]


def test_the_mean_is_over_the_models_that_all_serve_and_says_of_how_many() -> None:
    whole = [standing(name, Handoff=CLEAR, OpenVINO=EVEN) for name in ("a", "b")]
    wrong = replace(standing("c", Handoff=CLEAR, OpenVINO=EVEN), error={"OpenVINO": 0.5})
    last = table_of([*whole, wrong, standing("d", Handoff=EVEN)])[-1]
    assert last.startswith("| **geometric mean of the 2 that all serve** | | | **1.01** | **2.00**")


def test_what_other_processes_did_stands_in_the_row_and_below_the_table() -> None:
    noisy = replace(standing("noisy", Handoff=CLEAR), others=0.256, rounds=(7, 40), load=3.21)
    (row,) = table_of([noisy])[2:-1]
    assert row.endswith("| 0.26 |")
    assert noise_of([standing("quiet", Handoff=CLEAR), noisy]).startswith(
        "2 races of 7 to 40 rounds each."
    )
    assert noise_of([noisy]).endswith("included): 3.2.")


def test_a_standing_whose_nan_are_elsewhere_is_wrong() -> None:
    one = replace(standing("one", Handoff=CLEAR), error={HANDOFF: math.inf})
    assert one.against_best is None
    assert failures_of([one]) == ["- one, Handoff: wrong: NaN or infinities that are not eager's"]


def test_a_name_that_is_no_models_is_refused() -> None:
    assert unknown_among(["bert"], ["bert", "dlrm"], "models") == ""
    assert unknown_among(["bret"], ["bert", "dlrm"], "models") == (
        "expected models among bert, dlrm, got bret"
    )


def test_rows_that_were_raced_alike_share_a_line_and_others_are_named() -> None:
    older = replace(CONDITIONS, commit="306ea7a+changes")
    (line,) = format_conditions({"bert": CONDITIONS, "dlrm": CONDITIONS})
    assert line == "2026-11-23, commit 8a51019, AMD EPYC, 2 threads on 2 cores, torch 2.15.0."
    lines = format_conditions({"bert": CONDITIONS, "dlrm": older, "tft": CONDITIONS})
    assert [line.rpartition(": ")[2] for line in lines] == ["bert, tft.", "dlrm."]
    assert "commit 306ea7a+changes, packages of 8a51019" in lines[1]


def test_our_float32_release_takes_part_in_bfloat16_and_is_nobodys_rival() -> None:
    faster = {HANDOFF_FLOAT32.replace(" ", "_"): Ratio(9.0, 8.9, 9.1)}
    one = standing("one", eager_bfloat16=EVEN, Handoff=CLEAR, **faster)
    assert one.best == "eager bfloat16"
    head = table_of([one])[0]
    assert f"| eager bfloat16 | {HANDOFF_FLOAT32} | {HANDOFF} | variant |" in head


def test_every_precision_has_eager_and_competitors_that_there_are() -> None:
    for precision in PRECISIONS:
        assert RIVALS[precision][0] == "eager"
        assert set(RIVALS[precision]) <= set(COMPETITORS)


def test_lower_precision_is_built_for_the_best_level_that_this_processor_has() -> None:
    for precision in PRECISIONS:
        target = target_of(precision)
        assert target.cpu_flags <= host_cpu_flags()


@needs_int8
def test_int8_is_built_for_a_level_that_computes_in_it() -> None:
    assert target_of("int8").computes_int8
    assert not target_of("float32").computes_int8


def test_int8_alone_brings_batches_and_samples_by_name_where_the_model_is_called_so() -> None:
    bert, resnet = (next(m for m in MODELS if m.name == name) for name in ("bert", "resnet18"))
    assert brought_along(bert, "float32") == {}
    brought = brought_along(bert, "int8")
    assert set(brought["calibration"][0]) == {"input_ids", "attention_mask"}
    assert not torch.equal(*(batch["input_ids"] for batch in brought["calibration"][:2]))
    (images,), labels = brought_along(resnet, "int8")["evaluation"][0]
    assert labels is None
    assert images.shape[0] == resnet.batch


def test_a_model_that_nothing_speeds_up_is_held_against_eager() -> None:
    slower = Ratio(0.5, 0.4, 0.6)
    alone = standing("alone", Handoff=EVEN, OpenVINO=slower)
    assert alone.best == "eager"
    assert alone.against_best == EVEN


def test_a_refused_model_counts_as_none_of_both() -> None:
    refused = standing("refused", OpenVINO=CLEAR)
    assert "0 of 1 models" in verdict_of([refused])[0]
    assert "0 of 1." in verdict_of([refused])[0]


def test_who_is_wrong_is_told_and_is_nobodys_best() -> None:
    one = replace(standing("one", Handoff=CLEAR, OpenVINO=Ratio(9.0, 8.9, 9.1)),
                  error={"OpenVINO": 0.5, "Handoff": 1e-6})  # fmt: skip
    assert one.best == "eager"
    (row,) = table_of([one])[2:-1]
    assert row.split("|")[4].strip() == "wrong"
    assert failures_of([one]) == ["- one, OpenVINO: wrong by 0.5 times the RMS of eager's outputs"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_has_a_recipe_and_some_models_their_own(precision: str) -> None:
    usual = recipe_of("resnet18", precision)
    assert usual.search.goal == "example"
    assert recipe_of("bert", precision) == usual
    own = recipe_of("unet_resnet18", "float32")
    assert own.tolerance_for("float32").rmse_factor == 3.0


def test_what_was_measured_is_read_back_as_it_was(tmp_path: Path) -> None:
    wins = standing("wins", Handoff=CLEAR, OpenVINO=EVEN)
    lone = replace(standing("lone"), failed={"OpenVINO": "no"}, error={"eager": math.inf})
    keep_standings([wins, lone], tmp_path / "standings.json")
    assert read_standings(tmp_path / "standings.json") == {"wins": wins, "lone": lone}


def test_a_row_of_races_becomes_a_standing_that_is_told_whole() -> None:
    races = [
        {"seconds": {"eager": [2.0, 2.0], "OpenVINO": [1.0, 1.0], HANDOFF: [0.5, 0.5]},
         "others": others}
        for others in (0.02, 0.04)
    ]  # fmt: skip
    row = {
        "name": "bert", "kind": "language", "batch": 8, "threads": 2, "load": 0.5,
        "chosen": {HANDOFF: "freezing"}, "built": ["8a51019"], "error": {"eager": 0.0},
        "failed": {"TorchScript": "no"}, "races": races,
    }  # fmt: skip
    found = summarize(row, 0.01)
    assert found.over_eager[HANDOFF].value == 4.0
    assert found.against_best == Ratio(2.0, 2.0, 2.0)
    assert (found.rounds, found.others) == ((2, 2), 0.04)
    text = format_standings([found])
    assert text.startswith(f"{found.conditions}.\n\n| model |")
    assert text.endswith("- bert, TorchScript: no")
