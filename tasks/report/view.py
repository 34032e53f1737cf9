"""What the page's templates are given: the record's figures as words and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.delivery.captures import COLUMNS, CaptureRow
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
class Verdict:
    """What was decided, in one word, in one sentence, and in figures; `reasons` first if refused.

    Reasons come with the target that they are told of, and how many more there are.
    """

    word: str
    tone: Tone
    sentence: str
    figures: tuple[tuple[str, str, str], ...]
    reasons: tuple[tuple[str, tuple[str, ...], int], ...]


REASONS_SHOWN = 12


def table(
    caption: str, columns: tuple[str, ...], rows: Iterable[Sequence[str | Cell]]
) -> Table | None:
    """Return a table, or None where it would have no rows."""
    cells = [tuple(c if isinstance(c, Cell) else Cell(c) for c in row) for row in rows]
    return Table(caption, columns, tuple(cells)) if cells else None


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
        blamed = ", ".join(target.slug for target in refused) or "its delivery"
        word, sentence = "Refused", f"Nothing was released, because of {blamed}."
        tone: Tone = "bad"
    elif waiting:
        word, tone = "Built, not yet verified", "warn"
        sentence = f"Built for {names}; " + ", ".join(t.slug for t in waiting) + " was run nowhere."
        if checked := ", ".join(t.slug for t in waiting if t.is_checked_at_source):
            sentence += f" The sources of the kernels for {checked} were run without a GPU."
    else:
        word, tone = "Accepted", "good"
        both = all(target.mechanics for target in manifest.targets)
        blessed = "Numbers and mechanics are accepted" if both else "Its numbers are accepted"
        emulated = ", ".join(t.slug for t in manifest.targets if t.emulated)
        sentence = f"{blessed}; released for {names}."
        if emulated:
            sentence += f" {emulated} was verified under emulation, and its speed not measured."
    reasons = tuple(
        (t.slug, told[:REASONS_SHOWN], max(0, len(told) - REASONS_SHOWN))
        for t in refused
        for told in [t.told_reasons]
    )
    return Verdict(word, tone, sentence, tuple(_figures(manifest)), reasons)


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


def _figures(manifest: Manifest) -> Iterable[tuple[str, str, str]]:
    """Give what is looked for first: a name, a figure, and what it is beside."""
    yield from _speed_figure(manifest)
    errors = [t.max_abs for t in manifest.targets if t.max_abs is not None]
    if errors:
        yield "largest error", f"{max(errors):.1e}", "to eager, on ordinary inputs"
    ratios = [t.rmse_ratio for t in manifest.targets if t.rmse_ratio is not None]
    if ratios:
        yield "RMSE to float64", ratio(max(ratios)), "times eager's own, on ordinary inputs"
    yield from _inputs_figure(manifest)
    yield from _metric_figure(manifest)
    aside = [(share, output) for t in manifest.targets for output, share in t.set_aside]
    if aside:
        share, output = max(aside)
        yield "not comparable", f"{share:.2%}", f"of {_output(manifest, output)}: rounding decides"
    accepted = sum(target.accepted for target in manifest.targets)
    yield "targets", f"{accepted} of {len(manifest.targets)}", "accepted"
    count = len(manifest.findings)
    yield "delivery", manifest.verdict, f"{count} finding" if count == 1 else f"{count} findings"


def _speed_figure(manifest: Manifest) -> Iterable[tuple[str, str, str]]:
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
        f"{name} {ratio(one.speedup) + '×' if one.over_eager.is_known else 'not known'}"
        for name, one in (("smallest", fastest.timings[0]), ("largest", fastest.timings[-1]))
        if one is not best
    ]
    told = f"eager's at {told_case(best.case)} ({interval.span})"
    measured = ["of the same code"] if fastest.taken_over else []
    yield "speed", figure, "; ".join([told, *ends, *measured])


def told_case(case: str) -> str:
    """Return a case's name as people say it: the delivery's first example is *as delivered*."""
    return f"{case.removesuffix(EXAMPLE).strip()}, as delivered" if case.endswith(EXAMPLE) else case


def _inputs_figure(manifest: Manifest) -> Iterable[tuple[str, str, str]]:
    """Give on how many inputs packages were compared with eager."""
    special = {d.case: d.special for t in manifest.targets for d in t.deviations if d.output >= 0}
    if special:
        count = sum(special.values())
        yield (
            "inputs",
            str(len(special)),
            f"compared: {len(special) - count} ordinary, {count} special",
        )


def _metric_figure(manifest: Manifest) -> Iterable[tuple[str, str, str]]:
    """Give the metric of the package that loses most of it."""
    found = [target.metric for target in manifest.targets if target.metric]
    if found:
        worst = max(found, key=lambda one: one.drop)
        yield worst.name, f"{worst.package:.4g}", f"{worst.eager:.4g} by eager"


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
    """Return what the packages take and give."""
    rows: list[Sequence[str | Cell]] = [
        (kind, Cell(spec.name, "code"), spec.dtype, " × ".join(map(str, spec.shape)) or "scalar",
         spec.values, spec.origin)
        for kind, specs in (("takes", manifest.signature.inputs),
                            ("gives", manifest.signature.outputs))
        for spec in specs
    ]  # fmt: skip
    rows += [
        ("size", Cell(name, "code"), "", f"{limits.min} to {limits.max}", "", limits.origin)
        for name, limits in manifest.signature.dimensions.items()
    ]
    return table("What it takes and gives", ("", "name", "dtype", "shape", "values", "from"), rows)


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
        ("released", manifest.created),
    ]
    if served := manifest.served:
        changed = ", ".join(served.changed)
        rows.append((f"other than in version {served.version}, in production then", changed))
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
    columns = ("", "pass", "level", "nodes", "outputs moved, in float64", "notes")
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
            f"{t.rounds} rounds, {t.threads} threads" + _told_others(t),
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
    return f", beside other work on {timing.others:.1f} processors"


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
