"""The tutorial's page, block by block: trained, released, refused, served, rolled back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of
from tests.docs.running import run_blocks

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.mark.demo
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_tutorial_ends_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    walked = [block for block in blocks_of(PAGE) if block.kind in ("file", "walk")]
    ran = run_blocks(walked, tmp_path, limit_s=3500)
    output = ran.stdout
    assert ran.returncode == 0, output + ran.stderr
    assert "digits: production points to version 1" in output
    assert "exit code 4" in output
    refused = ran.stderr.partition("digits is not released")[2].partition("What to do")[0]
    refusal = " ".join(refused.split())
    assert "floor_divide (aten.floor_divide.default)" in refusal
    assert "digits.py:29" in refusal
    right = re.search(r"Python: version 1, (\d+) of 500 are classified correctly", output)
    assert right is not None
    assert int(right[1]) > 400
    assert "digits version 1: [8, 10]" in output
    assert "digits: production points to version 2 (was 1)" in output
    assert "digits: production points to version 1 (was 2)" in output
    assert "the tutorial's end" in output


def test_the_line_that_is_to_be_named_is_the_operator_s() -> None:
    (file,) = [block for block in blocks_of(PAGE) if block.argument == "digits.py"]
    assert "floor_divide" in file.text.splitlines()[28]


def test_the_example_in_cpp_is_the_serving_page_s() -> None:
    (block,) = [b for b in blocks_of(ROOT / "docs" / "serving.md") if b.argument == "serve.cpp"]
    assert (ROOT / "examples" / "serving" / "serve.cpp").read_text() == block.text
