"""`handoff tell`: look at the Prefect server again and again, and notify whom the settings name."""

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
from handoff.infra.notifications.events import EventReader, NotificationKinds, add_rejected
from handoff.infra.notifications.forge import CommitStatus, Forge, make_forge
from handoff.infra.notifications.outbox import (
    LOGGER,
    Sender,
    memory_file,
    read_memory,
    write_memory,
)
from handoff.infra.prefect.prefect_api import explain_prefect_errors
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
    taken; what is secret about the receiver is not shown.
    """
    import httpx
    from prefect.blocks.abstract import NotificationError

    receiver = _load_block(block)
    try:
        with receiver.raise_on_failure():
            receiver.notify(text, subject=title)  # type: ignore[unused-coroutine]
    except httpx.HTTPStatusError as error:
        raise _refusal(block, f"HTTP {error.response.status_code}") from None
    except NotificationError as error:
        raise _refusal(block, one_line(error.log.strip())[-200:] or "no reason") from None
    except (httpx.HTTPError, OSError, ValueError) as error:
        # Their words may hold the address, which is what lets one in.
        raise _refusal(block, type(error).__name__) from None


def require_block(block: str) -> None:
    """Raise `UsageProblem` unless the server has that notification block."""
    _load_block(block)


def _load_block(name: str) -> NotificationBlock:
    import prefect.blocks.notifications  # noqa: F401 - Prefect knows a block's type by its class
    from prefect.blocks.abstract import NotificationBlock
    from prefect.blocks.core import Block

    with explain_prefect_errors("the block", "one of its own", "Then it is tried again"):
        try:
            block = Block.load(name, _sync=True)  # type: ignore[call-arg]
        except ValueError:
            # Prefect's word for a block that isn't there, and for a name of another form.
            block = None
    if isinstance(block, NotificationBlock):
        return block
    raise UsageProblem(
        "Prefect's server has no such block", expected="TYPE/NAME of a notification block, such as "
        "slack-webhook/team", got=name[:100] if block is None else f"{name[:100]}, of another kind",
        remedy="Make one in Prefect's pages under Blocks, and name it in HANDOFF_NOTIFY",
    )  # fmt: skip


def _refusal(block: str, got: str) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"the message was not taken, through the block {block}", expected="its receiver to take it",
        got=got, remedy="Is the receiver up, and is the block's address right?",
    )  # fmt: skip


_TIMEOUT_S = 30.0
TEST_CONTEXT = "handoff/test"


def run_notifier(every_s: float, *, once: bool) -> int:
    """Look every `every_s` seconds until Ctrl-C or SIGTERM, or once; send what is due.

    Returns the exit code: with `once` that of a look that failed. Raises `UsageProblem` for
    settings that name nobody, or what isn't there.
    """
    settings, notifications = _require_settings()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    log_lines(LOGGER)
    from prefect.client.orchestration import get_client

    file = memory_file(settings.home)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        _lock_home(file.parent),
        get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client,
    ):
        _warn_of_missing_block(notifications)
        kinds = NotificationKinds(
            messages=bool(notifications.block), statuses=bool(notifications.forge)
        )
        reader = EventReader(client, kinds, lambda run: read_night(settings, run))
        spool = Spool(settings.home) if notifications.block else None
        return _Loop(reader, _sender(notifications), file, spool).run(every_s, ended, once=once)


def _warn_of_missing_block(notifications: NotificationSettings) -> None:
    """Say in the log that there is no such block: one may be made while this process goes on."""
    try:
        if notifications.block:
            require_block(notifications.block)
    except HandoffError as error:
        LOGGER.warning("%s", error)


def _require_settings() -> tuple[Settings, NotificationSettings]:
    settings, notifications = read_settings(), read_notification_settings()
    if settings.is_embedded:
        raise EnvironmentLacking(
            "notifications are about a Prefect server's runs",
            expected="PREFECT_API_URL", got="nothing",
            remedy="Start one with 'handoff up', or name yours",
        )  # fmt: skip
    if not notifications.is_enabled:
        raise UsageProblem(
            "nobody is set to be notified",
            expected="HANDOFF_NOTIFY, for messages, or HANDOFF_FORGE, for "
            "commit statuses", got="neither",
            remedy="Name a notification block of Prefect's, such as slack-webhook/team, or the "
            "kind of server that keeps the models' code, such as github",
        )  # fmt: skip
    prepare_prefect(settings, retries=1)
    if notifications.forge:
        _forge(notifications)
    return settings, notifications


def _forge(notifications: NotificationSettings) -> Forge:
    return make_forge(notifications.forge, notifications.forge_url, read_forge_token(notifications))


def _sender(notifications: NotificationSettings) -> Sender:
    # The block and the token are read for each: they may be changed meanwhile.
    block = notifications.block
    return Sender(
        (lambda title, text: send(block, title, text)) if block else None,
        (lambda status: _forge(notifications).post(status)) if notifications.forge else None,
    )


@contextmanager
def _lock_home(folder: Path) -> Iterator[None]:
    """Hold the folder; raise `EnvironmentLacking` where another process notifies for this home."""
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


class _Loop:
    """Looks and sends; a server that is away is logged once, until it is back."""

    def __init__(
        self, reader: EventReader, sender: Sender, file: Path, spool: Spool | None
    ) -> None:
        self._reader, self._sender, self._file, self._spool = reader, sender, file, spool
        self._memory = read_memory(file)
        self._last_error = ""

    def run(self, every_s: float, ended: threading.Event, *, once: bool) -> int:
        while True:
            code = self._look(time.time())
            if once or ended.wait(every_s):
                return code

    def _look(self, now: float) -> int:
        code = 0
        try:
            refused = self._spool.list_set_aside() if self._spool else ()
            self._memory = add_rejected(self._reader.look(self._memory, now), refused, now)
            # Before anything is sent: a process that ends here sends it the next time.
            write_memory(self._file, self._memory)
            if self._last_error:
                LOGGER.warning("the server answers again")
            self._last_error = ""
        except HandoffError as error:
            code = error.exit_code
            if self._last_error != str(error):
                LOGGER.warning("%s", error)
            self._last_error = str(error)
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
    settings, notifications = _require_settings()
    if bool(repository) != bool(commit) or (commit and not notifications.forge):
        raise UsageProblem(
            "a commit status can't be tried out like that",
            expected="--repository and --commit, and HANDOFF_FORGE", got="not all of them",
            remedy="Name all three, or leave the options out: then a message is sent alone",
        )  # fmt: skip
    where = f"{socket.gethostname()}, for {settings.prefect_api}"
    if notifications.block:
        require_block(notifications.block)
        send(
            notifications.block, "Handoff: a test", f"This is how Handoff tells you: from {where}."
        )
        echo(f"a message was sent through {notifications.block}")
    if commit:
        status = CommitStatus(
            repository, commit.lower(), "success", "A test: Handoff can set statuses here.",
            settings.prefect_api.removesuffix("/api"), TEST_CONTEXT,
        )  # fmt: skip
        if not _forge(notifications).post(status):
            raise UsageProblem(
                "that commit can't have a status", expected=f"a whole commit of a repository on "
                f"{_forge(notifications).host}", got=f"{commit[:64]} of {repository[:200]}",
                remedy="Name it as https://HOST/OWNER/NAME, with all digits of its commit",
            )  # fmt: skip
        echo(f"the status {TEST_CONTEXT} was set on {commit[:12]} of {repository}")
    elif notifications.forge:
        echo("no status was set: --repository and --commit name what to try it on")
