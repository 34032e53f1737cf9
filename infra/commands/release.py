"""`handoff release`: run the flow, with Prefect beside it, and print what came of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from handoff.artifacts.delivery.contract import CONTRACT_FILE, MODULE_FILE, read_contract
from handoff.artifacts.errors import (
    DeliveryUnreadable,
    EnvironmentLacking,
    HandoffError,
    NotShownYet,
)
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.layout import REPORT_FILE
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, read_manifest
from handoff.infra.cli.group import is_quiet
from handoff.infra.commands.dry_run import ReleasedVersion, find_unchanged
from handoff.infra.commands.registry import releases_of, require_alias
from handoff.infra.engine.child import begin_servers
from handoff.infra.engine.workspaces import keep_workspace, open_workspace, remove_workspace
from handoff.infra.home import absolute_path
from handoff.infra.prefect.flow_calls import call_flow
from handoff.infra.settings import Settings, compiler_name, read_settings, require_writable_home
from handoff.infra.terminal.console import print_json
from handoff.infra.terminal.output import echo
from handoff.infra.terminal.progress import shown_progress
from handoff.infra.terminal.release_view import print_release, release_object
from handoff.infra.terminal.step_times import (
    StepTimes,
    keep_times,
    label_times,
    read_times,
    record_times,
    times_folder,
)
from handoff.tasks.optimize.recipe_names import require_known_names, try_read_contract
from handoff.tasks.registry.assemble import require_trial_alias


def release_delivery(
    delivery: Path,
    recipe_file: Path | None,
    alias: str,
    *,
    rebuild: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Release `delivery`, or only print what that would do; return the exit code."""
    settings = read_settings()
    delivery = require_folder(delivery)
    recipe = read_recipe(recipe_file) if recipe_file else Recipe()
    _require_releasable(recipe, alias)
    require_known_names(recipe, try_read_contract(delivery), recipe_file)
    if dry_run:
        from handoff.infra.commands.dry_run import print_dry_run

        return print_dry_run(settings, delivery, recipe, alias, rebuild=rebuild, as_json=as_json)
    return _release(settings, delivery, recipe, alias, rebuild=rebuild, as_json=as_json)


def _release(
    settings: Settings, delivery: Path, recipe: Recipe, alias: str, *, rebuild: bool, as_json: bool
) -> int:
    unchanged = None if rebuild else find_unchanged(settings, delivery, recipe, alias)
    if unchanged is not None:
        _note_unchanged(unchanged.version)
        _print_released(settings, unchanged, alias, as_json=as_json)
        return 0
    workspace = open_build(settings, recipe, alias)
    try:
        with record_times() as times, shown_progress(_read_earlier_times(settings, delivery)):
            outcome = run_release(settings, workspace, delivery, recipe, alias, rebuild=rebuild)
    except NotShownYet as error:
        if as_json:
            print_json({**_released_object(error, workspace), "error": error.as_record()})
        remove_workspace(workspace)
        if as_json:
            return error.exit_code
        raise
    except HandoffError as error:
        _print_refusal(error, workspace, as_json=as_json)
        if as_json:
            return error.exit_code
        raise
    if not outcome["reused"]:
        manifest = read_manifest(workspace / "release")
        keep_times(times_folder(settings), manifest.model, label_times(manifest, times))
    _print_outcome(settings, outcome, workspace, alias, as_json=as_json)
    return 0


def _require_releasable(recipe: Recipe, alias: str) -> None:
    """Raise for what no release can be made with, before anything is started."""
    _require_targets(recipe)
    require_alias(alias)
    require_trial_alias(recipe, alias)
    require_compiler()


def _read_earlier_times(settings: Settings, delivery: Path) -> StepTimes:
    """Return the times of the delivered model's steps, nothing where its name can't be read yet."""
    try:
        return read_times(times_folder(settings), read_contract(delivery).model.name)
    except HandoffError:  # the first step says what is wrong with it
        return StepTimes({})


def open_build(settings: Settings, recipe: Recipe, alias: str) -> Path:
    """Return the folder of a new build.

    Raises `UsageProblem` or `EnvironmentLacking` for what no release can be made with.
    """
    _require_releasable(recipe, alias)
    require_writable_home(settings)
    return open_workspace(settings.home / "builds")


def run_release(
    settings: Settings,
    workspace: Path,
    delivery: Path,
    recipe: Recipe,
    alias: str,
    *,
    rebuild: bool,
) -> dict[str, Any]:
    """Run the flow of a release in the folder `workspace`; return what it returns."""
    parameters = {
        "delivery": str(delivery), "recipe": to_plain(recipe), "alias": alias, "rebuild": rebuild,
    }  # fmt: skip

    def load() -> Callable[[], dict[str, Any]]:
        from handoff.flows.parameters import ReleaseParameters
        from handoff.flows.release import release

        # While Prefect's server goes on importing, and this process only waits for it.
        begin_servers()
        return lambda: release(ReleaseParameters(**parameters))

    return call_flow(settings, workspace, load)


def read_outcome(settings: Settings, outcome: dict[str, Any], workspace: Path) -> Manifest:
    """Return the record of what was released, or found again, and remove the build's files."""
    if outcome["reused"]:
        releases = releases_of(settings)
        pointer = releases.find(outcome["model"], outcome["version"])
        manifest = releases.read(outcome["model"], pointer).manifest
    else:
        manifest = read_manifest(workspace / "release")
    remove_workspace(workspace)
    return manifest


def _print_outcome(
    settings: Settings, outcome: dict[str, Any], workspace: Path, alias: str, *, as_json: bool
) -> None:
    """Print what the flow released, or found again, and remove the build's files."""
    version, aliases = outcome["version"], tuple(outcome["aliases"])
    released = ReleasedVersion(read_outcome(settings, outcome, workspace), version, aliases)
    if outcome["reused"]:
        _note_unchanged(version)
        if outcome["replaced"]:
            _note(f"@{alias} points to version {version} again (was {outcome['replaced']})")
    for note in outcome["notes"]:
        _note(note)
    _print_released(settings, released, alias, as_json=as_json)


def _note_unchanged(version: int) -> None:
    _note(f"nothing has changed since version {version} was released (--rebuild builds it again)")


def _print_released(
    settings: Settings, released: ReleasedVersion, alias: str, *, as_json: bool
) -> None:
    manifest, version, aliases = released.manifest, released.version, released.aliases
    report = releases_of(settings).report(manifest.model, version)
    if as_json:
        print_json(release_object(manifest, version=version, aliases=aliases, report=report))
        return
    if is_quiet():
        echo(f"{manifest.model}@{version}")
        return
    print_release(manifest, version=version, aliases=aliases, report=report)
    promoting = f"handoff promote {manifest.model}@{version} --to production, "
    if any(target.unverified for target in manifest.targets):
        # What nobody has run yet gets no other alias.
        promoting = ""
    pulling = f"handoff pull {manifest.model}@{alias} --to FOLDER"
    echo(f"\nNext: {promoting}{pulling}, or handoff ui")


def _note(text: str) -> None:
    """Print what is no part of the result, unless only that is wanted."""
    if not is_quiet():
        echo(f"handoff: {text}", err=True)


def _released_object(error: NotShownYet, workspace: Path) -> dict[str, Any]:
    """Return what was released, as JSON holds it; a version that was found again without files."""
    folder = workspace / "release"
    if not (folder / MANIFEST_FILE).exists():
        return {"model": error.model, "version": error.version, "targets": []}
    manifest = read_manifest(folder)
    return release_object(manifest, version=error.version, aliases=error.aliases, report="")


def _print_refusal(error: HandoffError, workspace: Path, *, as_json: bool) -> None:
    """Print what was measured before the refusal, and where the build is kept."""
    folder = workspace / "release"
    manifest = read_manifest(folder) if (folder / MANIFEST_FILE).exists() else None
    if as_json:
        record: dict[str, Any] = {"model": None, "version": None, "targets": []}
        if manifest:
            record = release_object(manifest, version=None, aliases=(), report=_report_of(folder))
        print_json({**record, "error": error.as_record(), "build": str(workspace)})
        return
    if manifest and not is_quiet():
        print_release(manifest, version=None, aliases=())
        if report := _report_of(folder):
            _note(f"the report is {report}")
    if workspace.exists():
        keep_workspace(workspace)
        _note(f"the build is kept in {workspace} (the newest four are)")


def _report_of(folder: Path) -> str:
    """Return the path of a refused release's report; '' where none was written."""
    report = folder / REPORT_FILE
    return str(report) if report.exists() else ""


def _require_targets(recipe: Recipe) -> None:
    try:
        recipe.resolved_targets()
    except ValueError as error:
        raise EnvironmentLacking(
            "this machine can't build for itself", expected="a target of Handoff's",
            got=str(error), remedy="Name targets in a recipe",
        ) from error  # fmt: skip


def require_folder(delivery: Path) -> Path:
    """Return the delivery's whole path; raise `DeliveryUnreadable` unless it is a folder."""
    if delivery.is_dir():
        if any((delivery / name).exists() for name in (MODULE_FILE, CONTRACT_FILE)):
            return absolute_path(delivery)
        got = f"a folder without {MODULE_FILE} and {CONTRACT_FILE}"
    else:
        got = "a file" if delivery.exists() else f"nothing of that name in {Path.cwd()}"
    raise DeliveryUnreadable(
        f"{delivery} can't be read as a delivery",
        expected="a folder that torch.fx's to_folder wrote, with its delivery.toml",
        got=got,
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
