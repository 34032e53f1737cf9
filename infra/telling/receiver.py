"""The stack's notification: a block of Prefect's, by its name, which keeps what is secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.printable import one_line
from handoff.infra.prefect.prefect_api import told_in_sentences

if TYPE_CHECKING:
    from prefect.blocks.abstract import NotificationBlock


def send(block: str, title: str, text: str) -> None:
    """Send a message through the block `TYPE/NAME`, as it is on the server now.

    Raises `UsageProblem` where there is none, and `EnvironmentLacking` where the message isn't
    taken; what is secret about the receiver is not told.
    """
    import httpx
    from prefect.blocks.abstract import NotificationError

    receiver = _load(block)
    try:
        with receiver.raise_on_failure():
            receiver.notify(text, subject=title)  # type: ignore[unused-coroutine]
    except httpx.HTTPStatusError as error:
        raise _refused(block, f"HTTP {error.response.status_code}") from None
    except NotificationError as error:
        raise _refused(block, one_line(error.log.strip())[-200:] or "no reason") from None
    except (httpx.HTTPError, OSError, ValueError) as error:
        # Their words may hold the address, which is what lets one in.
        raise _refused(block, type(error).__name__) from None


def require_block(block: str) -> None:
    """Raise `UsageProblem` unless the server has that notification block."""
    _load(block)


def _load(name: str) -> NotificationBlock:
    import prefect.blocks.notifications  # noqa: F401 - Prefect knows a block's type by its class
    from prefect.blocks.abstract import NotificationBlock
    from prefect.blocks.core import Block

    with told_in_sentences("the block", "one of its own", "Then it is tried again"):
        try:
            found = Block.load(name, _sync=True)  # type: ignore[call-arg]
        except ValueError:
            # Prefect's word for a block that isn't there, and for a name of another form.
            found = None
    if isinstance(found, NotificationBlock):
        return found
    raise UsageProblem(
        "Prefect's server has no such block", expected="TYPE/NAME of a notification block, such as "
        "slack-webhook/team", got=name[:100] if found is None else f"{name[:100]}, of another kind",
        remedy="Make one in Prefect's pages under Blocks, and name it in HANDOFF_NOTIFY",
    )  # fmt: skip


def _refused(block: str, got: str) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"the message was not taken, through the block {block}", expected="its receiver to take it",
        got=got, remedy="Is the receiver up, and is the block's address right?",
    )  # fmt: skip
