"""`handoff release --dry-run`: tell what a release would do, for a person or as JSON."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from handoff.artifacts.delivery.uri import redacted
from handoff.artifacts.errors import HandoffError
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.recipe.target import ArmTarget, CudaTarget, parse_target
from handoff.artifacts.record import to_plain
from handoff.infra.cli.options import is_quiet
from handoff.infra.commands.rehearsal import Rehearsal, rehearse
from handoff.infra.settings import Settings
from handoff.infra.terminal.console import print_findings, print_json, print_table, seconds, size
from handoff.infra.terminal.echoing import echo
from handoff.infra.terminal.progress import shown_progress
from handoff.infra.terminal.step_times import CACHED, KNOWN, WHOLE, StepTimes
from handoff.tasks.compile.messages import Reused
from handoff.tasks.release.jobs import names_in_order
from handoff.tasks.steps import COMPILE


def tell_dry_run(
    settings: Settings, delivery: Path, recipe: Recipe, alias: str, *, rebuild: bool, as_json: bool
) -> int:
    """Print what a release of the `delivery` would do; return its exit code so far.

    Raises what a release would raise up to its first compilation.
    """
    try:
        with shown_progress(), tempfile.TemporaryDirectory(prefix="handoff-dry-run-") as scratch:
            found = rehearse(settings, delivery, recipe, alias, Path(scratch), rebuild=rebuild)
    except HandoffError as error:
        if not as_json:
            raise
        print_json({"dry_run": True, "error": error.as_record()})
        return error.exit_code
    if as_json:
        print_json(_plain(settings, found, recipe, alias))
    else:
        _tell(settings, found, recipe, alias)
    return 0


def _plain(settings: Settings, found: Rehearsal, recipe: Recipe, alias: str) -> dict[str, Any]:
    expected = {step: found.times.expected(step) for step in _steps(found, recipe)}
    expected[WHOLE] = found.times.expected(_whole(found))
    return {
        "dry_run": True,
        "model": found.taken.contract.model.name,
        "verdict": found.judged.verdict,
        "findings": to_plain(found.judged.findings),
        "delivery": str(found.taken.digest),
        "fingerprint": str(found.fingerprint),
        "would": "build" if found.version is None else "reuse",
        "why": found.why,
        "version": found.version,
        "targets": [
            {"slug": slug, "cached": cached, "expected_s": _expected(found.times, slug, cached)}
            for slug, cached in found.targets.items()
        ],
        "steps": {step: took_s for step, took_s in expected.items() if took_s is not None},
        "store": settings.stores.objects,
        "registry": redacted(settings.stores.tracking_uri),
        "alias": alias,
        "recipe": to_plain(recipe),
    }


def _expected(times: StepTimes, slug: str, cached: Reused) -> float | None:
    step = f"compile {slug}"
    return times.expected(CACHED.format(step=step) if cached else step)


def _whole(found: Rehearsal) -> str:
    """Return the name of the times of releases that took as much from the cache as this would."""
    if not any(found.targets.values()):
        return WHOLE
    known, cached = KNOWN.format(step=WHOLE), CACHED.format(step=WHOLE)
    return cached if found.times.expected(known) is None else known


def _steps(found: Rehearsal, recipe: Recipe) -> list[str]:
    """Return the names of the steps that would run; compilations are told with their targets."""
    compiling = {f"{COMPILE.name} {slug}" for slug in found.targets}
    return [
        step for step in names_in_order(found.targets, recipe.torch.also) if step not in compiling
    ]


def _tell(settings: Settings, found: Rehearsal, recipe: Recipe, alias: str) -> None:
    taken, model = found.taken, found.taken.contract.model.name
    would = "would be built" if found.version is None else "would be found again, and not built"
    echo(f"{model}: {would}: {found.why}")
    if is_quiet():
        return
    echo(f"  delivery    {found.judged.verdict}, {taken.nodes} nodes, "
               f"{size(taken.weights_bytes)}, {taken.digest.short}")  # fmt: skip
    print_findings(found.judged.findings)
    echo(f"  fingerprint {found.fingerprint.short}")
    echo(f"  passes      {', '.join(one.name for one in recipe.passes) or 'none'}")
    stores = settings.stores
    echo(f"  registered  in {stores.objects}, as {model}@{alias}")
    echo(f"  shown       in {redacted(stores.tracking_uri)}")
    if found.targets:
        rows = [_target_row(found.times, *one) for one in found.targets.items()]
        print_table("", ("target", "package", "took before"), rows)
        _tell_times(found, recipe)
    echo("Nothing was written: that was a dry run")


def _target_row(times: StepTimes, slug: str, cached: Reused) -> tuple[str, str, str]:
    target = parse_target(slug)
    package = {"package": "in the cache", "code": "in the cache, for other weights", "": "compiled"}
    told = package[cached]
    if isinstance(target, CudaTarget) and not target.is_here:
        told += ", not verified: no such GPU here"
    if isinstance(target, ArmTarget) and target.is_emulated:
        told += ", verified under emulation"
    expected = _expected(times, slug, cached)
    return (slug, told, "-" if expected is None else seconds(expected))


def _tell_times(found: Rehearsal, recipe: Recipe) -> None:
    """Print what is known of the steps' times; nothing at the first release."""
    known = [(step, found.times.expected(step)) for step in _steps(found, recipe)]
    told = [f"{step} {seconds(took_s)}" for step, took_s in known if took_s is not None]
    if told:
        echo(f"Before, on this machine: {', '.join(told)}")
    whole = found.times.expected(_whole(found))
    if whole is not None:
        echo(f"The whole release took {seconds(whole)}")
