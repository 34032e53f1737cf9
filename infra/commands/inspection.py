"""What `handoff inspect`, `handoff passes`, `handoff verify` and `handoff verify-torch` do."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from handoff.artifacts.delivery.captures import COLUMNS, CaptureRow, recommend
from handoff.artifacts.errors import BlessingRefused, UsageProblem, parse_message
from handoff.artifacts.printable import one_line
from handoff.artifacts.recipe.choices import DEFAULT_PASSES
from handoff.artifacts.recipe.compatibility import installed_torch
from handoff.artifacts.recipe.reading import read_recipe
from handoff.artifacts.recipe.recipe import OtherTorch, Recipe
from handoff.artifacts.record import to_plain
from handoff.artifacts.release.interval import size
from handoff.infra.cli.group import is_quiet
from handoff.infra.commands.release import require_folder
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.explaining.explain import hint_for
from handoff.infra.settings import read_host_settings, read_settings, require_writable_home
from handoff.infra.terminal.console import print_findings, print_json, print_table
from handoff.infra.terminal.output import echo
from handoff.tasks.captures.rows import fill_rows
from handoff.tasks.inspect.messages import TraceabilityJob, TraceabilityResult
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.optimize.recipe_names import require_known_names, try_read_contract


def inspect_delivery(delivery: Path, recipe: Path | None, *, captures: bool, as_json: bool) -> int:
    """Print the verdict on a delivery; return 2 for an unsound one, else 0."""
    delivery = require_folder(delivery)
    parsed = read_recipe(recipe) if recipe else Recipe()
    require_known_names(parsed, try_read_contract(delivery), recipe)
    with tempfile.TemporaryDirectory(prefix="handoff-inspect-") as scratch:
        staging = Path(scratch) / "staging"
        intake, traceability = judge_delivery(delivery, staging, parsed)
        rows = fill_rows(staging, parsed.extensions, Path(scratch)) if captures else ()
    if as_json:
        print_json(_inspection_object(intake, traceability, rows))
    else:
        model, weights = intake.contract.model.name, size(intake.weights_bytes)
        echo(f"{model}: {traceability.verdict} ({intake.nodes} nodes, {weights})")
        if not is_quiet():
            _print_inspection(intake, traceability, rows)
    return 2 if traceability.verdict == "unsound" else 0


def judge_delivery(
    delivery: Path, staging: Path, recipe: Recipe
) -> tuple[IntakeResult, TraceabilityResult]:
    """Take a delivery in to the new folder `staging` and judge it, in a process of its own."""
    plan = ProcessPlan(
        "inspect", extensions=recipe.extensions, reads=(delivery,), writes=(staging.parent,)
    )
    with (
        tempfile.TemporaryDirectory(prefix="handoff-log-") as logs,
        closing(StepProcess(plan, Path(logs) / "inspect.log")) as process,
    ):
        intake = process.run(IntakeJob(delivery, staging))
        return intake, process.run(TraceabilityJob(staging, recipe.required_lineage, exports=True))


def _print_inspection(
    intake: IntakeResult, traceability: TraceabilityResult, rows: tuple[CaptureRow, ...]
) -> None:
    echo(f"  {_format_lineage(intake)}")
    print_findings(traceability.findings)
    if rows:
        print_captures(rows)
    if hint := hint_for(traceability.findings):
        echo(f"  more: {hint}")


def _format_lineage(intake: IntakeResult) -> str:
    """Return who delivered what from where, as far as the delivery says it."""
    source = intake.contract.source
    fields = {
        "delivery": intake.digest.short,
        "repository": source.repository,
        "commit": source.short_commit(),
        "training run": source.training_run,
        "author": source.author,
        "created": source.created,
    }
    return one_line(", ".join(f"{label} {value}" for label, value in fields.items() if value))


def _inspection_object(
    intake: IntakeResult, traceability: TraceabilityResult, rows: tuple[CaptureRow, ...]
) -> dict[str, object]:
    plain = {
        "model": intake.contract.model.name,
        "verdict": traceability.verdict,
        "findings": to_plain(traceability.findings),
        "delivery": str(intake.digest),
        "contract": to_plain(intake.contract),
    }
    if rows:
        plain["captures"] = {"rows": to_plain(rows), "recommendation": recommend(rows)}
    return plain


def list_passes(*, as_json: bool) -> None:
    """Print every pass with its level, what it does and its parameters."""
    # Passes are torch's business: this is the one command that imports it into its own process.
    from handoff.tasks.optimize.passes import PASSES

    default = [choice.name for choice in DEFAULT_PASSES]
    descriptions = [
        {
            "name": name,
            "level": pass_class.level,
            "default": name in default,
            "does": (pass_class.__doc__ or "").partition("\n")[0].rstrip("."),
            "parameters": dict(pass_class.parameters),
        }
        for name, pass_class in PASSES.items()
    ]
    if as_json:
        print_json({"passes": descriptions})
        return
    columns = ("pass", "level", "by default", "what it does")
    rows = [
        (each["name"], each["level"], "yes" if each["default"] else "no", each["does"])
        for each in descriptions
    ]
    print_table("", columns, [tuple(map(str, row)) for row in rows])
    for name, pass_class in PASSES.items():
        for parameter, meaning in pass_class.parameters.items():
            echo(f"{name}: {parameter} is {meaning}")


def verify_folder(folder: Path, delivery: Path | None, *, as_json: bool) -> None:
    """Check a pulled folder; raise `PackageRefused` when it isn't what it says or doesn't fit.

    With the `delivery` that it was made from, its numbers are compared again, too.
    """
    from handoff.artifacts.release.package import check_release
    from handoff.artifacts.release.signing import read_trust

    trust = read_trust(read_settings().stores.trusted, may_lack=True)
    checked = check_release(folder, installed_torch(), trust, unverified=delivery is not None)
    manifest, repeated = checked.manifest, []
    if delivery is not None:
        from handoff.tasks.registry.reverification import repeat_comparison

        repeated = [repeat_comparison(folder, manifest, slug, delivery) for slug in checked.targets]
    if as_json:
        version = checked.claim.version
        result = {"ok": True, "model": manifest.model, "version": version,
                "targets": list(checked.targets)}  # fmt: skip
        print_json({**result, "repeated": repeated})
        return
    targets = ", ".join(checked.targets)
    echo(
        f"{manifest.model} version {checked.claim.version}: {targets}: signed by a key that is "
        "trusted, nothing was changed, and this machine can run it"
    )
    for line in repeated:
        echo(f"  {line}")


def verify_torches(reference: str, versions: tuple[str, ...], target: str, *, as_json: bool) -> int:
    """Compare a released package in other versions of torch; return 4 if it isn't right in one."""
    from handoff.infra.commands.registry import parse_reference, releases_of, resolve_pointer
    from handoff.tasks.registry.reverification import verify_with_torches

    try:
        other = OtherTorch(versions)
    except ValueError as error:
        _, expected, got = parse_message(str(error))
        raise UsageProblem(
            "that is no version of torch", expected=expected.replace("under also", "with --torch"),
            got=got, remedy="Name a whole version, as 'pip index versions torch' lists them",
        ) from error  # fmt: skip
    settings = read_settings()
    require_writable_home(settings)
    model, selector = parse_reference(reference)
    host = read_host_settings(settings)
    chosen = resolve_pointer(releases_of(settings), model, selector).version
    version, slug, checks = verify_with_torches(host, model, chosen, target, other.also)
    if as_json:
        print_json(
            {"model": model, "version": version, "target": slug, "torches": to_plain(checks)}
        )
    else:
        echo(f"{model} version {version}, {slug}")
        for check in checks:
            echo(f"  {check.text}")
    return 0 if all(check.is_right for check in checks) else BlessingRefused.exit_code


def print_captures(rows: tuple[CaptureRow, ...]) -> None:
    """Print the table and the recommendation."""
    echo()
    print_table("", COLUMNS, [row.cells for row in rows])
    for row in rows:
        for line in row.shortcomings:
            echo(f"  {row.method}: {line}")
    echo(f"\n{recommend(rows)}")
