"""Whether a release would change nothing, found out without starting its flow.

A flow costs its server and its step processes: some ten seconds, after which it finds the same.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from handoff.artifacts.delivery.contract import IGNORED_FOLDER, read_contract
from handoff.artifacts.digest import Digest, digest_file, digest_tree
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.manifest import Manifest
from handoff.infra.commands.registry import releases_of
from handoff.infra.settings import Settings, compiler_name
from handoff.tasks.compile.fingerprint import fingerprint_release

# A store that doesn't answer is waited for by the flow, which tells that in its run, too.
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Standing:
    """A version, and the aliases that stand for it."""

    manifest: Manifest
    version: int
    aliases: tuple[str, ...]


def find_unchanged(
    settings: Settings, delivery: Path, recipe: Recipe, alias: str
) -> Standing | None:
    """Return the version that `alias` stands for if this delivery and recipe would make it again.

    None as well where anything is in doubt or lost from the store: the flow tells that better. What
    MLflow shows isn't asked for; `handoff sync` makes up for that.
    """
    try:
        model = read_contract(delivery).model.name
        releases = releases_of(settings, patience_s=_PATIENCE_S)
        head = releases.head(model)
        held = head.entry.aliases.get(alias) if head else None
        if head is None or held is None:
            return None
        manifest = releases.read(model, held).manifest
        digest = _digest(delivery)
        if digest != manifest.delivery:
            return None
        if fingerprint_release(digest, recipe, compiler_name()) != manifest.fingerprint:
            return None
        if not releases.is_whole(model, held):
            return None
        return Standing(manifest, held.version, head.entry.aliases_of(held.version))
    except (HandoffError, OSError):
        return None


def _digest(delivery: Path) -> Digest | None:
    """Return the digest that taking the folder in would give it; None where it would refuse."""
    files = {}
    for entry in os.scandir(delivery):
        if entry.name == IGNORED_FOLDER and entry.is_dir(follow_symlinks=False):
            continue
        state = entry.stat(follow_symlinks=False)
        if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
            return None
        files[entry.name] = digest_file(Path(entry.path))
    return digest_tree(files)
