"""`handoff release`: start the first step, then Prefect beside it, then tell what came of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from artifacts.errors import DeliveryUnreadable, EnvironmentLacking, HandoffError, NotShownYet
from artifacts.manifest import MANIFEST_FILE, read_manifest
from artifacts.recipe import Recipe, read_recipe
from artifacts.record import to_plain
from infra.console import print_json, shown_progress
from infra.orphans import end_orphans_later
from infra.present import print_release, release_object
from infra.registry import releases_of, require_alias
from infra.settings import (
    Settings,
    author_name,
    compiler_name,
    prepare_prefect,
    read_settings,
    require_writable_home,
)
from infra.workspaces import keep_for_a_look, open_workspace
from tasks import lanes
from tasks.assemble import require_trial_alias


def release_delivery(
    delivery: Path, recipe_file: Path | None, alias: str, *, rebuild: bool, as_json: bool
) -> int:
    """Release `delivery`; print the outcome and return the exit code."""
    settings = read_settings()
    delivery = require_folder(delivery)
    recipe = read_recipe(recipe_file) if recipe_file else Recipe()
    _require_targets(recipe)
    require_alias(alias)
    require_trial_alias(recipe, alias)
    require_compiler()
    require_writable_home(settings)
    workspace = open_workspace(settings.home / "builds")
    lanes.begin(workspace, delivery, recipe, fresh=rebuild)
    try:
        with shown_progress():
            parameters = _parameters(settings, workspace, delivery, recipe)
            outcome = _run_flow(settings, {**parameters, "alias": alias, "rebuild": rebuild})
    except NotShownYet as error:
        if as_json:
            print_json({**_released(error, workspace), "error": error.as_record()})
        shutil.rmtree(workspace, ignore_errors=True)
        if as_json:
            return error.exit_code
        raise
    except HandoffError as error:
        _tell_refusal(error, workspace, as_json=as_json)
        if as_json:
            return error.exit_code
        raise
    finally:
        lanes.close_begun()
    _tell_release(settings, outcome, workspace, alias, as_json=as_json)
    return 0


def _tell_release(
    settings: Settings, outcome: dict[str, Any], workspace: Path, alias: str, *, as_json: bool
) -> None:
    """Print what was released, or found again, and remove the build's files."""
    releases = releases_of(settings)
    version, aliases = outcome["version"], tuple(outcome["aliases"])
    if outcome["reused"]:
        pointer = releases.find(outcome["model"], version)
        manifest = releases.read(outcome["model"], pointer).manifest
        told = f"nothing has changed since version {version} was released"
        click.echo(f"handoff: {told} (--rebuild builds it anew)", err=True)
        if outcome["replaced"]:
            moved = f"@{alias} stands for version {version} again, and was {outcome['replaced']}"
            click.echo(f"handoff: {moved}", err=True)
    else:
        manifest = read_manifest(workspace / "release")
    shutil.rmtree(workspace, ignore_errors=True)
    for note in outcome["notes"]:
        click.echo(f"handoff: {note}", err=True)
    if as_json:
        report = releases.report(manifest.model, version)
        print_json(release_object(manifest, version=version, aliases=aliases, report=report))
        return
    print_release(manifest, version=version, aliases=aliases)
    promoting = f"handoff promote {manifest.model}@{version} --to production"
    pulling = f"handoff pull {manifest.model}@{alias} --to FOLDER"
    click.echo(f"\nNext: {promoting}, {pulling}, or handoff ui")


def _parameters(
    settings: Settings, workspace: Path, delivery: Path, recipe: Recipe
) -> dict[str, Any]:
    return {
        "delivery": delivery,
        "workspace": workspace,
        "objects": settings.stores.objects,
        "tracking_uri": settings.stores.tracking_uri,
        "artifact_root": settings.stores.artifact_root,
        "trusted": list(settings.stores.trusted),
        "seen": settings.stores.seen,
        "signing_key": settings.signing_key.uri,
        "public_key": settings.signing_key.public,
        "make_missing_key": settings.signing_key.make_missing,
        "by": author_name(),
        "recipe": to_plain(recipe),
        "compiler": compiler_name(),
    }


def _run_flow(settings: Settings, parameters: dict[str, Any]) -> dict[str, Any]:
    prepare_prefect(settings)
    if settings.is_embedded:
        end_orphans_later()
    from flows.parameters import ReleaseParameters
    from flows.release import release

    try:
        return release(ReleaseParameters(**parameters))
    except HandoffError:
        raise
    except Exception as error:
        # What is left is Prefect's own: a server that can't be reached, or doesn't let us in.
        raise EnvironmentLacking(
            "Prefect could not run the flow",
            expected=settings.prefect_api or "an embedded server that starts",
            got=(str(error).strip().splitlines() or [type(error).__name__])[0][:300],
            remedy="Look at PREFECT_API_URL and whether that server is up, or unset it to run "
            "embedded; --debug shows the trace",
        ) from error


def _released(error: NotShownYet, workspace: Path) -> dict[str, Any]:
    """Return what was released, as JSON holds it; a version that was found again without files."""
    folder = workspace / "release"
    if not (folder / MANIFEST_FILE).exists():
        return {"model": error.model, "version": error.version, "targets": []}
    manifest = read_manifest(folder)
    return release_object(manifest, version=error.version, aliases=error.aliases, report="")


def _tell_refusal(error: HandoffError, workspace: Path, *, as_json: bool) -> None:
    """Print what was measured before the refusal, and where the build is kept."""
    folder = workspace / "release"
    manifest = read_manifest(folder) if (folder / MANIFEST_FILE).exists() else None
    if as_json:
        found: dict[str, Any] = {"model": None, "version": None, "targets": []}
        if manifest:
            found = release_object(manifest, version=None, aliases=(), report=str(folder))
        print_json({**found, "error": error.as_record(), "build": str(workspace)})
        return
    if manifest:
        print_release(manifest, version=None, aliases=())
    if workspace.exists():
        keep_for_a_look(workspace)
        click.echo(f"handoff: the build is kept in {workspace}", err=True)


def _require_targets(recipe: Recipe) -> None:
    try:
        recipe.resolved_targets()
    except ValueError as error:
        raise EnvironmentLacking(
            "this machine can't build for itself", expected="a target of Handoff's",
            got=str(error), remedy="Name targets in a recipe",
        ) from error  # fmt: skip


def require_folder(delivery: Path) -> Path:
    """Return the delivery's absolute path; raise `DeliveryUnreadable` unless it is a folder."""
    if delivery.is_dir():
        return delivery.absolute()
    raise DeliveryUnreadable(
        f"{delivery} can't be read as a delivery",
        expected="a folder that torch.fx's to_folder wrote, with its delivery.toml",
        got="a file" if delivery.exists() else "nothing of that name",
        remedy="Name the delivery's folder; 'handoff deliver' writes one",
    )


def require_compiler() -> None:
    """Raise `EnvironmentLacking` unless there is a C++ compiler, before anything is started."""
    name = compiler_name()
    if shutil.which(name) is None:
        raise EnvironmentLacking(
            "no C++ compiler was found", expected=f"{name} on the PATH", got="none",
            remedy="Install g++ (Debian: apt-get install g++), or set CXX to a compiler",
        )  # fmt: skip
