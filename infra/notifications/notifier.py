"""`handoff tell`: look at the Prefect server again and again, and tell whom the settings name."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from handoff.artifacts.errors import EnvironmentLacking, HandoffError, UsageProblem
from handoff.artifacts.files.locks import open_folder, try_lock
from handoff.artifacts.night import NIGHT_LIMIT_BYTES, Night, parse_night
from handoff.artifacts.printable import one_line
from handoff.artifacts.release.layout import night_key
from handoff.artifacts.stores.store import open_store
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.notifications.events import EventReader, Wants, with_set_aside
from handoff.infra.notifications.forge import CommitStatus, Forge, make_forge
from handoff.infra.notifications.outbox import (
    LOGGER,
    Sender,
    memory_file,
    read_memory,
    write_memory,
)
from handoff.infra.prefect.prefect_api import told_in_sentences
from handoff.infra.settings import (
    NotificationSettings,
    Settings,
    read_forge_token,
    read_notification_settings,
    read_settings,
)
from handoff.infra.terminal.output import echo, log_lines
from handoff.infra.triggers.spool import Spool

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


_TIMEOUT_S = 30.0
TEST_CONTEXT = "handoff/test"


def tell(every_s: float, *, once: bool) -> int:
    """Look every `every_s` seconds until Ctrl-C or SIGTERM, or once; tell what is to be told.

    Returns the exit code: with `once` that of a look that failed. Raises `UsageProblem` for
    settings that name nobody, or what isn't there.
    """
    settings, telling = _require_settings()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    log_lines(LOGGER)
    from prefect.client.orchestration import get_client

    file = memory_file(settings.home)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        _alone(file.parent),
        get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client,
    ):
        _warn_of_missing_block(telling)
        wants = Wants(messages=bool(telling.block), statuses=bool(telling.forge))
        looker = EventReader(client, wants, lambda run: read_night(settings, run))
        spool = Spool(settings.home) if telling.block else None
        return _Going(looker, _sender(telling), file, spool).go(every_s, ended, once=once)


def _warn_of_missing_block(telling: NotificationSettings) -> None:
    """Say in the log that there is no such block: one may be made while this process goes on."""
    try:
        if telling.block:
            require_block(telling.block)
    except HandoffError as error:
        LOGGER.warning("%s", error)


def _require_settings() -> tuple[Settings, NotificationSettings]:
    settings, telling = read_settings(), read_notification_settings()
    if settings.is_embedded:
        raise EnvironmentLacking(
            "notifications are about a Prefect server's runs",
            expected="PREFECT_API_URL", got="nothing",
            remedy="Start one with 'handoff up', or name yours",
        )  # fmt: skip
    if not telling.is_wanted:
        raise UsageProblem(
            "nobody is set to be notified",
            expected="HANDOFF_NOTIFY, for messages, or HANDOFF_FORGE, for "
            "commit statuses", got="neither",
            remedy="Name a notification block of Prefect's, such as slack-webhook/team, or the "
            "kind of server that keeps the models' code, such as github",
        )  # fmt: skip
    prepare_prefect(settings, retries=1)
    if telling.forge:
        _forge(telling)
    return settings, telling


def _forge(telling: NotificationSettings) -> Forge:
    return make_forge(telling.forge, telling.forge_url, read_forge_token(telling))


def _sender(telling: NotificationSettings) -> Sender:
    # The block and the token are read for each: they may be changed meanwhile.
    return Sender(
        (lambda title, text: send(telling.block, title, text)) if telling.block else None,
        (lambda status: _forge(telling).post(status)) if telling.forge else None,
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder; raise `EnvironmentLacking` where another process tells for this home."""
    descriptor = open_folder(folder)
    try:
        if not try_lock(descriptor):
            raise EnvironmentLacking(
                "people would be notified twice", expected="one 'handoff tell' for a home",
                got="another one that runs", remedy="'handoff status' shows the stack's own",
            )  # fmt: skip
        yield
    finally:
        os.close(descriptor)


class _Going:
    """Looks and tells; a server that is away is told of once, until it is back."""

    def __init__(
        self, looker: EventReader, sender: Sender, file: Path, spool: Spool | None
    ) -> None:
        self._looker, self._sender, self._file, self._spool = looker, sender, file, spool
        self._memory = read_memory(file)
        self._told = ""

    def go(self, every_s: float, ended: threading.Event, *, once: bool) -> int:
        while True:
            code = self._turn(time.time())
            if once or ended.wait(every_s):
                return code

    def _turn(self, now: float) -> int:
        code = 0
        try:
            refused = self._spool.set_aside() if self._spool else ()
            self._memory = with_set_aside(self._looker.look(self._memory, now), refused, now)
            # Before anything is sent: a process that ends here tells it the next time.
            write_memory(self._file, self._memory)
            if self._told:
                LOGGER.warning("the server answers again")
            self._told = ""
        except HandoffError as error:
            code = error.exit_code
            if self._told != str(error):
                LOGGER.warning("%s", error)
            self._told = str(error)
        sent = self._sender.send_due(self._memory, now)
        if sent != self._memory:
            self._memory = sent
            write_memory(self._file, sent)
        return code


def read_night(settings: Settings, run: str) -> Night | None:
    """Return the record of the night that a flow run worked on; None where it left none.

    Raises `StoreFailed` where the store can't be read.
    """
    from handoff.flows.nightly.night import night_stamp

    key = night_key(night_stamp(run))
    data = open_store(settings.stores.objects, patience_s=10).read(key, NIGHT_LIMIT_BYTES)
    return parse_night(data, key) if data is not None else None


def send_test(repository: str, commit: str) -> None:
    """Send a test message, and set a test status where a commit is named; print what was done.

    Raises what the receiver's or the server's refusal is.
    """
    settings, telling = _require_settings()
    if bool(repository) != bool(commit) or (commit and not telling.forge):
        raise UsageProblem(
            "a commit status can't be tried out like that",
            expected="--repository and --commit, and HANDOFF_FORGE", got="not all of them",
            remedy="Name all three, or leave the options out: then a message is sent alone",
        )  # fmt: skip
    where = f"{socket.gethostname()}, for {settings.prefect_api}"
    if telling.block:
        require_block(telling.block)
        send(telling.block, "Handoff: a test", f"This is how Handoff tells you: from {where}.")
        echo(f"a message was sent through {telling.block}")
    if commit:
        status = CommitStatus(
            repository, commit.lower(), "success", "A test: Handoff can set statuses here.",
            settings.prefect_api.removesuffix("/api"), TEST_CONTEXT,
        )  # fmt: skip
        if not _forge(telling).post(status):
            raise UsageProblem(
                "that commit can't have a status", expected=f"a whole commit of a repository on "
                f"{_forge(telling).host}", got=f"{commit[:64]} of {repository[:200]}",
                remedy="Name it as https://HOST/OWNER/NAME, with all digits of its commit",
            )  # fmt: skip
        echo(f"the status {TEST_CONTEXT} was set on {commit[:12]} of {repository}")
    elif telling.forge:
        echo("no status was set: --repository and --commit name what to try it on")
