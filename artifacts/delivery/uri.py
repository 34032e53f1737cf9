"""Where a delivery lies, as one URI: a folder, S3, an archive behind https, or a git commit.

    /path/to/delivery, file:///path/to/delivery        a folder or an archive on this machine
    s3://bucket/prefix                                 a folder of objects, or one archive
    https://host/delivery.tar.gz#sha256=<64 hex>       an archive, and what it has to be
    git+https://host/repository.git@<40 hex>#subdirectory=path     a folder of one commit

The last is pip's form for a repository; `git+ssh` and `git+file` are read, too. A URI becomes a
parameter of a flow run, which whoever may look at the server reads: one that holds a password or a
token is refused, and no message of this module repeats it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from handoff.artifacts.digest import Digest
from handoff.artifacts.errors import UsageProblem

_LONGEST = 2000
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# What git and ssh take for an option begins with a dash.
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"sha256=([0-9a-f]{64})")
_SECRET_NAMES = re.compile(
    r"sig|signature|.*-signature|.*-credential|.*-security-token|.*token|.*password|.*secret"
    r"|.*api_?key|auth",
    re.IGNORECASE,
)
_FORMS = (
    "a folder, file://, s3://bucket/prefix, https://...#sha256=<64 hex>, or "
    "git+https://...@<40 hex commit>#subdirectory=path"
)


@dataclass(frozen=True)
class LocalSource:
    """A folder or an archive on this machine."""

    path: Path


@dataclass(frozen=True)
class S3Source:
    """A folder of objects, or one object that is an archive; `key` has no slash at its ends."""

    bucket: str
    key: str


@dataclass(frozen=True)
class ArchiveSource:
    """An archive behind https, which has to have a digest."""

    url: str
    digest: Digest


@dataclass(frozen=True)
class GitSource:
    """A folder of one commit; `url` is git's, and an empty `subdirectory` is the whole tree."""

    url: str
    commit: str
    subdirectory: str = ""

    @property
    def scheme(self) -> str:
        """The transport: `https`, `ssh` or `file`."""
        return self.url.partition("://")[0]


DeliverySource = LocalSource | S3Source | ArchiveSource | GitSource


def parse_delivery_uri(text: str) -> DeliverySource:
    """Return what `text` names; raise `UsageProblem` for anything else."""
    if not text or len(text) > _LONGEST or not text.isprintable() or text.startswith("-"):
        got = "nothing" if not text else f"{len(text)} characters, or some that can't be printed"
        raise _usage_error(f"{_FORMS}; at most {_LONGEST} characters", got)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return _parse_local(text, text)
    name = scheme[1].lower()
    if not text[len(name) :].startswith("://"):
        # Such as git's `ext::command`, and `host:path`.
        raise _usage_error(_FORMS, redact_uri(text))
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise _usage_error(_FORMS, f"{redact_uri(text)} ({error})") from None
    if name == "file":
        return _parse_file(text, parts)
    if name == "s3":
        return _parse_s3(text)
    if name == "https":
        return _parse_archive(text, parts)
    if name in ("git+https", "git+ssh", "git+file"):
        return _parse_git(text, parts)
    raise _usage_error(_FORMS, redact_uri(text))


def absolute_delivery_uri(text: str, base: Path) -> str:
    """Return `text` with a relative path made absolute, from `base`; check it otherwise."""
    if text and not _SCHEME.match(text) and not text.startswith("-"):
        text = os.path.normpath(base / Path(text).expanduser())
    parse_delivery_uri(text)
    return text


def redact_uri(text: str) -> str:
    """Return a URI without its user, password and query, for messages."""
    uri = re.sub(r"//[^/]*@", "//...@", text)
    uri = re.sub(r"\?[^#]*", "?...", uri)
    return uri[:200]


def strip_login(address: str) -> str:
    """Return an address that can be opened, without the user and the password in it."""
    return re.sub(r"//[^/]*@", "//", address)


def has_secret(parts: SplitResult, *, user_allowed: bool = False) -> bool:
    """Return whether a URL holds a password, or a token in its query."""
    if parts.password is not None or (parts.username is not None and not user_allowed):
        return True
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    return any(_SECRET_NAMES.fullmatch(name) for name in names)


def _parse_local(text: str, path: str) -> LocalSource:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise _usage_error("an absolute path without '..'", redact_uri(text))
    return LocalSource(Path(path))


def _parse_file(text: str, parts: SplitResult) -> LocalSource:
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise _usage_error("file:///absolute/path", redact_uri(text))
    return _parse_local(text, unquote(parts.path))


def _parse_s3(text: str) -> S3Source:
    bucket, _, key = text[len("s3://") :].partition("/")
    key = key.removesuffix("/")
    if not _BUCKET.fullmatch(bucket) or not is_plain_path(key):
        raise _usage_error("s3://bucket/prefix, with the name of a bucket alone", redact_uri(text))
    return S3Source(bucket, key)


def _parse_archive(text: str, parts: SplitResult) -> ArchiveSource:
    _require_no_secret(parts, user_allowed=False)
    digest = _SHA256.fullmatch(parts.fragment)
    if digest is None:
        raise _usage_error(
            "the archive's digest behind its address, as #sha256=<64 hexadecimal digits>",
            redact_uri(text), "Append what 'sha256sum' says of the archive",
        )  # fmt: skip
    _require_host(text, parts)
    return ArchiveSource(text.partition("#")[0], Digest(f"sha256:{digest[1]}"))


def _parse_git(text: str, parts: SplitResult) -> GitSource:
    transport = parts.scheme.removeprefix("git+")
    _require_no_secret(parts, user_allowed=transport == "ssh")
    path, _, commit = parts.path.rpartition("@")
    if not _COMMIT.fullmatch(commit) or path in ("", "/") or parts.query:
        raise _usage_error(
            "a repository and a whole commit, as git+https://host/repository.git@<40 hex>",
            redact_uri(text), "Name the commit by all of its 40 digits; a branch may move",
        )  # fmt: skip
    if transport == "file":
        if parts.netloc:
            raise _usage_error("git+file:///absolute/path@<commit>", redact_uri(text))
        path = str(_parse_local(text, unquote(path)).path)
    else:
        _require_host(text, parts)
    subdirectory = unquote(parts.fragment.removeprefix("subdirectory=")).strip("/")
    is_named = parts.fragment.startswith("subdirectory=") and is_plain_path(subdirectory)
    if parts.fragment and not is_named:
        raise _usage_error("at most #subdirectory=path behind the commit", redact_uri(text))
    return GitSource(f"{transport}://{parts.netloc}{path}", commit, subdirectory)


def is_plain_path(path: str) -> bool:
    """Return whether `path` is a relative one of names alone: no `..`, nothing invisible."""
    names = path.split("/")
    plain = all(name not in ("", ".", "..") and len(name.encode()) <= 255 for name in names)
    return plain and path.isprintable() and "\\" not in path and len(path) <= 1000


def _require_no_secret(parts: SplitResult, *, user_allowed: bool) -> None:
    if has_secret(parts, user_allowed=user_allowed):
        raise _usage_error(
            "an address without a password or a token: it would stand among the run's parameters",
            "one that holds one",
            "Where the delivery is fetched let git's credential helper, ~/.netrc, an ssh agent or "
            "the environment hold it",
        )


def _require_host(text: str, parts: SplitResult) -> None:
    user = parts.username
    if not _HOST.fullmatch(parts.hostname or "") or (user and not _USER.fullmatch(user)):
        raise _usage_error("an address with a host's name", redact_uri(text))


def _usage_error(
    expected: str, got: str, remedy: str = "Name the delivery by one of these"
) -> UsageProblem:
    return UsageProblem(
        "the delivery's address can't be used", expected=expected, got=got, remedy=remedy
    )
