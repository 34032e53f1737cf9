"""What the page's templates are given: the record's figures as words and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.delivery.captures import COLUMNS, CaptureRow
from handoff.artifacts.release.coverage import beyond_compared, closest_call, told_inputs
from handoff.artifacts.release.evidence import BUSY, EXAMPLE, PassEffect, Timing
from handoff.artifacts.release.interval import measured_size, ratio, size
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.tasks.report.error_pictures import milliseconds

Tone = Literal["", "good", "warn", "bad", "code"]


def captures_table(manifest: Manifest) -> Table | None:
    """Return what each capture technology makes of the model, where the recipe asked for it."""
    rows = [(*_judged(row), "; ".join(row.told)) for row in manifest.captures]
    return table("The capture table", (*COLUMNS, "told"), rows)


def _judged(row: CaptureRow) -> tuple[str | Cell, ...]:
    road, captured, right, *rest = row.cells
    tone: Tone = "good" if row.is_right else "warn"
    return (
        road, Cell(captured, "" if row.captured else "warn"), Cell(right, tone if right else ""),
        *rest,
    )  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A table's cell: its words, and how they are shown."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """A table under a caption; without `columns` the first cell of each row is its heading."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Why:
    """Why a target is refused: the first reason, what it names, and the further ones.

    `more` is how many of these are left out.
    """

    target: str
    first: str
    named: Table | None
    further: tuple[str, ...]
    more: int


@dataclass(frozen=True)
class Figure:
    """A figure of the first screen: its name, itself, and what it has to be read with."""

    name: str
    figure: str
    told: str
    tone: Tone = ""


@dataclass(frozen=True)
class Verdict:
    """What was decided: in one word, one sentence, and figures; `reasons` first if refused."""

    word: str
    tone: Tone
    sentence: str
    figures: tuple[Figure, ...]
    reasons: tuple[Why, ...]


REASONS_SHOWN = 12


def table(
    caption: str, columns: tuple[str, ...], rows: Iterable[Sequence[str | Cell]]
) -> Table | None:
    """Return a table, or None where it would have no rows."""
    cells = [tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows]
    return Table(caption, columns, tuple(cells)) if cells else None


def counted(count: int, what: str) -> str:
    """Return a number of things: `1 thread`, `2 threads`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def number(value: float | None, form: str) -> str:
    """Return a number, or a dash for one that isn't known."""
    return "-" if value is None else format(value, form)


def is_refused(manifest: Manifest) -> bool:
    """Tell whether nothing was released: a target is refused, or the delivery is unsound."""
    return manifest.verdict == "unsound" or any(t.verdict == "refused" for t in manifest.targets)


def judge(manifest: Manifest) -> Verdict:
    """Return the verdict on a release: refused where any target is, or the delivery is unsound."""
    refused = [target for target in manifest.targets if target.verdict == "refused"]
    waiting = [target for target in manifest.targets if target.unverified]
    names = ", ".join(target.slug for target in manifest.targets)
    if is_refused(manifest):
        blamed = ", ".join(target.slug for target in refused)
        why = f"the package for {blamed} was refused" if blamed else "the delivery is unsound"
        word, sentence = "Refused", f"Nothing was released: {why}."
        tone: Tone = "bad"
    elif waiting:
        word, tone = "Built, not yet verified", "warn"
        sentence = f"Built for {names}; " + ", ".join(t.slug for t in waiting) + " was run nowhere."
        if checked := ", ".join(t.slug for t in waiting if t.is_checked_at_source):
            sentence += f" The sources of the kernels for {checked} were run without a GPU."
    else:
        word, tone = "Accepted", "good"
        both = all(target.mechanics for target in manifest.targets)
        judged = "Its numbers and its behaviour without Python" if both else "Its numbers"
        emulated = ", ".join(t.slug for t in manifest.targets if t.emulated)
        sentence = f"{judged} are accepted; released for {names}."
        if emulated:
            sentence += f" {emulated} was verified under emulation, and its speed not measured."
    return Verdict(word, tone, sentence, tuple(_figures(manifest)), tuple(map(_why, refused)))


def _why(target: TargetRecord) -> Why:
    first, *further = target.told_reasons or ("Its record holds no reason.",)
    more = max(0, len(further) - REASONS_SHOWN)
    return Why(target.slug, first, _named(target), tuple(further[:REASONS_SHOWN]), more)


def _named(target: TargetRecord) -> Table | None:
    """Return what the search for the cause could name, a row each."""
    found = target.culprit
    if found is None:
        return None
    rows = (
        ("operator", found.operator), ("line", found.where),
        ("right without", ", ".join(filter(None, (*found.options, found.made_by, found.part)))),
        ("reproduce it", found.script),
    )  # fmt: skip
    return table("What was found", (), [(name, Cell(told, "code")) for name, told in rows if told])


def origin(manifest: Manifest) -> str:
    """Return which release this is, in a line: its record, the commit that it is of, and when."""
    commit = manifest.lineage.short_commit(40)
    made_from = f"commit {commit}" if commit else "of a delivery that names no commit"
    when = moment(manifest.created)
    made = "refused" if is_refused(manifest) else "released"
    return f"{made_from} · {made} {when} · record {manifest.digest.short}"


def moment(stamp: str) -> str:
    """Return a moment as people read it: `2026-11-27 00:22:07 UTC`."""
    return stamp.replace("T", " ").replace("+00:00", " UTC")


def _figures(manifest: Manifest) -> Iterable[Figure]:
    """Give what is looked for first: how fast, how wrong, and on which inputs."""
    yield from _speed_figure(manifest)
    yield from _error_figure(manifest)
    ratios = [t.rmse_ratio for t in manifest.targets if t.rmse_ratio is not None]
    if ratios:
        allowed = f"at most {manifest.recipe.tolerance_for('float32').rmse_factor:g}× is agreed"
        told = f"eager's own, on ordinary inputs; {allowed}"
        yield Figure("RMSE to float64", f"{ratio(max(ratios))}×", told)
    yield from _inputs_figure(manifest)
    yield from _metric_figure(manifest)
    aside = [(share, output) for t in manifest.targets for output, share in t.set_aside]
    if aside:
        share, output = max(aside)
        told = f"of {_output(manifest, output)}: rounding decides"
        yield Figure("not comparable", f"{share:.2%}", told, "warn")
    if len(manifest.targets) > 1:
        accepted = sum(target.accepted for target in manifest.targets)
        yield Figure("targets", f"{accepted} of {len(manifest.targets)}", "accepted")
    count = len(manifest.findings)
    yield Figure("delivery", manifest.verdict, counted(count, "finding"))


def _error_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the largest error of all targets, with how much of the agreed tolerance it takes."""
    compared = [target for target in manifest.targets if target.max_abs is not None]
    if not compared:
        return
    worst = max(compared, key=lambda one: one.max_abs or 0.0)
    call = closest_call(manifest, worst)
    told = "from eager, on ordinary inputs"
    yield Figure("largest error", f"{worst.max_abs:.1e}", f"{told}; {call.told}" if call else told)


def _speed_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the fastest target's speed as it was delivered, and at its smallest and largest size."""
    timed = [target for target in manifest.targets if target.timings]
    if not timed:
        return
    fastest = max(timed, key=lambda one: one.speedup or 0.0)
    best = fastest.headline
    assert best is not None  # what was timed has one
    interval = best.over_eager
    figure = f"{ratio(interval.value)}×" if interval.is_known else "not known"
    ends = [
        f"{f'{ratio(one.speedup)}×' if one.over_eager.is_known else 'not known'} at "
        + told_case(one.case)
        for one in dict.fromkeys((fastest.timings[0], fastest.timings[-1]))
        if one is not best
    ]
    at = f"eager's speed at {told_case(best.case)}"
    told = f"{at} ({interval.span})" if interval.is_known else f"{interval.span} times {at}"
    measured = ["measured on the same code with other weights"] if fastest.taken_over else []
    yield Figure("speed", figure, "; ".join([told, *ends, *measured]))


def told_case(case: str) -> str:
    """Return a case's name as people say it: the delivery's first example is *as delivered*."""
    if case.endswith(EXAMPLE):
        return f"{case.removesuffix(EXAMPLE).strip()}, as delivered"
    return case.removesuffix("seed=0").strip()


def _inputs_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the inputs on which packages were compared with eager, and the sizes that are not."""
    # Where targets were compared on other inputs, the one that was on the fewest stands for all.
    compared = [target for target in manifest.targets if target.deviations]
    if not compared:
        return
    target = min(compared, key=lambda one: len(one.deviations))
    cases = {one.case for one in target.deviations if one.output >= 0}
    told = [*told_inputs(manifest.signature, target)]
    told += [f"left out, as its section says: {len(target.skipped)}"] if target.skipped else []
    yield Figure("inputs compared", str(len(cases)), "; ".join(told))
    if beyond := beyond_compared(manifest.signature, target):
        limits = manifest.signature.dimensions
        declared = ", ".join(f"{name} to {one.max}" for name, one in limits.items())
        why = "; too much memory for the plan" if target.skipped else ""
        yield Figure("not compared", beyond, f"declared: {declared}{why}", "warn")


def _metric_figure(manifest: Manifest) -> Iterable[Figure]:
    """Give the metric of the package that loses most of it."""
    found = [target.metric for target in manifest.targets if target.metric]
    if found:
        worst = max(found, key=lambda one: one.drop)
        yield Figure(worst.name, f"{worst.package:.4g}", f"{worst.eager:.4g} by eager")


def metrics_table(manifest: Manifest) -> Table | None:
    """Return the delivery's metric for each target: both values, what is lost, what was agreed."""
    columns = (
        "target", "metric", "of", "samples", "eager", "package", "lost", "bounds", "agreed", "",
    )  # fmt: skip
    tones: dict[str, Tone] = {"kept": "good", "broken": "bad"}
    rows = [
        (
            Cell(target.slug, "code"), one.name, Cell(one.output, "code"), str(one.samples),
            f"{one.eager:.4g}", f"{one.package:.4g}", one.lost,
            f"{one.bounds}, {one.confidence:.4g} sure each", one.agreed,
            Cell(one.standing, tones.get(one.standing, "warn")),
        )
        for target in manifest.targets
        if (one := target.metric) is not None
    ]  # fmt: skip
    return table("The delivery's metric", columns, rows)


def _output(manifest: Manifest, index: int) -> str:
    outputs = manifest.signature.outputs
    return outputs[index].name if index < len(outputs) else f"output {index}"


def targets_table(manifest: Manifest) -> Table | None:
    """Return one row for each target: verdict, figures, and what it asks of a machine."""
    columns = (
        "target", "verdict", "max error", "RMSE / eager's", "speed-up", "size", "compiled in",
        "runs on",
    )  # fmt: skip
    rows = [
        (
            Cell(target.slug, "code"),
            verdict_cell(target),
            number(target.max_abs, ".2g"),
            "-" if target.rmse_ratio is None else ratio(target.rmse_ratio),
            _told_speed(target),
            measured_size(target.size_bytes),
            f"{target.compile_s:.0f} s" + (f", {target.reused} reused" if target.reused else ""),
            _machine(target),
        )
        for target in manifest.targets
    ]
    return table("Targets", columns, rows)


def verdict_cell(target: TargetRecord) -> Cell:
    """Return a target's verdict in its colour."""
    tones: dict[str, Tone] = {"accepted": "good", "refused": "bad"}
    return Cell(target.standing, tones.get(target.verdict, "warn"))


def _told_speed(target: TargetRecord) -> str:
    if target.headline is None:
        return "-"
    return target.headline.over_eager.told + (", taken over" if target.taken_over else "")


def _machine(target: TargetRecord) -> str:
    fit = target.fit
    if fit is None:
        return "-"
    gpu = f", compute capability {fit.gpu_capability / 10:.1f}" if fit.gpu_capability else ""
    glibc = f", glibc {fit.glibc}" if fit.glibc else ""
    return f"{fit.machine}, torch {fit.torch}{gpu}{glibc}"


def signature_table(manifest: Manifest) -> Table | None:
    """Return the packages' inputs, outputs and dynamic dimensions."""
    rows: list[Sequence[str | Cell]] = [
        (kind, Cell(spec.name, "code"), spec.dtype, " × ".join(map(str, spec.shape)) or "scalar",
         spec.values or ("any" if kind == "input" else ""), spec.origin)
        for kind, specs in (("input", manifest.signature.inputs),
                            ("output", manifest.signature.outputs))
        for spec in specs
    ]  # fmt: skip
    rows += [
        ("dimension", Cell(name, "code"), "", f"{limits.min} to {limits.max}", "", limits.origin)
        for name, limits in manifest.signature.dimensions.items()
    ]
    return table("Inputs and outputs", ("", "name", "dtype", "shape", "values", "from"), rows)


def lineage_table(manifest: Manifest) -> Table | None:
    """Return where the release comes from, as far as it was said."""
    source = manifest.lineage
    rows: list[Sequence[str | Cell]] = [
        ("delivery", Cell(manifest.delivery, "code")),
        ("repository", source.repository),
        ("commit", Cell(source.commit, "code") if source.commit else ""),
        ("training run", source.training_run),
        ("delivered by", source.author),
        ("delivered", source.created),
        ("refused" if is_refused(manifest) else "released", manifest.created),
    ]
    if served := manifest.served:
        changed = ", ".join(served.changed)
        rows.append((f"changed since version {served.version}, then in production", changed))
    return table("Where it comes from", (), [row for row in rows if row[1]])


def findings_table(manifest: Manifest) -> Table | None:
    """Return what was noticed about the delivery, the gravest first."""
    order = ("unsound", "limit", "note")
    tones: dict[str, Tone] = {"unsound": "bad", "limit": "warn"}
    rows = [
        (
            Cell(one.severity, tones.get(one.severity, "")),
            Cell(one.code, "code"),
            Cell(one.where, "code") if one.where else "-",
            one.message,
            one.remedy,
        )
        for one in sorted(manifest.findings, key=lambda one: order.index(one.severity))
    ]
    return table("Findings", ("severity", "code", "where", "finding", "what to do"), rows)


def passes_table(manifest: Manifest) -> Table | None:
    """Return what each pass did, numbered as the picture numbers them."""
    rows = [
        (
            str(place),
            Cell(effect.name, "code"),
            effect.level,
            Cell("left out", "bad") if effect.left_out else _nodes(effect),
            f"{effect.max_abs:.1e}" + (" (intended)" if effect.intended else ""),
            "; ".join(filter(None, (effect.left_out, *effect.notes))),
        )
        for place, effect in enumerate(manifest.passes, start=1)
    ]
    columns = ("", "pass", "level", "nodes", "largest change of an output (float64)", "notes")
    return table("Passes, in order", columns, rows)


def _nodes(effect: PassEffect) -> str:
    return f"{effect.nodes_before} to {effect.nodes_after}" if effect.modified else "unchanged"


def timings_table(manifest: Manifest, target: TargetRecord) -> Table | None:
    """Return the seconds of eager and the package on each timed input."""
    timings = manifest.served.timings if manifest.served else ()
    served = {one.case: str(one.over_eager) for one in timings if one.target == target.slug}
    rows = [
        (
            told_case(t.case),
            _interval(t.eager_s, t.eager_low_s, t.eager_high_s),
            _interval(t.package_s, t.package_low_s, t.package_high_s),
            t.over_eager.told,
            *([served.get(t.case, "-")] if served else []),
            f"{t.rounds} rounds, {counted(t.threads, 'thread')}" + _told_others(t),
        )
        for t in target.timings
    ]
    version = manifest.served.version if manifest.served else 0
    beside = (f"version {version}, when it was released",) if served else ()
    columns = ("input", "eager", "package", "speed-up (95 %)", *beside, "measured")
    return table("Latency", columns, rows)


def _told_others(timing: Timing) -> str:
    if timing.others is None or timing.others < BUSY:
        return ""
    return f", while other work used {timing.others:.1f} processors"


def _interval(median: float, low: float, high: float) -> str:
    told = milliseconds(median)
    if not high:
        return told
    return f"{told} ({milliseconds(low).removesuffix(' ms')} to {milliseconds(high)})"


def digests_table(manifest: Manifest) -> Table | None:
    """Return every digest that the release is known by."""
    rows: list[Sequence[str | Cell]] = [
        ("this record", Cell(manifest.digest, "code"), ""),
        ("delivery", Cell(manifest.delivery, "code"), ""),
        ("all that it was made from", Cell(manifest.fingerprint, "code"), ""),
    ]
    if manifest.plan:
        rows.append(("inputs that were compared", Cell(manifest.plan, "code"), ""))
    files = [*manifest.files, *(file for target in manifest.targets for file in target.files)]
    rows += [(f.path, Cell(f.digest, "code"), size(f.size_bytes)) for f in files]
    return table("Digests", ("", "SHA-256", "size"), rows)
