"""A marker in every place of a delivery where a text can stand, beside a valid contract.

It is refused with a sentence, or reaches neither the code that a compiler writes nor what is shown.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.artifacts.record import to_plain
from handoff.tasks.compile.reading.literals import read_cpp
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from handoff.tasks.optimize.capture import capture
from tests.tasks.compile.generated import generate
from tests.tasks.intake.attacks.text_places import PLACES, PlaceOfText, write_delivery

MARKERS = {
    "code": '");system("touch CANARY");//MARK',
    "escapes": "MARK\x1b]0;owned\x07\n#include </etc/passwd>\nMARK\\",
    "spellings": "MARK??/ %:include \u202e`id` $(id) {0} %n \x7f\x9b31m",
    "quotes": "MARK'+__import__('os').system('touch CANARY')+'",
}  # fmt: skip

KEPT_OUT = [place for place in PLACES if place.otherwise == "kept out"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_delivery(tmp_path_factory.mktemp("texts") / "delivery")


@pytest.fixture
def folder(texts: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(texts, tmp_path / "delivery"))


def shown_of(folder: Path) -> str:
    """Return all that taking the delivery in says of it, as JSON without its quoting."""
    result = take_in(IntakeJob(folder, folder.parent / "staging"))
    plain = json.dumps(to_plain(result), ensure_ascii=False)
    return plain.replace("\\\\", "\\").replace('\\"', '"')


def names_of(module: torch.fx.GraphModule) -> str:
    """Return all that a compiler could learn of the module."""
    nodes = [f"{n.op} {n.name} {n.target} {n.args} {n.kwargs} {n.meta}" for n in module.graph.nodes]
    return "\n".join([module.code, *module.state_dict(), *map(str, module.modules()), *nodes])


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
@pytest.mark.parametrize("kind", MARKERS)
def test_a_text_is_refused_with_a_sentence_or_goes_no_further(
    place: PlaceOfText, kind: str, folder: Path
) -> None:
    canary = folder.parent / "canary"
    place.plant(folder, MARKERS[kind].replace("CANARY", str(canary)))
    refusal, shown = None, ""
    try:
        shown = shown_of(folder)
    except DeliveryUnreadable as error:
        refusal = error
    assert not canary.exists()
    if refusal is None:
        assert place.otherwise == "kept out"
        assert shown.isprintable()
        module = read_delivery(folder.parent / "staging").module
        assert "MARK" not in names_of(module)
    else:
        assert str(refusal).isprintable()
        assert all((refusal.expected, refusal.got, refusal.remedy))
        # What can't be shown is refused in the contract, wherever it stands there.
        assert place.otherwise == "refused" or "delivery.toml" in refusal.where


@pytest.mark.parametrize(
    "place", [place for place in PLACES if place.harmless], ids=lambda place: place.name
)
def test_a_text_that_has_a_right_to_be_there_is_read(place: PlaceOfText, folder: Path) -> None:
    place.plant(folder, place.harmless)
    assert shown_of(folder)


@pytest.mark.compile
def test_what_is_kept_out_is_not_in_the_code_that_is_written(folder: Path) -> None:
    # All at once, each by a mark of its own: capturing and writing code takes seconds.
    marked = {f"MARK{number:02}": place for number, place in enumerate(KEPT_OUT)}
    for mark, place in marked.items():
        place.plant(folder, MARKERS["code"].replace("MARK", mark))
    planted = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    assert [place.name for mark, place in marked.items() if mark.encode() not in planted] == []
    loaded = read_delivery(folder)
    program = capture(loaded.module, loaded.contract.signature)
    sources = generate(program)
    for text in (str(program), *sources):
        assert [place.name for mark, place in marked.items() if mark in text] == []
        assert "MARK" not in text
    for source in sources:
        read_cpp(source)


@pytest.mark.parametrize("name", ["a file's name", "the author", "an operator's word"])
def test_no_escape_sequence_reaches_the_terminal(name: str, folder: Path) -> None:
    (place,) = [place for place in PLACES if place.name == name]
    place.plant(folder, MARKERS["escapes"])
    command = [sys.executable, "-P", "-m", "handoff", "inspect", str(folder)]
    root = Path(__file__).parents[4]
    ran = subprocess.run(
        command, capture_output=True, cwd=root, env=os.environ | {"PYTHONPATH": str(root)},
        check=False,
    )  # fmt: skip
    assert ran.returncode == 3
    assert b"MARK" in ran.stdout + ran.stderr
    assert not {b"\x1b", b"\x07", b"\x00"} & {bytes([one]) for one in ran.stdout + ran.stderr}
