"""What changes a model's ledger without a release: promote, roll back, retire.

Two processes do it: one that reaches the stores, and one that alone reads the signing key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.messages.changes import Author, PromoteRequest, Request
from handoff.artifacts.messages.registering import CatalogueJob, KeyJob
from handoff.artifacts.site import Site
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.engine.workspaces import scratch_workspace
from handoff.tasks.registry.appending import Appended, Change, append, told_as_done
from handoff.tasks.registry.racing import race_with_served

SIGNER = ProcessPlan("sign", preload=("registry.sign",), sees="keys")
_REGISTRAR = ProcessPlan("register", preload=("registry.draft",), sees="stores")


@dataclass(frozen=True)
class Promotion:
    """A promotion that is asked for: which version, and what `alias` has to stand for now.

    `expected` is a version, 0 for none; None asks for nothing. With `override` the rules that are
    broken are recorded with the author's reason instead. A version that takes less than what it
    replaces has to be meant to be `narrower`.
    """

    model: str
    reference: str | int | None
    alias: str
    override: bool = False
    expected: int | None = None
    narrower: bool = False


def promote(site: Site, wanted: Promotion, author: Author) -> Appended:
    """Make an alias stand for a version, where the rules of a promotion let it.

    It is timed beside the one that it replaces where both run here. Raises `BlessingRefused` for
    a broken rule, `RegistryFailed` where another was quicker.
    """
    if wanted.override and not author.reason:
        raise UsageProblem(
            "an override needs a reason", expected="--reason TEXT", got="none",
            remedy="Say why the rules are set aside: the ledger keeps it",
        )  # fmt: skip
    model, alias = wanted.model, wanted.alias
    measured, served = race_with_served(site.stores, model, wanted.reference, alias)
    # What was measured, and what the caller has seen, is about this one.
    expected = (served or 0) if wanted.expected is None else wanted.expected
    request = PromoteRequest(
        model, wanted.reference, alias, wanted.override, measured, wanted.narrower
    )
    return change_ledger(site, request, author, expected)


def change_ledger(
    site: Site, request: Request, author: Author, expected: int | None = None
) -> Appended:
    """Append what is asked for to the ledger, then show it in MLflow and in the store's copies."""
    with (
        opened_registrar(site) as (registrar, scratch),
        closing(StepProcess(SIGNER, scratch / "sign.log")) as signer,
    ):
        signer.run(KeyJob(site.key, site.stores.trusted))
        change = Change(
            request, author, site.stores, site.key,
            expected=expected or None, is_conditional=expected is not None,
        )  # fmt: skip
        appended = append(registrar, signer, change)
        job = CatalogueJob(site.stores, request.model)
        with told_as_done(request.model, appended):
            registrar.run(job)
    return appended


@contextmanager
def opened_registrar(site: Site) -> Iterator[tuple[StepProcess, Path]]:
    """Give the process that reaches the stores, and the folder of its files."""
    with scratch_workspace(site.builds) as scratch:
        # What it fetches and writes for MLflow goes with the folder, also when it is killed.
        plan = replace(_REGISTRAR, environment={"TMPDIR": str(scratch)})
        with closing(StepProcess(plan, scratch / "register.log")) as registrar:
            yield registrar, scratch
