"""What the numeric gate catches, how small, and how often it is wrong.

python -m tests.studies.faults

`kinds` plants each kind of miscompilation, `sizes` makes some of them smaller until they pass,
`clean` releases right packages, `reports` delivers models on which public reports of wrong results
show, and `hard` right ones that are hard to judge. With names, only those; without any, all.
`--write FILE` puts the tables between their marks in a Markdown file, and `--brief FILE` a short
one of the reports. Ends with 1 where a kind isn't caught, more than 1 % of the clean releases are
refused, or a report or a hard model becomes something else than it must. `--quick` doesn't look for
the operators that make reports wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

from tests.marked import require_marks, write_between_marks
from tests.studies.faults.clean import FAMILIES, SEEDS, clean_table, release_clean
from tests.studies.faults.hard import HARD, hard_table, judge_hard
from tests.studies.faults.kinds import KINDS, judge_kinds, kinds_table
from tests.studies.faults.reports.judging import REPORTS, brief_table, judge_reports, reports_table
from tests.studies.faults.sizes import SIZES, find_limits, sizes_table

_ALLOWED_SHARE = 0.01


def main() -> int:
    """Run what was asked for and print its table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=(*_PARTS, "all"), default="all")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, help="where to work, and leave what was built")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--brief", type=Path)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_intermixed_args()
    warnings.simplefilter("ignore")
    parts = tuple(_PARTS) if args.part == "all" else (args.part,)
    for part in parts:
        require_marks(args.write, f"faults {part}")
    require_marks(args.brief, "faults reports")
    all_good = True
    with tempfile.TemporaryDirectory() as scratch:
        for part in parts:
            began = time.monotonic()
            run = None
            if part == "reports":
                run = partial(_reports, localizes=not args.quick, brief=args.brief)
            work = (args.folder or Path(scratch)) / part
            is_good, lines = (run or _PARTS[part])(args.names, work)
            lines[-1] += f", in {time.monotonic() - began:.0f} s on this machine."
            print("\n".join(lines), flush=True)
            if args.write:
                write_between_marks(args.write, f"faults {part}", "\n".join(lines))
            all_good = all_good and is_good
    return 0 if all_good else 1


def _kinds(names: list[str], folder: Path) -> tuple[bool, list[str]]:
    rows = judge_kinds([kind for kind in KINDS if not names or kind.name in names], folder)
    caught = [row for row in rows if row.caught]
    summary = f"{len(caught)} of {len(rows)} kinds caught"
    return 0 < len(rows) == len(caught), [*kinds_table(rows), "", summary]


def _sizes(names: list[str], folder: Path) -> tuple[bool, list[str]]:
    limits = find_limits([size for size in SIZES if not names or size.name in names], folder)
    seen = [limit for limit in limits if limit.last_caught is not None]
    summary = f"{len(seen)} of {len(limits)} faults caught at one of their sizes"
    return 0 < len(limits) == len(seen), [*sizes_table(limits), "", summary]


def _clean(names: list[str], folder: Path) -> tuple[bool, list[str]]:
    chosen = [family for family in FAMILIES if not names or family.name in names]
    releases = list(release_clean(chosen, SEEDS, folder))
    refused = [one for one in releases if one.refused]
    share = len(refused) / max(1, len(releases))
    summary = f"{len(refused)} of {len(releases)} clean releases refused ({100 * share:.1f} %)"
    return bool(releases) and share <= _ALLOWED_SHARE, [*clean_table(releases), "", summary]


def _reports(
    names: list[str], folder: Path, *, localizes: bool = True, brief: Path | None = None
) -> tuple[bool, list[str]]:
    chosen = [one for one in REPORTS if not names or one.name in names]
    rows = judge_reports(chosen, folder, localizes=localizes)
    if brief:
        write_between_marks(brief, "faults reports", "\n".join(brief_table(rows)))
    good = [row for row in rows if row.good]
    summary = f"{len(good)} of {len(rows)} became what they must"
    return 0 < len(rows) == len(good), [*reports_table(rows), "", summary]


def _hard(names: list[str], folder: Path) -> tuple[bool, list[str]]:
    rows = judge_hard([one for one in HARD if not names or one.name in names], folder)
    released = [row for row in rows if not row.refused]
    summary = f"{len(released)} of {len(rows)} hard but right models released"
    return 0 < len(rows) == len(released), [*hard_table(rows), "", summary]


_PARTS = {"kinds": _kinds, "sizes": _sizes, "clean": _clean, "reports": _reports, "hard": _hard}


if __name__ == "__main__":
    sys.exit(main())
