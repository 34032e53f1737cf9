"""Who runs it and where: settings, the command line, the sandbox."""

import os
import sys


def _leave_the_folder() -> None:
    """Import nothing from the working folder where it isn't ours: `python -m` looks there first.

    A person who imports Handoff in a program of their own keeps their path.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    root, program = os.path.dirname(package), sys.argv[0] if sys.argv else ""  # noqa: PTH120
    is_program = program in {"-m", os.path.join(package, "__main__.py")} or (  # noqa: PTH118
        os.path.basename(program) == "handoff"  # noqa: PTH119
    )
    try:
        here = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return
    if is_program and here != root:
        sys.path[:] = [place for place in sys.path if place and os.path.abspath(place) != here]  # noqa: PTH100


_leave_the_folder()
