"""What a pass's parameters have to be, checked alike by the pass and before anything is started."""

from __future__ import annotations

import re
from collections.abc import Mapping

from handoff.artifacts.errors import UsageProblem


def require_parameters(
    name: str, declared: Mapping[str, str], forms: Mapping[str, str], given: Mapping[str, str]
) -> None:
    """Raise `UsageProblem` unless the parameters of the pass `name` are those that it takes.

    `declared` are all that it has, each with what it means, and `forms` regular expressions that
    their values match.
    """
    if set(given) != set(declared):
        raise _wrong(
            name, f"the parameters {', '.join(declared) or '(none)'}", ", ".join(given) or "none"
        )
    for parameter, form in forms.items():
        if not re.fullmatch(form, given[parameter]):
            expected = f"{parameter} to be {declared[parameter]}"
            raise _wrong(name, expected, repr(given[parameter][:60]))


def _wrong(name: str, expected: str, got: str) -> UsageProblem:
    return UsageProblem(
        f"the pass {name} can't be set up", expected=expected, got=got,
        remedy=f"Mend its parameters in the recipe; 'handoff passes' tells what {name} takes",
    )  # fmt: skip
