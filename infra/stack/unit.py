"""A systemd unit that brings the stack up at boot: it names the home; all else is kept there."""

from __future__ import annotations

import os
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.isolation import isolated_command

_NAME = "handoff.service"
_SYSTEM = Path("/etc/systemd/system")
_UNIT = """\
[Unit]
Description=Handoff's stack: Prefect, MLflow, their database, workers
After=network-online.target
Wants=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
Environment={home}
Environment={path}
ExecStart={up}
ExecStop={down}
# It waits until everything is healthy, and stops what works for it one after the other.
TimeoutStartSec=600
TimeoutStopSec=300

[Install]
WantedBy={wanted}
"""


def write_unit(home: Path, *, for_system: bool) -> tuple[Path, str]:
    """Write the unit for this user, or for the system; return its file and what to run next.

    Raises `EnvironmentLacking` where it can't be written.
    """
    folder = _SYSTEM if for_system else _user_folder()
    file = folder / _NAME
    text = _UNIT.format(
        home=_quote(f"HANDOFF_HOME={home}"),
        path=_quote(f"PATH={os.environ.get('PATH', os.defpath)}"),
        up=_command("up", "--use", "kept"),
        down=_command("down", "--timeout", "120"),
        wanted="multi-user.target" if for_system else "default.target",
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text, mode=0o644)
    except OSError as error:
        raise EnvironmentLacking(
            f"the unit can't be written to {file}", expected="a folder that this user may write to",
            got=error.strerror or str(error),
            remedy="Run it as root" if for_system else "Fix the folder's permissions",
        ) from error  # fmt: skip
    if for_system:
        return file, "systemctl enable --now handoff"
    # Without lingering a user's services end with the last session.
    return file, "systemctl --user enable --now handoff && loginctl enable-linger"


def _user_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base else Path.home() / ".config") / "systemd" / "user"


def _command(*arguments: str) -> str:
    # Of a command alone systemd replaces variables.
    words = [word.replace("$", "$$") for word in isolated_command("handoff", *arguments)]
    return " ".join(map(_quote, words))


def _quote(word: str) -> str:
    """Return a word as systemd reads it: in quotes, `%` doubled (systemd.syntax(7))."""
    if any(ord(letter) < 32 for letter in word):
        raise UsageProblem(
            "a unit can't hold that", expected="a path without control characters",
            got=ascii(word)[:200], remedy="Move HANDOFF_HOME, or what is on the PATH",
        )  # fmt: skip
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
