"""What changes a model's ledger without a release: promote (once raced), roll back, retire.

Two processes do it: one that reaches the stores, and one that alone reads the signing key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from handoff.artifacts.delivery.contract import EXAMPLES_FILE
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.host import HostSettings, Stores
from handoff.artifacts.recipe.compatibility import installed_torch
from handoff.artifacts.release.comparison import SideBySide
from handoff.artifacts.release.manifest import Manifest
from handoff.artifacts.release.releases import open_releases
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.engine.workspaces import scratch_workspace
from handoff.tasks.registry.append import AppendResult, Change, append, raise_as_not_shown
from handoff.tasks.registry.changes import Author, PromoteRequest, Request
from handoff.tasks.registry.draft import require_intended_alias
from handoff.tasks.registry.messages import CatalogueJob, KeyJob, PullJob
from handoff.tasks.registry.pull import run as pull
from handoff.tasks.timing.messages import SideBySideJob

SIGNER = ProcessPlan("sign", preload=("registry.sign",), sees="keys")
_REGISTRAR = ProcessPlan("register", preload=("registry.draft",), sees="stores")

# Compiled code runs there: no store's credentials, no key.
_RUNNER = ProcessPlan("side-by-side", preload=("timing.race",))


@dataclass(frozen=True)
class Promotion:
    """A promotion that is asked for: which version, and what `alias` has to stand for now.

    `expected` is a version, 0 for none; None asks for nothing. With `override` the rules that are
    broken are recorded with the author's reason instead. A version that takes less than what it
    replaces has to be meant to be `narrower`, and an alias that is like one there is, but isn't
    there, to be a `new_alias`.
    """

    model: str
    reference: str | int | None
    alias: str
    override: bool = False
    expected: int | None = None
    narrower: bool = False
    new_alias: bool = False


def promote(host: HostSettings, promotion: Promotion, author: Author) -> AppendResult:
    """Make an alias point to a version, where the rules of a promotion let it.

    It is timed beside the one that it replaces where both run here. Raises `BlessingRefused` for
    a broken rule, `RegistryFailed` where another was quicker, and `UsageProblem` for an alias that
    isn't there and looks like a slip of the pen.
    """
    if promotion.override and not author.reason:
        raise UsageProblem(
            "an override needs a reason", expected="--reason TEXT", got="none",
            remedy="Say why the rules are set aside: the ledger keeps it",
        )  # fmt: skip
    model, alias = promotion.model, promotion.alias
    stores = host.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    if not promotion.new_alias:
        known = releases.require_head(model).entry.aliases
        require_intended_alias(model, alias, known, "Else add --new-alias (new_alias=True)")
    measured, served = race_with_served(stores, model, promotion.reference, alias)
    # What was measured, and what the caller has seen, is about this one.
    expected = (served or 0) if promotion.expected is None else promotion.expected
    request = PromoteRequest(
        model, promotion.reference, alias, promotion.override, measured, promotion.narrower
    )
    return change_ledger(host, request, author, expected)


def change_ledger(
    host: HostSettings, request: Request, author: Author, expected: int | None = None
) -> AppendResult:
    """Append what is asked for to the ledger, then show it in MLflow and in the store's copies."""
    with (
        open_registrar(host) as (registrar, scratch),
        closing(StepProcess(SIGNER, scratch / "sign.log")) as signer,
    ):
        signer.run(KeyJob(host.key, host.stores.trusted))
        change = Change(
            request, author, host.stores, host.key,
            expected=expected or None, is_conditional=expected is not None,
        )  # fmt: skip
        appended = append(registrar, signer, change)
        job = CatalogueJob(host.stores, request.model)
        with raise_as_not_shown(request.model, appended):
            registrar.run(job)
    return appended


@contextmanager
def open_registrar(host: HostSettings) -> Iterator[tuple[StepProcess, Path]]:
    """Give the process that reaches the stores, and the folder of its files."""
    with scratch_workspace(host.builds) as scratch:
        # What it fetches and writes for MLflow goes with the folder, also when it is killed.
        plan = replace(_REGISTRAR, environment={"TMPDIR": str(scratch)})
        with closing(StepProcess(plan, scratch / "register.log")) as registrar:
            yield registrar, scratch


def race_with_served(
    stores: Stores, model: str, reference: str | int | None, alias: str
) -> tuple[tuple[SideBySide, ...], int | None]:
    """Return how the version compares with the one that `alias` stands for, and which that is.

    Nothing is timed where there is none, where it takes other inputs, and where no target of both
    is a CPU's that runs here with this torch.
    """
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    current = releases.require_head(model).entry.aliases.get(alias)
    pointer = releases.find(model, reference)
    if current is None or current.version == pointer.version:
        return (), current.version if current else None
    before, after = (releases.read(model, one) for one in (current, pointer))
    target = _choose_race_target(before.manifest, after.manifest)
    if target is None or EXAMPLES_FILE not in after.claim.files:
        return (), current.version
    with tempfile.TemporaryDirectory(prefix="handoff-side-by-side-") as scratch:
        folders = []
        for version in (current.version, pointer.version):
            folders.append(Path(scratch) / str(version))
            pull(PullJob(model, version, folders[-1], target, stores, None))
        # What it verifies them with; a key service's are no files.
        trusted = (Path(place) for place in stores.trusted if ":" not in place)
        runner = replace(_RUNNER, reads=(*folders, *trusted))
        with closing(StepProcess(runner, Path(scratch) / "side-by-side.log")) as process:
            job = SideBySideJob(tuple(folders), target, stores.trusted)
            return (process.run(job),), current.version


def _choose_race_target(before: Manifest, after: Manifest) -> str | None:
    """Return the best CPU target that both have and that fits this machine; None without one."""
    if before.signature.inputs != after.signature.inputs:
        return None
    torch = installed_torch()
    fitting = [
        {
            target.slug: len(target.fit.cpu_flags)
            for target in manifest.targets
            if target.accepted
            and target.fit is not None
            and not target.fit.gpu_capability
            and target.fit.misfit(torch) is None
        }
        for manifest in (before, after)
    ]
    both = set(fitting[0]) & set(fitting[1]) if torch else set()
    return max(both, key=lambda slug: fitting[1][slug], default=None)
