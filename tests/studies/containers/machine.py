"""What bringing up the containers takes of a machine, asked before anything is made."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

# Images, their layers while they are built, volumes, and a release's files; and where images are.
DISK_GB, DISK_AGAIN_GB = 22, 8
MEMORY_GB = 10
_PACKAGES = {
    "mmdebstrap": "mmdebstrap", "runc": "runc", "iptables": "iptables", "ip": "iproute2",
    "nsenter": "util-linux", "dpkg": "dpkg", "apt-get": "apt", "openssl": "openssl",
}  # fmt: skip
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def os_release(path: Path = Path("/etc/os-release")) -> dict[str, str]:
    """Return what the file says of this system; nothing where there is none."""
    if not path.is_file():
        return {}
    pairs = re.findall(r'(?m)^(\w+)="?([^"\n]*)"?$', path.read_text("utf-8"))
    return dict(pairs)


def missing(
    folder: Path, tool: Path, *, user: int, release: Mapping[str, str], path: str,
    command: str = "stack-run", also: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:  # fmt: skip
    """Return a sentence for each thing that this machine lacks; nothing where all is there.

    `also` are further programs that are needed, with Debian's package of each.
    """
    lacks = []
    if user != 0:
        lacks.append("expected root, who may make namespaces and mounts: sudo make " + command)
    version = release.get("VERSION_ID", "0").partition(".")[0]
    if release.get("ID") != "debian" or int(version or 0) < 12:
        got = f"{release.get('ID', 'no /etc/os-release')} {release.get('VERSION_ID', '')}".strip()
        lacks.append(f"expected Debian 12 or newer, whose packages all is made of, got {got}")
    programs = {**_PACKAGES, **also}
    wanted = {package for name, package in programs.items() if not shutil.which(name, path=path)}
    if not _KEYRING.is_file():
        wanted.add("debian-archive-keyring")
    if wanted:
        lacks.append(
            "expected programs of Debian's packages: apt-get install --no-install-recommends "
            + " ".join(sorted(wanted))
        )
    if not tool.is_file():
        lacks.append(f"expected {tool}: make stack-ready installs it")
    free = shutil.disk_usage(_existing(folder)).free / 1e9
    wants = DISK_AGAIN_GB if (folder / "data" / "overlay2").is_dir() else DISK_GB
    if free < wants:
        lacks.append(
            f"expected {wants} GB of disk for {folder}, got {free:.0f}: STACK_RUN_FOLDER=... "
            "names another place"
        )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    if memory < MEMORY_GB:
        lacks.append(f"expected {MEMORY_GB} GB of memory, got {memory:.0f}")
    return lacks


def describe(release: Mapping[str, str]) -> str:
    """Return this machine in words, for what was tried."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    system = release.get("PRETTY_NAME", "an unknown system")
    return f"{system}, Linux {os.uname().release}, {os.cpu_count()} cores, {memory:.0f} GiB"


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
