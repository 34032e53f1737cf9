"""What `import handoff` gives beside the loader: the commands as functions. It imports no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.delivery.metric import Metric
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.recipe.compatibility import installed_torch
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.evidence import Finding
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.signing import Trust, read_trust
from handoff.infra.extras import naming_extras
from handoff.infra.home import absolute_path
from handoff.tasks.deliver.messages import Arguments, DeliverResult
from handoff.tasks.registry.messages import Layout, PullJob, PullResult

if TYPE_CHECKING:
    import torch
    from torch import nn

    from handoff.artifacts.serve.loader import FileName, Keys, Layouts
    from handoff.tasks.follow.following import FollowedModel
    from handoff.tasks.follow.serving import Serving


@dataclass(frozen=True)
class Inspection:
    """The verdict on a delivery: `sound`, `sound within limits` or `unsound`, and what led to it.

    Each finding has a code, a severity, a message, a remedy, and the line that it is about.
    """

    model: str
    verdict: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Released:
    """A version in the registry: its number, its aliases and its record, which the signature is of.

    `reused` says that nothing had changed since it was released before.
    """

    model: str
    version: int
    aliases: tuple[str, ...]
    reused: bool
    manifest: Manifest


@naming_extras()
def deliver(
    module: nn.Module,
    example_inputs: Sequence[Any],
    folder: str | Path,
    *,
    name: str,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    dimensions: Mapping[str, tuple[int, int]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    batch_invariant: bool = True,
    lineage: Lineage | None = None,
    calibration: Iterable[Arguments] = (),
    evaluation: Iterable[tuple[Arguments, torch.Tensor | None]] = (),
    metric: str | Metric | None = None,
) -> DeliverResult:
    """Write a delivery of `module` to the new folder `folder`; return its contract and notes.

    `example_inputs` and `example_kwargs` are what forward is called with. `dynamic` names each
    input's dynamic axes (`{"x": {0: "batch"}}`; by default axis 0), `dimensions` their smallest and
    largest sizes (1 to 1024), `ranges` what inputs may hold: without it that is read off what the
    model does with them, and a note tells of each that is only the example's. `lineage` says where
    the model comes from; without it the git checkout is asked in which the process runs.
    `calibration` are batches of what is served, each what forward is called with (a tuple, or a
    dictionary of arguments by name), by which int8 chooses its ranges. `evaluation` are samples,
    each what forward is called with and the labels of its rows (None for a metric that compares
    with the model itself), `metric` what is computed of them: what a package in lower precision
    loses of it may be agreed on in place of a tolerance.
    `module` is left as it was.

    Raises `UsageProblem` for wrong arguments, `DeliveryUnreadable` for a model that can't be
    captured, and `DeliveryUnsound` for one whose capture computes something else.
    """
    from handoff.tasks.deliver.step import deliver as write_delivery
    from handoff.tasks.deliver.step import lineage_from_git

    source = lineage or lineage_from_git(Path.cwd())
    created = source.created or datetime.now(UTC).isoformat(timespec="seconds")
    return write_delivery(
        module, example_inputs, absolute_path(Path(folder)), name=name,
        example_kwargs=example_kwargs, dynamic=dynamic, dimensions=dimensions, ranges=ranges,
        batch_invariant=batch_invariant, lineage=replace(source, created=created),
        calibration=calibration, evaluation=evaluation, metric=metric,
    )  # fmt: skip


@naming_extras()
def inspect(delivery: str | Path, *, recipe: Recipe | None = None) -> Inspection:
    """Judge a delivery, in a process of its own; an unsound one is a verdict, not an error.

    `recipe` brings extensions and the lineage that is required. Raises `DeliveryUnreadable` for a
    folder that is none.
    """
    from handoff.infra.commands.inspection import judge_delivery
    from handoff.infra.commands.release import require_folder

    with tempfile.TemporaryDirectory(prefix="handoff-inspect-") as scratch:
        staging = Path(scratch) / "staging"
        intake, traceability = judge_delivery(
            require_folder(Path(delivery)), staging, recipe or Recipe()
        )
    return Inspection(intake.contract.model.name, traceability.verdict, traceability.findings)


@naming_extras()
def release(
    delivery: str | Path,
    *,
    recipe: Recipe | str | Path | None = None,
    alias: str = "candidate",
    rebuild: bool = False,
) -> Released:
    """Compile, verify, sign and register a delivery, and let `alias` stand for the new version.

    `recipe` is one, or a file that holds one. A delivery that nothing has changed about since it
    was released is found again, unless `rebuild` is set. Raises `DeliveryUnreadable`,
    `DeliveryUnsound`, `BlessingRefused`, `StoreFailed` or
    `RegistryFailed`; nothing is released then, but for `NotShownYet`, which says that it is.
    """
    from handoff.infra.commands.dry_run import find_unchanged
    from handoff.infra.commands.release import (
        open_build,
        read_outcome,
        require_folder,
        run_release,
    )
    from handoff.infra.settings import read_settings

    settings, folder = read_settings(), require_folder(Path(delivery))
    chosen_recipe = (
        read_recipe(Path(recipe)) if isinstance(recipe, (str, Path)) else recipe or Recipe()
    )
    unchanged = None if rebuild else find_unchanged(settings, folder, chosen_recipe, alias)
    if unchanged is not None:
        manifest = unchanged.manifest
        return Released(manifest.model, unchanged.version, unchanged.aliases, True, manifest)
    workspace = open_build(settings, chosen_recipe, alias)
    outcome = run_release(settings, workspace, folder, chosen_recipe, alias, rebuild=rebuild)
    manifest = read_outcome(settings, outcome, workspace)
    return Released(
        outcome["model"], outcome["version"], tuple(outcome["aliases"]), outcome["reused"], manifest
    )


@naming_extras()
def promote(
    reference: str, to: str = "production", *, reason: str = "", narrower: bool = False,
    new_alias: bool = False,
) -> int:  # fmt: skip
    """Let the alias `to` stand for `NAME@VERSION` or `NAME@ALIAS`; return the version's number.

    It has to have passed both gates, and to be no slower, no less accurate and for no fewer targets
    than what it replaces, and to take every request that this takes, unless it is meant to be
    `narrower`. An alias that isn't there yet is created; one that is like another (`prod` beside
    `production`) only as a `new_alias`. Raises `PromotionRefused` for a version that isn't as it
    has to be, `RegistryFailed` where another promotion was quicker, and `UsageProblem` for an alias
    that may be a mistake.
    """
    from handoff.infra.commands.registry import parse_version, require_alias
    from handoff.infra.settings import (
        author_name,
        read_host_settings,
        read_settings,
        require_writable_home,
    )
    from handoff.tasks.registry.changes import Author
    from handoff.tasks.registry.transitions import Promotion
    from handoff.tasks.registry.transitions import promote as promote_version

    name, version = parse_version(reference)
    require_alias(to)
    settings = read_settings()
    require_writable_home(settings)
    promotion = Promotion(name, version, to, narrower=narrower, new_alias=new_alias)
    author = Author(author_name(), reason.strip())
    return promote_version(read_host_settings(settings), promotion, author).version


@naming_extras()
def pull(
    reference: str, folder: str | Path, *, target: str = "auto", layout: Layout = "release"
) -> PullResult:
    """Fetch `NAME@ALIAS` or `NAME@VERSION` into the new folder `folder`, verified.

    Of a name alone it is the version in production, else the newest; `chosen` of the result says
    which, and why.

    `target` is a slug, or `auto` for the one that fits this machine. With the layout `triton`,
    `folder` is a model repository of Triton Inference Server. Only the store is asked. Raises
    `PackageRefused` for what isn't as it was signed or doesn't fit, `StoreFailed` and
    `RegistryFailed`.
    """
    from handoff.infra.commands.registry import parse_reference
    from handoff.infra.settings import read_settings
    from handoff.tasks.registry.pull import run

    name, selector = parse_reference(reference)
    stores = read_settings().stores
    destination = absolute_path(Path(folder))
    return run(PullJob(name, selector, destination, target, stores, installed_torch(), layout))


@naming_extras()
def follow(
    reference: str,
    *,
    keys: Keys | None = None,
    target: str = "auto",
    file: FileName | None = None,
    runners: int = 1,
    check_values: bool = True,
    layouts: Layouts = "refuse",
    every_s: float = 30.0,
    jitter: float = 0.2,
    narrower: bool = False,
    folder: str | Path | None = None,
    on_change: Callable[[Serving], object] | None = None,
) -> FollowedModel:
    """Pull and load what `NAME@ALIAS` stands for, and go along with promotions and rollbacks.

    The store is asked every `every_s` seconds, give or take the share `jitter` of them, so that
    many processes don't ask at once: with one request where nothing has changed. A version that the
    alias points to then is pulled beside the one that is served, verified, opened and called on
    its examples in a confined process, opened here, called on them once more, and takes over in one
    step; calls that have begun end on the one before, which is closed behind them. Where anything
    fails, the one before is served on, and `serves` says why: a store that is away, a package that
    is refused, crashes or gives other outputs than the original model, a disk that is full. So does
    a version that takes less than the one before, unless `narrower` is set.

    `keys` are as in `load`, by default those that this machine trusts; so are `target`, `file`,
    `runners`, `check_values` and `layouts`. What is pulled lies below `folder`, by default that for
    temporary files, until it is opened. `on_change` is called with what is served, by the thread
    that follows, whenever that or what is wrong changes.

    Raises as `pull` and `load` do where nothing can be opened at the start, and `UsageProblem` for
    a version in place of an alias. Call it in each serving process, after that was forked.
    """
    from handoff.artifacts.serve.loader import trust_in
    from handoff.infra.commands.registry import parse_alias
    from handoff.infra.settings import read_settings
    from handoff.tasks.follow.following import FollowedModel
    from handoff.tasks.follow.serving import Alias, FollowOptions

    name, alias = parse_alias(reference)
    if not (every_s > 0.0 and 0.0 <= jitter <= 1.0):
        raise UsageProblem(
            "an alias can't be followed like this", expected="every_s above 0, jitter from 0 to 1",
            got=f"every_s={every_s:g}, jitter={jitter:g}", remedy="Fix these",
        )  # fmt: skip
    stores = read_settings().stores
    trust = trusted_keys() if keys is None else trust_in(keys)
    options = FollowOptions(
        target, file, runners, check_values, layouts, every_s, jitter, narrower,
        absolute_path(Path(folder)) if folder else None, on_change,
    )  # fmt: skip
    return FollowedModel(Alias(stores, trust, name, alias), trust, options)


@naming_extras()
def trusted_keys() -> Trust:
    """Return the public keys that this machine trusts, for `load`.

    They are `HANDOFF_TRUSTED_KEYS`, else those in the home folder; the key that signs here is one.
    Raises `UsageProblem` where there is none.
    """
    from handoff.infra.settings import read_settings

    return read_trust(read_settings().stores.trusted)
