"""The end of a release: what was accepted becomes the newest version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from handoff.artifacts.delivery.contract import Lineage
from handoff.artifacts.digest import Digest
from handoff.artifacts.host import HostSettings
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.release.manifest import Manifest
from handoff.flows.pages import own_page, show_released
from handoff.flows.parameters import ReleaseParameters
from handoff.flows.steps import append, catalogue, upload
from handoff.tasks.registry.append import AppendResult, Change, raise_as_not_shown
from handoff.tasks.registry.changes import ReleaseRequest
from handoff.tasks.registry.messages import CatalogueJob, LookUpResult, UploadJob
from handoff.tasks.release.processes import Processes


@dataclass(frozen=True)
class ReleaseSpec:
    """What is released: the delivery's folder on this machine, how, and where.

    `lineage` is what is known of its source beside what the delivery itself says. It was begun at
    `began`, in ISO 8601.
    """

    parameters: ReleaseParameters
    delivery: Path
    recipe: Recipe
    host: HostSettings
    lineage: Lineage
    began: str = ""


def register(processes: Processes, spec: ReleaseSpec, manifest: Manifest) -> dict[str, Any]:
    """Upload the release, sign it, append it to the ledger, and show it in MLflow."""
    folder, parameters, host = processes.jobs.release, spec.parameters, spec.host
    stores = host.stores
    uploaded = upload(
        processes.registrar(), UploadJob(manifest, folder, stores, processes.jobs.staging)
    )
    request = ReleaseRequest(
        manifest.model,
        manifest.digest,
        manifest.fingerprint,
        parameters.alias,
        rebuild=parameters.rebuild,
    )
    author = parameters.author(host.by, flow_run.id or "")
    change = Change(request, author, stores, host.key, manifest, uploaded)
    appended = append(processes.registrar(), processes.signer(), change)
    is_ours = appended.entry is not None and appended.entry.manifest == manifest.digest
    job = CatalogueJob(
        stores,
        manifest.model,
        appended.version,
        folder if is_ours else None,
        flow_run=own_page(host) if is_ours else "",
    )
    with raise_as_not_shown(manifest.model, appended):
        catalogue(processes.registrar(), job)
    show_released(host, manifest, appended.version, appended.aliases)
    result = _format_result(manifest.model, appended, reused=not is_ours)
    return {**result, "notes": uploaded.lacking}


def register_again(
    processes: Processes,
    spec: ReleaseSpec,
    model: str,
    fingerprint: Digest,
    known: LookUpResult,
) -> dict[str, Any]:
    """Make the alias point to a version that was made from the same before."""
    assert known.manifest is not None
    parameters, host = spec.parameters, spec.host
    request = ReleaseRequest(model, known.manifest, fingerprint, parameters.alias)
    author = parameters.author(host.by, flow_run.id or "")
    change = Change(request, author, host.stores, host.key)
    appended = append(processes.registrar(), processes.signer(), change)
    job = CatalogueJob(host.stores, model, appended.version)
    with raise_as_not_shown(model, appended):
        catalogue(processes.registrar(), job)
    return _format_result(model, appended, reused=True)


def _format_result(model: str, appended: AppendResult, *, reused: bool) -> dict[str, Any]:
    return {
        "model": model,
        "version": appended.version,
        "aliases": appended.aliases,
        "reused": reused,
        "replaced": appended.entry.replaced if appended.entry else None,
        "notes": (),
    }
