"""Commit statuses on GitHub, GitLab and Gitea: what happened to a commit, where its people look.

Sources: each one's REST API (GitHub: "Create a commit status", 2022-11-28; GitLab: "Set commit
pipeline status", v4; Gitea: `repoCreateStatus`, v1), and what they were seen to answer: GitHub
refuses a description of more than 140 characters, GitLab one of more than 255, and a state that a
status has already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args
from urllib.parse import quote, urlsplit

from handoff.artifacts.errors import EnvironmentLacking, UsageProblem
from handoff.artifacts.printable import one_line

if TYPE_CHECKING:
    import httpx

Kind = Literal["github", "gitlab", "gitea"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# What happened to a commit: in work, released, refused, or something else went wrong.
State = Literal["pending", "success", "failure", "error"]

CONTEXT = "handoff/release"
_DEFAULTS: dict[Kind, str] = {"github": "https://api.github.com", "gitlab": "https://gitlab.com"}
_LONGEST: dict[Kind, int] = {"github": 140, "gitlab": 255, "gitea": 255}
_GITLAB_STATES: dict[State, str] = {"failure": "failed", "error": "failed"}
_TIMEOUT_S = 10.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_SCP = re.compile(r"(?:[A-Za-z0-9_.-]+@)?([A-Za-z0-9.-]+):(?!/)(.+)")
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class CommitStatus:
    """What is said of a commit of a repository: a state, a sentence, and where there is more."""

    repository: str
    commit: str
    state: State
    text: str
    link: str = ""
    context: str = CONTEXT


class TemporarilyUnavailable(EnvironmentLacking):
    """The server can't be reached, or is too busy: what was refused now may be taken later."""


@dataclass(frozen=True)
class Forge:
    """A server of repositories: its kind, the address of its API, and the token that may write."""

    kind: Kind
    url: str
    token: str = field(repr=False)

    def path(self, repository: str) -> str:
        """Return the path of a repository on this server, `owner/name`; "" if it isn't here.

        What a run says of its repository is an address of any form, or a path. The token goes to
        nobody else's: the host has to be this one's.
        """
        parts = urlsplit(repository) if "://" in repository else None
        if parts is not None:
            host, path = parts.hostname or "", parts.path
        elif match := _SCP.fullmatch(repository):
            host, path = match[1], match[2]
        else:
            host, path = self.host, repository
        names = path.removeprefix("/").removesuffix("/").removesuffix(".git").split("/")
        is_here = host.lower() == self.host and not (parts is None and path.startswith("/"))
        is_path = all(_NAME.fullmatch(name) and name.strip(".") for name in names)
        has_valid_depth = len(names) == 2 or (self.kind == "gitlab" and 2 < len(names) < 22)
        return "/".join(names) if is_here and is_path and has_valid_depth else ""

    @property
    def host(self) -> str:
        """The host of its repositories: GitHub's API has one of its own."""
        return (urlsplit(self.url).hostname or "").lower().removeprefix("api.")

    def post(self, status: CommitStatus) -> bool:
        """Set a status; return whether the commit is one of this server's, and can have one.

        Raises `TemporarilyUnavailable` for what may succeed later, and `EnvironmentLacking` for
        what won't.
        """
        import httpx

        path = self.path(status.repository)
        if not path or not _COMMIT.fullmatch(status.commit):
            return False
        address, body = self._request(path, status)
        headers = {**self._headers(), "User-Agent": "handoff"}
        try:
            # Redirects are not followed: the token is for this server alone.
            answer = httpx.post(address, json=body, headers=headers, timeout=_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise self._refusal(TemporarilyUnavailable, path, type(error).__name__) from None
        if not answer.is_success and not self._is_set_already(answer):
            kind = TemporarilyUnavailable if _is_transient(answer) else EnvironmentLacking
            reason = shorten(answer.text[:2000], 200) or "nothing more"
            raise self._refusal(kind, path, f"HTTP {answer.status_code}: {reason}")
        return True

    def _request(self, path: str, status: CommitStatus) -> tuple[str, dict[str, str]]:
        body = {
            "state": status.state,
            "context": status.context,
            "description": shorten(status.text, _LONGEST[self.kind]),
        }
        if urlsplit(status.link).scheme in ("http", "https"):
            body["target_url"] = status.link
        base = self.url.rstrip("/")
        if self.kind == "gitlab":
            body["state"] = _GITLAB_STATES.get(status.state, status.state)
            body["name"] = body.pop("context")
            return f"{base}/api/v4/projects/{quote(path, safe='')}/statuses/{status.commit}", body
        api = "" if self.kind == "github" else "/api/v1"
        return f"{base}{api}/repos/{path}/statuses/{status.commit}", body

    def _headers(self) -> dict[str, str]:
        if self.kind == "gitlab":
            return {"PRIVATE-TOKEN": self.token}
        if self.kind == "gitea":
            return {"Authorization": f"token {self.token}"}
        return {
            "Authorization": f"Bearer {self.token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }

    def _is_set_already(self, answer: httpx.Response) -> bool:
        """Return whether GitLab says that the status has that state: another run had it set."""
        return (
            self.kind == "gitlab"
            and answer.status_code == 400
            and "Cannot transition status" in answer.text
        )

    def _refusal(
        self, kind: type[EnvironmentLacking], path: str, got: str
    ) -> EnvironmentLacking:  # fmt: skip
        return kind(
            f"the commit status for {path} was not taken", expected=f"{self.host} to take it",
            got=got.replace(self.token, "..."),
            remedy="Is it up? It is tried again" if kind is TemporarilyUnavailable else "Look at "
            "HANDOFF_FORGE_URL, and whether the token may write statuses of that repository",
        )  # fmt: skip


def make_forge(kind: str, url: str, token: str) -> Forge:
    """Return the server that settings name; raise `UsageProblem` for what they can't be."""
    kinds = {each: each for each in KINDS}
    if kind not in kinds:
        raise UsageProblem(
            "HANDOFF_FORGE names no kind of server", expected=f"one of {', '.join(KINDS)}",
            got=kind[:40], remedy="Fix it, or unset it: no commit has a status then",
        )  # fmt: skip
    url = url or _DEFAULTS.get(kinds[kind], "")
    parts = urlsplit(url)
    is_near = parts.hostname in ("localhost", "127.0.0.1", "::1")
    # The token would be readable on the line.
    if not parts.hostname or (parts.scheme != "https" and not (parts.scheme == "http" and is_near)):
        raise UsageProblem(
            "HANDOFF_FORGE_URL is no address that a token is sent to",
            expected="https://HOST, for GitHub Enterprise https://HOST/api/v3",
            got="another" if url else "nothing", remedy="Fix it",
        )  # fmt: skip
    if parts.username or parts.password or parts.query:
        raise UsageProblem(
            "HANDOFF_FORGE_URL holds more than an address", expected="https://HOST/PATH",
            got="a login or a query", remedy="Name the token in HANDOFF_FORGE_TOKEN_FILE",
        )  # fmt: skip
    if not token or not token.isascii() or not token.isprintable():
        raise UsageProblem(
            "there is no token for commit statuses",
            expected="one in the file that HANDOFF_FORGE_TOKEN_FILE names, or in "
            "HANDOFF_FORGE_TOKEN", got="none, or one with characters that aren't ASCII",
            remedy="Make one that may write statuses (GitHub: commit statuses; GitLab: api; Gitea: "
            "repository)",
        )  # fmt: skip
    return Forge(kinds[kind], url, token)


def shorten(text: str, most: int) -> str:
    """Return text in one line of at most `most` characters, cut at a word where that goes."""
    text = one_line(" ".join(text.split()))
    if len(text) <= most:
        return text
    cut = text[: most - 3]
    head, space, _ = cut.rpartition(" ")
    return (head if space and len(head) > most // 2 else cut).rstrip(" .,:;") + "..."


def _is_transient(answer: httpx.Response) -> bool:
    """Return whether an answer may be another one later; GitHub's limits come as 403, too."""
    if answer.status_code == 403:
        headers = answer.headers
        return "retry-after" in headers or headers.get("x-ratelimit-remaining") == "0"
    return answer.status_code in _LATER
