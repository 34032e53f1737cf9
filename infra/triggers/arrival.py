"""What has arrived: the one payload that every way to a release ends in, and its key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from handoff.artifacts.delivery.contract import require_alias_name, require_model_name
from handoff.artifacts.delivery.uri import parse_delivery_uri
from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import UsageProblem, split_expected_got

# What happens to the runs for older commits of the same model: they go first, or are cancelled.
Policy = Literal["queue", "supersede"]
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Arrival:
    """A delivery that asks to be released.

    `content` stands for what the delivery holds, where a watcher has looked: it takes the commit's
    place in the key then, so that another training of one commit is another request.
    """

    delivery: str
    model: str = ""
    repository: str = ""
    commit: str = ""
    by: str = ""
    alias: str = ""
    content: str = ""

    def __post_init__(self) -> None:
        """Raise `UsageProblem` for what the release run would refuse."""
        parse_delivery_uri(self.delivery)
        try:
            if self.model:
                require_model_name(self.model)
            if self.alias:
                require_alias_name(self.alias)
        except ValueError as error:
            raise _refuse(str(error)) from error
        if self.commit and not _COMMIT.fullmatch(self.commit):
            raise _refuse(
                f"expected a commit of 7 to 64 hexadecimal digits, got {self.commit[:80]!a}"
            )
        for name, text, limit in (("repository", self.repository, 500), ("by", self.by, 200)):
            if len(text) > limit or not text.isprintable():
                raise _refuse(f"expected a {name} of at most {limit} characters, got others")

    @property
    def key(self) -> str:
        """The idempotency key: one commit of one model is one request, however often it is sent."""
        what = self.content or self.commit or digest_bytes(self.delivery.encode()).hex
        return f"release:{self.model or '-'}:{what}"

    @property
    def tags(self) -> list[str]:
        """The tags of its run, by which people find it."""
        model = [f"model:{self.model}"] if self.model else []
        return [*model, *([f"commit:{self.commit[:12]}"] if self.commit else [])]

    @property
    def queue(self) -> str:
        """The work queue of its model; empty where the model isn't known."""
        return f"model-{self.model}" if self.model else ""

    @property
    def label(self) -> str:
        """Model and commit, as far as they are known, for messages."""
        return " ".join(filter(None, (self.model, self.commit[:12]))) or self.delivery[:80]

    def parameters(self) -> dict[str, Any]:
        """Return the run's parameters; what isn't known is left out."""
        values = {
            "model": self.model, "repository": self.repository, "commit": self.commit,
            "delivery": self.delivery, "by": self.by, "alias": self.alias,
        }  # fmt: skip
        return {"parameters": {name: value for name, value in values.items() if value}}


def _refuse(text: str) -> UsageProblem:
    expected, got = split_expected_got(text)
    return UsageProblem(
        "that can't be released", expected=expected, got=got, remedy="Fix it, and tell it again"
    )
