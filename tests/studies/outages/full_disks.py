"""A full disk: everything on a small file system that has so many bytes left, and no more."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from handoff.artifacts.release.signing import make_key, open_signer, read_trust
from handoff.tasks.registry import pull
from handoff.tasks.registry.messages import PullJob
from tests.studies.outages.children import run_in_child
from tests.studies.outages.outcomes import InspectionResult, Outcome, judge
from tests.studies.outages.registries import Place, append_only

BLOCK_BYTES = 4096
_SIZE_MIB = 24


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of a few MiB on `folder`; raise `PermissionError` where that's barred."""
    folder.mkdir(parents=True)
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m", "tmpfs", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounting.returncode:
        raise PermissionError(mounting.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def room_needed(place: Place, work: Callable[[], object]) -> int:
    """Return how many bytes `work` adds to the disk."""
    place.restore()
    before = _free_bytes(place.root)
    ended = run_in_child(work)
    assert ended.refusal is None, ended.refusal
    return before - _free_bytes(place.root)


def fill_and_run(
    place: Place, where: str, work: Callable[[], object], *, room: int,
    again: Callable[[], object], versions: tuple[int, ...],
) -> Outcome:  # fmt: skip
    """Let `work` have `room` bytes, then make room, look, and run `again`."""
    place.restore()
    ballast = place.root / "ballast"
    _fill(ballast, _free_bytes(place.root) - room)
    ended = run_in_child(work)
    ballast.unlink()
    found = run_in_child(lambda: judge(place, again, versions)).value
    assert isinstance(found, InspectionResult)
    return Outcome(
        "no room on the disk", where, "refused" if ended.refusal else "well",
        str(ended.refusal or ""), tuple(found.half), tuple(found.lost), tuple(found.litter),
    )  # fmt: skip


def fill_everywhere(
    place: Place, where: str, work: Callable[[], object], *, again: Callable[[], object],
    versions: tuple[int, ...] = (1, 2), every: int = 1,
) -> Iterator[Outcome]:  # fmt: skip
    """Run `work` with room for one block, two, and so on, up to what it needs."""
    for room in range(0, room_needed(place, work) + BLOCK_BYTES, every * BLOCK_BYTES):
        yield fill_and_run(place, where, work, room=room, again=again, versions=versions)


def pull_first(place: Place) -> None:
    """Pull version 1 to a folder on the same disk."""
    stores = place.registry.stores
    to = place.state / "pulled"
    pull.run(PullJob(place.model, 1, to, "auto", stores, torch_version=None))


def make_new_key(place: Place) -> None:
    """Make a key pair on the same disk, unless it is there whole; sign with it."""
    folder = place.state / "made"
    private, public = folder / "private" / "key.pem", folder / "trusted" / "key.pub"
    if not private.exists():
        make_key(private, public)
    keys = [key.keyid for key in read_trust([str(public.parent)]).keys]
    assert keys == [open_signer(str(private)).public_key.keyid], keys


def parts_on_a_disk(place: Place) -> dict[str, tuple[Callable[[], object], tuple[int, ...]]]:
    """Return what runs out of room by the name of the place, and the versions at the end."""
    return {
        "upload, ledger, copies": (lambda: append_only(place), (1, 2)),
        "pull": (lambda: pull_first(place), (1,)),
        "making a key": (lambda: make_new_key(place), (1,)),
    }


def _free_bytes(folder: Path) -> int:
    import os

    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _fill(path: Path, size: int) -> None:
    with path.open("wb") as stream, tempfile.SpooledTemporaryFile() as _:
        stream.write(b"\0" * max(0, size // BLOCK_BYTES * BLOCK_BYTES))
