"""The webhook's configuration: who may tell of what, and which delivery that stands for.

[[source]]
kind = "github"
secret_env = "GITHUB_HOOK_SECRET"
repository = "team/resnet18"
branch = "main"
model = "resnet18"
delivery = "git+https://github.com/team/resnet18.git@{commit}#subdirectory=delivery"

[limits]
per_address_per_minute = 60
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from handoff.artifacts.delivery.contract import require_model_name
from handoff.artifacts.delivery.uri import parse_delivery_uri
from handoff.artifacts.errors import HandoffError, UsageProblem
from handoff.artifacts.files.strict_parsing import parse_toml
from handoff.artifacts.record import RecordInvalid, from_plain
from handoff.infra.triggers.arrival import Policy

Kind = Literal["github", "gitlab", "s3", "handoff"]
# Shorter ones are guessed. GitHub, GitLab and MinIO take any length.
_SHORTEST_SECRET = 16
_MOST_BODY = 25 << 20
# What a template may hold, for each kind; every value is checked before it is put in.
PLACEHOLDERS: dict[Kind, dict[str, str]] = {
    "github": {"commit": "0" * 40},
    "gitlab": {"commit": "0" * 40},
    "s3": {"folder": "in/toy", "name": "toy"},
    "handoff": {"commit": "0" * 40, "model": "toy"},
}
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Source:
    """Somebody who may tell of new commits, and what happens to it.

    `repository` is GitHub's or GitLab's `owner/name`. `delivery` and, for S3, `model` are templates
    (`PLACEHOLDERS`). `deliveries` are the beginnings that an address which comes with a request of
    our own may have. Exactly one of `secret_env` and `secret_file` names the secret.
    """

    kind: Kind
    secret_env: str = ""
    secret_file: str = ""
    repository: str = ""
    branch: str = "main"
    bucket: str = ""
    prefix: str = ""
    model: str = ""
    delivery: str = ""
    deliveries: tuple[str, ...] = ()
    alias: str = ""
    policy: Policy = "queue"

    def __post_init__(self) -> None:
        """Raise `ValueError` for what doesn't go together."""
        if bool(self.secret_env) == bool(self.secret_file):
            raise ValueError("expected one of secret_env and secret_file")
        if self.kind in ("github", "gitlab"):
            self._require("repository", "model", "delivery", "branch")
        elif self.kind == "s3":
            self._require("bucket")
        elif bool(self.delivery) == bool(self.deliveries):
            raise ValueError("expected one of delivery and deliveries")
        self._check_deliveries()
        if self.model and self.model != "{name}":
            require_model_name(self.model)
        elif self.model and self.kind != "s3":
            raise ValueError("expected a model's name; {name} is for s3 alone")

    @property
    def label(self) -> str:
        """What log lines call it."""
        what = self.repository or f"{self.bucket}/{self.prefix}".strip("/") or self.model
        return f"{self.kind} {what}".strip()

    def fill(self, template: str, values: dict[str, str]) -> str:
        """Return a template with its placeholders filled in."""
        return _PLACEHOLDER.sub(lambda match: values[match[1]], template)

    def _require(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name):
                raise ValueError(f"expected {name}, which a source of kind {self.kind} needs")

    def _check_deliveries(self) -> None:
        placeholders = PLACEHOLDERS[self.kind]
        for name in _PLACEHOLDER.findall(self.delivery):
            if name not in placeholders:
                allowed = ", ".join(f"{{{each}}}" for each in placeholders)
                got = f"{{{name[:40]}}}"
                raise ValueError(f"expected {allowed} as the only placeholders, got {got}")
        if self.delivery:
            try:
                parse_delivery_uri(self.fill(self.delivery, placeholders))
            except HandoffError as error:
                raise ValueError(f"delivery: {error}") from error
        for each in self.deliveries:
            if not re.fullmatch(r"(s3|https|git\+https|git\+ssh)://[^/]+/(.*/)?", each):
                raise ValueError(
                    "expected deliveries to begin with a scheme and a host, and to end in /, "
                    f"got {each[:80]!r}"
                )


@dataclass(frozen=True)
class Limits:
    """How much is answered: requests a minute (with as many at once), and bytes of a body.

    Each address is limited before anything of it is read, each source and all of them after their
    signature was verified, so that nobody's forgeries use up what others are due.
    """

    per_address_per_minute: float = 60.0
    per_source_per_minute: float = 60.0
    overall_per_minute: float = 300.0
    body_bytes: int = 2 << 20

    def __post_init__(self) -> None:
        """Raise `ValueError` for numbers that make no sense."""
        rates = (
            self.per_address_per_minute, self.per_source_per_minute, self.overall_per_minute
        )  # fmt: skip
        if not all(1 <= rate <= 1e6 for rate in rates):
            raise ValueError("expected 1 to 1 000 000 requests a minute")
        if not 1024 <= self.body_bytes <= _MOST_BODY:
            raise ValueError(f"expected body_bytes from 1024 to {_MOST_BODY}")


@dataclass(frozen=True)
class Hooks:
    """The whole configuration."""

    source: tuple[Source, ...]
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Raise `ValueError` for none."""
        if not self.source:
            raise ValueError("expected at least one [[source]]")


@dataclass(frozen=True)
class SourceWithSecret:
    """A source with its secret, which is shown nowhere."""

    source: Source
    secret: str = field(repr=False)


def read_hooks(
    path: Path, read_secret: Callable[[str], str]
) -> tuple[tuple[SourceWithSecret, ...], Limits]:
    """Return the sources with their secrets, and the limits; raise `UsageProblem`.

    `read_secret` returns the value of a variable of the environment.
    """
    try:
        hooks = from_plain(Hooks, parse_toml(path.read_bytes()), path.name)
    except (OSError, RecordInvalid) as error:
        raise UsageProblem(
            f"{path} is no webhook configuration", expected="[[source]] tables, as "
            "examples/triggers/hooks.toml has them", got=str(error)[:400], remedy="Fix it",
        ) from error  # fmt: skip
    sources = [SourceWithSecret(each, _load_secret(each, read_secret)) for each in hooks.source]
    return tuple(sources), hooks.limits


def _load_secret(source: Source, read_secret: Callable[[str], str]) -> str:
    where = source.secret_env or source.secret_file
    try:
        secret = (
            read_secret(source.secret_env)
            if source.secret_env
            else Path(source.secret_file).expanduser().read_text(encoding="utf-8").strip()
        )
    except (OSError, UnicodeDecodeError):
        secret = ""
    if len(secret) < _SHORTEST_SECRET or not secret.isascii():
        raise UsageProblem(
            f"the source {source.label} has no secret", expected=f"at least {_SHORTEST_SECRET} "
            f"ASCII characters in {where}", got=f"{len(secret)} characters",
            remedy="Make one: openssl rand -hex 32",
        )  # fmt: skip
    return secret
