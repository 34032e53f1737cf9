"""The commands that repeat a release."""

from __future__ import annotations

from handoff.artifacts.release.manifest import Manifest


def repeating_commands(manifest: Manifest) -> str:
    """Return the commands that repeat a release, one a line, what they do beside them."""
    version = f"{manifest.model}@VERSION"
    told = (
        (f"handoff pull {version} --to release", "the packages, verified"),
        (f"handoff pull {version} --delivery --to delivery", "what they were made from"),
        ("handoff verify release --delivery delivery", "every comparison above, again"),
        ("handoff inspect delivery --captures", "the findings, and what captures it"),
        ("handoff release delivery --recipe recipe.toml --rebuild", "all of it"),
        (f"handoff show {version} --json", "this record"),
    )
    width = max(len(command) for command, _ in told)
    return "\n".join(f"{command:{width}}  # {does}" for command, does in told)
