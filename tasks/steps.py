"""The steps, one row each: everything that runs in a process of its own is declared here, once.

From a row are made: the step process's answer to a job, its time limit, what Prefect and the
progress call the step. A new step is a room (or a module of one) and a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from handoff.artifacts.conformance import known_faults
from handoff.artifacts.conformance import table as conformance
from handoff.artifacts.delivery import captures
from handoff.artifacts.messages import (
    changes,
    exchange,
    fetching,
    localization,
    probes,
    proposals,
    registering,
    steps,
)
from handoff.artifacts.messages.job import Job
from handoff.artifacts.nightly import night_notes, surveying
from handoff.artifacts.release import comparison

J = TypeVar("J", bound=Job[Any])
R = TypeVar("R")


@dataclass(frozen=True)
class Step(Generic[J, R]):
    """A step: its name, the module below `tasks` whose `run(job)` does it, its job and result.

    It is ended after `limit_s` seconds, times what HANDOFF_TIME_FACTOR says; one that needs longer
    has hung. With `shapes_release` its code is a part of what releases are made from: a change of
    it, or of what it imports, makes every model due.
    """

    name: str
    module: str
    job: type[J]
    result: type[R]
    limit_s: float
    shapes_release: bool = False


# Somewhat longer than the step itself gives a download.
FETCH = Step("fetch", "fetch.step", fetching.FetchJob, fetching.FetchResult, 3900)
SEND = Step("send", "fetch.send", exchange.SendJob, exchange.Sent, 7200)
RECEIVE = Step("receive", "fetch.receive", exchange.ReceiveJob, exchange.Received, 7200)
PREPARE = Step("prepare", "deliver.prepare", steps.PrepareJob, steps.Prepared, 3600)
DELIVER = Step("deliver", "deliver.step", steps.DeliverJob, steps.DeliverResult, 3600)
PROPOSE = Step("propose", "propose.step", proposals.ProposeJob, proposals.ProposeResult, 600)
TRY_CONTRACT = Step(
    "try contract", "propose.try_contract", proposals.TryJob, proposals.TryResult, 600
)
TAKE_IN = Step("take in", "intake", steps.IntakeJob, steps.IntakeResult, 600, shapes_release=True)
INSPECT = Step(
    "inspect",
    "inspect.step",
    steps.TraceabilityJob,
    steps.TraceabilityResult,
    900,
    shapes_release=True,
)
CAPTURE = Step(
    "capture", "captures.step", captures.CaptureJob, captures.CaptureRow, 180, shapes_release=True
)
OPTIMIZE = Step(
    "optimize", "optimize.step", steps.OptimizeJob, steps.OptimizeResult, 1800, shapes_release=True
)
MAKE_TOOLS = Step(
    "make tools",
    "compile.caching.make_tools",
    steps.ToolsJob,
    steps.ToolsResult,
    3600,
    shapes_release=True,
)
FIND_PACKAGE = Step(
    "find package",
    "compile.caching.find_package",
    steps.FindPackageJob,
    steps.FoundPackage,
    1800,
    shapes_release=True,
)
COMPILE = Step(
    "compile", "compile.step", steps.CompileJob, steps.CompileResult, 3600, shapes_release=True
)
REFERENCE = Step(
    "reference",
    "verify.reference",
    steps.ReferenceJob,
    steps.ReferenceResult,
    3600,
    shapes_release=True,
)
TAP = Step("tap", "verify.tap", steps.TapJob, steps.TapResult, 3600, shapes_release=True)
VERIFY = Step(
    "verify", "verify.step", steps.VerifyJob, steps.VerifyResult, 3600, shapes_release=True
)
# Beyond its own budget, which it keeps to.
LOCALIZE = Step(
    "localize", "localize.step", localization.LocalizeJob, localization.LocalizeResult, 5400
)
TRIAL = Step("trial", "localize.trial", localization.TrialJob, localization.TrialResult, 3600)
PROBE = Step("probe", "probe.step", probes.ProbeJob, probes.ProbeResult, 1800, shapes_release=True)
MEASURE = Step(
    "measure", "probe.measure", probes.MeasureJob, probes.ProbeResult, 600, shapes_release=True
)
BENCHMARK = Step(
    "benchmark",
    "timing.benchmark",
    steps.BenchmarkJob,
    steps.BenchmarkResult,
    900,
    shapes_release=True,
)
RACE = Step("race", "timing.race", steps.RaceJob, steps.RaceResult, 900, shapes_release=True)
SIDE_BY_SIDE = Step(
    "side by side", "timing.side_by_side", changes.SideBySideJob, changes.SideBySide, 600
)
COMPARE = Step("compare", "timing.three_way", comparison.ThreeWayJob, comparison.Comparison, 1800)
OPEN_KEY = Step("open key", "registry.open_key", registering.KeyJob, registering.KeyResult, 120)
LOOK_UP = Step("look up", "registry.look_up", registering.LookUpJob, registering.LookUpResult, 600)
# Gigabytes, over a line of some megabytes a second.
UPLOAD = Step("upload", "registry.upload", registering.UploadJob, registering.Uploaded, 7200)
DRAFT = Step("draft", "registry.draft", changes.DraftJob, changes.Draft, 600)
SIGN = Step("sign", "registry.sign", changes.SignJob, changes.Signed, 600)
COMMIT = Step("commit", "registry.commit", changes.CommitJob, changes.CommitResult, 600)
CATALOGUE = Step(
    "catalogue", "registry.catalogue", registering.CatalogueJob, registering.Catalogued, 3600
)
RESTORE = Step(
    "restore", "registry.restore", registering.RestoreJob, registering.RestoreResult, 7200
)
PULL = Step("pull", "registry.pull", registering.PullJob, registering.PullResult, 7200)
COLLECT = Step(
    "collect", "registry.collect", registering.CollectJob, registering.CollectResult, 3600
)
RECORDS = Step("records", "registry.records", surveying.RecordsJob, surveying.Records, 600)
SURVEY = Step("survey", "nightly.survey", surveying.SurveyJob, surveying.Survey, 3600)
NOTE_ROWS = Step(
    "note rows", "nightly.note_rows", night_notes.NoteRowsJob, night_notes.NotedRows, 600
)
READ_ROWS = Step(
    "read rows", "nightly.read_rows", night_notes.ReadRowsJob, night_notes.NotedRows, 600
)
SHOW_NIGHT = Step(
    "show night", "nightly.show_night", night_notes.ShowNightJob, night_notes.ShownNight, 1800
)
LIST_PAIRS = Step(
    "list pairs", "conformance.list_pairs", conformance.PairsJob, conformance.Pairs, 300
)
CONFORM = Step(
    "conform", "conformance.conform", conformance.ConformJob, conformance.ConformResult, 900
)
SIGN_TABLE = Step(
    "sign table", "conformance.sign_table", conformance.SignTableJob, conformance.SignedTable, 600
)
KEEP_TABLE = Step(
    "keep table", "conformance.keep_table", conformance.KeepTableJob, conformance.KeptTable, 600
)
READ_TABLES = Step(
    "read tables", "conformance.read_tables", conformance.ReadTablesJob, conformance.Tables, 600
)
KNOWN_WRONG = Step(
    "known wrong",
    "conformance.known_wrong",
    known_faults.KnownWrongJob,
    known_faults.KnownWrong,
    600,
    shapes_release=True,
)

ROWS: tuple[Step[Any, Any], ...] = tuple(v for v in vars().copy().values() if isinstance(v, Step))
_BY_JOB = {row.job: row for row in ROWS}
_BY_NAME = {row.name: row for row in ROWS}


def step_of(job: Job[Any]) -> Step[Any, Any]:
    """Return the row of the step that does `job`."""
    return _BY_JOB[type(job)]


def step_named(name: str) -> Step[Any, Any]:
    """Return the row of the step of that name."""
    return _BY_NAME[name]
