"""Who runs it and where: settings, the command line, the sandbox."""

import os
import sys


def _leave_the_folder() -> None:
    """Import nothing from the working folder where it isn't ours: `python -m` looks there first.

    A person who imports Handoff in a program of their own keeps their path.
    """
    is_program = sys.argv[:1] == ["-m"] or os.path.basename(sys.argv[0] or "") == "handoff"  # noqa: PTH119
    root = os.path.abspath(__file__)  # noqa: PTH100
    for _ in range(3):
        root = os.path.dirname(root)  # noqa: PTH120
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return
    if is_program and here != root:
        sys.path[:] = [place for place in sys.path if place and os.path.abspath(place) != here]  # noqa: PTH100


_leave_the_folder()
