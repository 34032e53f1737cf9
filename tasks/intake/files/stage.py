"""Copies a delivery into a private folder, hashing what was copied: later steps read only that."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from pathlib import Path

from handoff.artifacts.delivery.contract import (
    CALIBRATION_FILE,
    CONTRACT_FILE,
    EXAMPLES_FILE,
    IGNORED_FOLDER,
    INIT_FILE,
    MODULE_FILE,
    SOURCES_FILE,
    STATE_FILE,
)
from handoff.artifacts.delivery.metric import EVALUATION_FILE
from handoff.artifacts.digest import Digest, digest_file, digest_tree
from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.files.writing import scratch_folder
from handoff.tasks.intake.errors import refuse

_BLOB_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,199}\.pt")
_NAMED_FILES = frozenset(
    {
        CALIBRATION_FILE,
        CONTRACT_FILE,
        EVALUATION_FILE,
        EXAMPLES_FILE,
        INIT_FILE,
        MODULE_FILE,
        SOURCES_FILE,
        STATE_FILE,
    }
)
_REQUIRED = (MODULE_FILE, INIT_FILE, STATE_FILE)
_MAX_FILES = 10_000
_MAX_BYTES = 1 << 38
_CHUNK_BYTES = 1 << 20


def stage(delivery: Path, staging: Path) -> dict[str, Digest]:
    """Copy the delivery to `staging` at once or not at all; return each file's digest.

    Only regular files with plain names are copied, opened without following links. A staging
    folder that holds the same files already is kept; one that holds others is refused.
    """
    staging.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(staging.parent, f".{staging.name}-") as temporary:
        files = _copy_folder(delivery, temporary)
        if staging.exists():
            _check_same_files(staging, files)
        else:
            _publish(temporary, staging, files)
    return files


def digest_staged(staging: Path) -> dict[str, Digest]:
    """Return the digest of each file in a staging folder."""
    return {path.name: digest_file(path) for path in sorted(staging.iterdir())}


def _publish(temporary: Path, staging: Path, files: dict[str, Digest]) -> None:
    try:
        temporary.rename(staging)
    except OSError:
        if not staging.exists():
            raise
        # Another process was faster, which is as good if it copied the same.
        _check_same_files(staging, files)


def _check_same_files(staging: Path, files: dict[str, Digest]) -> None:
    present = digest_staged(staging) if staging.is_dir() else {}
    if present != files:
        raise UsageProblem(
            f"the staging folder {staging} is taken",
            expected=f"no such folder, or a copy of {digest_tree(files).short}",
            got=f"{digest_tree(present).short}",
            remedy="Name another staging folder, or remove that one",
        )


def _copy_folder(delivery: Path, target: Path) -> dict[str, Digest]:
    try:
        folder = os.open(delivery.resolve(), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name that is none
        raise refuse(
            f"{delivery} can't be read",
            expected="a folder that torch.fx's to_folder wrote",
            got=getattr(error, "strerror", None) or str(error),
            remedy="Name the folder that holds module.py",
        ) from error
    try:
        names = _list_names(folder, delivery)
        total = 0
        files = {}
        for name in names:
            size, digest = _copy_file(folder, name, target / name, _MAX_BYTES - total)
            total += size
            files[name] = digest
        return files
    finally:
        os.close(folder)


def _list_names(folder: int, delivery: Path) -> list[str]:
    names = []
    for name in sorted(os.listdir(folder)):
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError as error:
            raise _refuse_change(name, "the file that was there", "none") from error
        if name == IGNORED_FOLDER and stat.S_ISDIR(mode):
            continue
        if name not in _NAMED_FILES and not _BLOB_NAME.fullmatch(name):
            raise refuse(
                f"{delivery} holds something that to_folder doesn't write",
                expected=f"module.py, .pt files, {CONTRACT_FILE} and {EXAMPLES_FILE}",
                got=name,
                where=name,
                remedy=f"Remove {name!r} from the folder, then take it in again",
            )
        names.append(name)
    if len(names) > _MAX_FILES:
        raise _refuse_size(f"at most {_MAX_FILES} files", f"{len(names)}")
    for required in _REQUIRED:
        if required not in names:
            raise refuse(
                f"{delivery} is not a whole delivery",
                expected=f"a file {required}",
                got="none",
                where=required,
            )
    return names


def _refuse_size(expected: str, got: str) -> Exception:
    return refuse("the delivery is too large", expected=expected, got=got)


def _copy_file(folder: int, name: str, target: Path, limit: int) -> tuple[int, Digest]:
    """Copy one file and return its size in bytes and its digest."""
    source = _open_regular(folder, name)
    digest = hashlib.sha256()
    size = 0
    with os.fdopen(source, "rb", buffering=0) as stream, target.open("xb") as copy:
        expected = os.fstat(source).st_size
        if expected > limit:
            raise _refuse_size(f"at most {_MAX_BYTES} bytes", f"{expected} more in {name}")
        if expected > shutil.disk_usage(target.parent).free:
            raise EnvironmentLacking(
                f"there is no room for {name}",
                expected=f"{expected} free bytes for the staging folder",
                got=f"{shutil.disk_usage(target.parent).free}",
                remedy="Make room, then run the same command again",
            )
        while chunk := stream.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > expected:
                break
            digest.update(chunk)
            copy.write(chunk)
    if size != expected:
        raise _refuse_change(name, f"{expected} bytes", str(size))
    target.chmod(0o400)
    return size, Digest(f"sha256:{digest.hexdigest()}")


def _refuse_change(name: str, expected: str, got: str) -> Exception:
    return refuse(
        f"{name} changed while it was copied",
        expected=expected,
        got=got,
        where=name,
        remedy="Wait until the delivery is complete, then take it in again",
    )


def _open_regular(folder: int, name: str) -> int:
    """Open a file that is no link, no pipe, and has one name only."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    got = "a link"
    try:
        source = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError as error:
        raise _refuse_change(name, "the file that was there", "none") from error
    except PermissionError as error:
        raise refuse(
            f"{name} can't be read", expected="a file that this user may read",
            got=error.strerror or str(error), where=name,
            remedy="Let whoever releases read the delivery's files (chmod a+r)",
        ) from error  # fmt: skip
    except OSError as error:
        got = error.strerror or str(error)
    else:
        state = os.fstat(source)
        if stat.S_ISREG(state.st_mode) and state.st_nlink == 1:
            return source
        os.close(source)
        got = "a file with several names" if stat.S_ISREG(state.st_mode) else "something else"
    raise refuse(
        f"{name} is not a plain file",
        expected="a regular file with one name",
        got=got,
        where=name,
        remedy="Copy the delivery's files into a fresh folder, then take that in",
    )
