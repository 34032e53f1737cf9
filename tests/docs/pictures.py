"""Pictures of the pages that people look at: `python -m tests.docs.pictures [FOLDER]`.

Two versions of a small model are released, and one that a planted lowering makes wrong is refused;
their pages are drawn by Chromium as a browser shows them first, in FOLDER at each width, light and
dark, and those of the documents in `docs/pictures`. It takes some four minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from handoff.tasks.optimize.extensions import digest_extension
from tests.docs.pages import ROOT
from tests.flows.small_delivery import FACTORY, deliver_and_release
from tests.infra.commands.test_cli import handoff
from tests.limits import LIMIT_S

# What a phone, a laptop and a large screen are wide.
WIDTHS = (390, 1024, 1600)
HEIGHT = 900
FAULT = "tests.tasks.localize.planted_faults"
# Each of the documents' pictures: which page it is of.
KEPT = {"report": "report-1024-light", "refused": "refused-1024-light"}


def draw(page: Path, to: Path, width: int, *, dark: bool = False) -> None:
    """Draw the top of a page as Chromium shows it; raise `CalledProcessError` where it can't."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("pictures need a browser: install chromium")
    subprocess.run(
        [
            browser, "--headless=new", "--disable-gpu", "--hide-scrollbars",
            "--virtual-time-budget=2000",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *(["--force-dark-mode"] if dark else []),
            f"--window-size={width},{HEIGHT}", f"--screenshot={to}", page.resolve().as_uri(),
        ],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip


def make_pages(folder: Path) -> dict[str, Path]:
    """Release and refuse in `folder`; return the pages by their names."""
    home, training = folder / "home", folder / "training"
    training.mkdir()
    (training / "small.py").write_text(FACTORY)
    deliver_and_release("small:build", training, home)
    other = FACTORY.replace("manual_seed(0)", "manual_seed(7)")
    (training / "small.py").write_text(other)
    shutil.rmtree(training / "small-build")
    deliver_and_release("small:build", training, home)
    deliver = ("deliver", "small:wavy", "--to", "wavy", "--name", "wavy")
    assert handoff(*deliver, home=home, cwd=training).returncode == 0
    recipe = training / "planted.toml"
    recipe.write_text(f'extensions = ["{FAULT}@{digest_extension(FAULT)}"]\n')
    refused = handoff("release", str(training / "wavy"), "--recipe", str(recipe), home=home)
    assert refused.returncode == 4, refused.stderr
    (report,) = (home / "store" / "models" / "small-build" / "versions" / "2").glob("report.html")
    (why,) = (home / "builds").rglob("report.html")
    pages = {"report": report, "refused": why}
    commands = {"versions": ("diff", "small-build@1", "small-build@2"),
             "history": ("history", "small-build")}  # fmt: skip
    for name, command in commands.items():
        pages[name] = folder / f"{name}.html"
        assert handoff(*command, "--html", str(pages[name]), home=home).returncode == 0
    return pages


def main(folder: Path) -> None:
    """Draw every page in `folder`, and keep the documents' own."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, page in make_pages(Path(scratch)).items():
            for width in WIDTHS:
                for shade in ("light", "dark"):
                    drawn = folder / f"{name}-{width}-{shade}.png"
                    draw(page, drawn, width, dark=shade == "dark")
    for name, drawn_as in KEPT.items():
        with Image.open(folder / f"{drawn_as}.png") as image:
            few = image.convert("RGB").quantize(64)
            few.save(ROOT / "docs" / "pictures" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp(prefix="pictures-")))
