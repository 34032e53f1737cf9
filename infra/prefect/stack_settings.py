"""What a stack's machines have in common, as its Prefect server keeps it for those that join.

It is a variable of the server's, which whoever may log in there can read: no secret is among it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from handoff.artifacts.errors import EnvironmentLacking, HandoffError
from handoff.artifacts.printable import one_line
from handoff.artifacts.release.signing import public_key_of
from handoff.infra.prefect.prefect_api import connected_client, write_variable

_VARIABLE = "handoff-stack"
# A variable holds 5000 characters.
_MAX_CHARACTERS = 4500


@dataclass(frozen=True)
class StackSettings:
    """Settings by variable, and public keys in PEM: those that are trusted, and the one that signs.

    `signs` is empty where no key has signed yet.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()
    signs: str = ""


def write_stack_settings(api: str, login: str, shared: StackSettings) -> None:
    """Keep the settings on the server at an address; raise `HandoffError` where it can't be asked.

    Of more keys than a variable holds none is kept: who joins has to be given them.
    """
    plain = asdict(shared)
    if len(str(plain)) > _MAX_CHARACTERS:
        plain["trusted"] = ()
    with connected_client(
        api, login, "the stack's settings", "a variable", "Then run it again"
    ) as client:
        write_variable(client, _VARIABLE, {**plain, "trusted": list(plain["trusted"])})


def read_stack_settings(api: str, login: str) -> StackSettings:
    """Return what the server keeps; raise `EnvironmentLacking` where that is nothing, or no such.

    Keys are public keys in PEM, whatever somebody has put there.
    """
    with connected_client(
        api, login, "to be asked for the stack's settings", "that", "Then join again"
    ) as client:
        variable = client.read_variable_by_name(_VARIABLE)
    try:
        if variable is None:
            raise ValueError("none")
        value: Any = variable.value
        settings = {one_line(str(name)): one_line(str(v)) for name, v in value["settings"].items()}
        keys = tuple(map(str, value["trusted"]))
        signs = str(value["signs"])
        for pem in filter(None, (*keys, signs)):
            public_key_of(pem.encode(), "a key that the stack shares")
    except (HandoffError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnvironmentLacking(
            f"the Prefect server at {api} doesn't tell the settings of a stack",
            expected="what 'handoff up' or 'handoff deploy' keeps there",
            got=one_line(str(error))[:200],
            remedy="Run 'handoff up' on the stack's machine again (for servers of your own: "
            "'handoff deploy'), and then this",
        ) from error  # fmt: skip
    return StackSettings(settings, keys, signs)
