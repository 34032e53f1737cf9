"""python -m tests.faults: what the numeric gate catches, how small, and how often it is wrong.

`kinds` plants each kind of miscompilation, `sizes` makes some of them smaller until they pass, and
`clean` releases right packages. With names, only those; without any, all three. Ends with 1 where
a kind isn't caught, or more than 1 % of the clean releases are refused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.faults.clean import FAMILIES, SEEDS, clean_table, release_clean
from tests.faults.kinds import KINDS, judge_kinds, kinds_table
from tests.faults.sizes import SIZES, find_limits, sizes_table


def main() -> int:
    """Run what was asked for and print its table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "part", nargs="?", choices=("kinds", "sizes", "clean", "all"), default="all"
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, help="where to work, and leave what was built")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = ("kinds", "sizes", "clean") if given.part == "all" else (given.part,)
    with tempfile.TemporaryDirectory() as scratch:
        done = [_PARTS[part](given.names, (given.folder or Path(scratch)) / part) for part in parts]
    return 0 if all(done) else 1


def _kinds(names: list[str], folder: Path) -> bool:
    began = time.monotonic()
    chosen = [fault for fault in KINDS if not names or fault.name in names]
    rows = judge_kinds(chosen, folder)
    caught = [row for row in rows if row.caught]
    print("\n".join(kinds_table(rows)))
    print(f"\n{len(caught)} of {len(rows)} kinds caught, in {time.monotonic() - began:.0f} s")
    return bool(rows) and len(caught) == len(rows)


def _clean(names: list[str], folder: Path) -> bool:
    began = time.monotonic()
    chosen = [family for family in FAMILIES if not names or family.name in names]
    releases = list(release_clean(chosen, SEEDS, folder))
    print("\n".join(clean_table(releases)))
    made = [one for one in releases if not one.failed]
    refused = [one for one in made if one.refused]
    for one in releases:
        if one.failed:
            print(f"- {one.family} {one.dtype} seed {one.seed} failed: {one.failed}")
    print(f"\n{len(refused)} of {len(made)} clean releases refused "
          f"({100 * len(refused) / max(1, len(made)):.1f} %), "
          f"in {time.monotonic() - began:.0f} s")  # fmt: skip
    return len(made) == len(releases) > 0 and len(refused) <= 0.01 * len(made)


def _sizes(names: list[str], folder: Path) -> bool:
    began = time.monotonic()
    chosen = [size for size in SIZES if not names or size.name in names]
    rows = find_limits(chosen, folder)
    print("\n".join(sizes_table(rows)))
    print(f"\n{len(rows)} limits found in {time.monotonic() - began:.0f} s")
    return bool(rows)


_PARTS = {"kinds": _kinds, "sizes": _sizes, "clean": _clean}

if __name__ == "__main__":
    sys.exit(main())
