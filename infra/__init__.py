"""Who runs it and where: settings, the command line, the sandbox."""

import os
import sys


def _drop_working_folder_from_path() -> None:
    """Import nothing from the working folder where it isn't ours: `python -m` looks there first.

    A person who imports Handoff in a program of their own keeps their path.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    root, program = os.path.dirname(package), sys.argv[0] if sys.argv else ""  # noqa: PTH120
    is_program = program in {"-m", os.path.join(package, "__main__.py")} or (  # noqa: PTH118
        os.path.basename(program) == "handoff"  # noqa: PTH119
    )
    try:
        folder = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return
    if is_program and folder != root:
        sys.path[:] = [path for path in sys.path if path and os.path.abspath(path) != folder]  # noqa: PTH100


_drop_working_folder_from_path()
