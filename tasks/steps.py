"""The steps, one row each: everything that runs in a process of its own is declared here, once.

From a row are made: the step process's answer to a job, its time limit, what Prefect and the
progress call the step. A new step is a room (or a module of one) and a row; one whose imports are
heavy stands in `LAYERS` of `infra/engine/forking.py`, too, or each of its processes pays for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from handoff.artifacts.delivery import captures as capture_table
from handoff.artifacts.record import Job
from handoff.artifacts.release import comparison
from handoff.tasks.captures import messages as captures
from handoff.tasks.compile import messages as compiling
from handoff.tasks.conformance import messages as conformance
from handoff.tasks.deliver import messages as deliver
from handoff.tasks.fetch import messages as fetch
from handoff.tasks.follow import messages as follow
from handoff.tasks.inspect import messages as inspect
from handoff.tasks.intake import messages as intake
from handoff.tasks.localize import messages as localize
from handoff.tasks.nightly import messages as nightly
from handoff.tasks.optimize import messages as optimize
from handoff.tasks.probe import messages as probe
from handoff.tasks.propose import messages as propose
from handoff.tasks.registry import changes
from handoff.tasks.registry import messages as registry
from handoff.tasks.report import messages as report
from handoff.tasks.timing import messages as timing
from handoff.tasks.verify import messages as verify
from handoff.tasks.verify.interpret import messages as interpret
from handoff.tasks.verify.torch_versions import messages as torches

J = TypeVar("J", bound=Job[Any])
R = TypeVar("R")


@dataclass(frozen=True)
class Step(Generic[J, R]):
    """A step: its name, what below `tasks` does it, its job and result.

    `module` is a module whose `run(job)` does it, or `module:function`.

    It is ended after `limit_s` seconds, times what HANDOFF_TIME_FACTOR says; one that needs longer
    has hung. `does` says in a few words what it is there for, where its name doesn't. With
    `shapes_release` its code is a part of what releases are made from: a change of it, or of what
    it imports, makes every model due.
    """

    name: str
    module: str
    job: type[J]
    result: type[R]
    limit_s: float
    shapes_release: bool = False
    does: str = ""

    @property
    def module_path(self) -> str:
        """The module below `tasks` that is imported."""
        return self.module.partition(":")[0]


# Somewhat longer than the step itself gives a download.
FETCH = Step("fetch", "fetch.step", fetch.FetchJob, fetch.FetchResult, 3900)
SEND = Step("send", "fetch.transfer:send", fetch.SendJob, fetch.SendResult, 7200)
RECEIVE = Step("receive", "fetch.transfer:receive", fetch.ReceiveJob, fetch.ReceiveResult, 7200)
PREPARE = Step("prepare", "deliver.prepare", deliver.PrepareJob, deliver.Prepared, 3600)
DELIVER = Step("deliver", "deliver.step", deliver.DeliverJob, deliver.DeliverResult, 3600)
PROPOSE = Step("propose", "propose.step", propose.ProposeJob, propose.ProposeResult, 600)
TRY_CONTRACT = Step(
    "try contract", "propose.step:try_contract", propose.TryJob, propose.TryResult, 600
)
TAKE_IN = Step(
    "take in", "intake.step", intake.IntakeJob, intake.IntakeResult, 600, shapes_release=True,
    does="copy the delivery and read it",
)  # fmt: skip
INSPECT = Step(
    "inspect", "inspect.step", inspect.TraceabilityJob, inspect.TraceabilityResult, 900,
    shapes_release=True, does="run the delivered graph, look for what was lost",
)  # fmt: skip
CAPTURE = Step(
    "capture", "captures.step", captures.CaptureJob, capture_table.CaptureRow, 180,
    shapes_release=True,
)  # fmt: skip
OPTIMIZE = Step(
    "optimize", "optimize.step", optimize.OptimizeJob, optimize.OptimizeResult, 1800,
    shapes_release=True, does="apply the passes, export",
)  # fmt: skip
MAKE_TOOLS = Step(
    "make tools", "compile.caching.make_tools", compiling.ToolsJob, compiling.ToolsResult, 3600,
    shapes_release=True,
)  # fmt: skip
FIND_PACKAGE = Step(
    "find package", "compile.caching.find_package", compiling.FindPackageJob,
    compiling.FoundPackage, 1800, shapes_release=True,
)  # fmt: skip
COMPILE = Step(
    "compile",
    "compile.step",
    compiling.CompileJob,
    compiling.CompileResult,
    3600,
    shapes_release=True,
)
REFERENCE = Step(
    "reference", "verify.reference", verify.ReferenceJob, verify.ReferenceResult, 3600,
    shapes_release=True, does="eager and float64 on the inputs to compare on",
)  # fmt: skip
TAP = Step(
    "tap", "verify.tap", verify.TapJob, verify.TapResult, 3600, shapes_release=True,
    does="values inside the graph",
)  # fmt: skip
VERIFY = Step(
    "verify", "verify.step", verify.VerifyJob, verify.VerifyResult, 3600, shapes_release=True,
    does="compare the package with eager",
)  # fmt: skip
# Gigabytes, once.
MAKE_TORCH = Step(
    "make torch",
    "verify.torch_versions.environments",
    torches.MakeTorchJob,
    torches.TorchEnvironment,
    3600,
)
INTERPRET = Step(
    "interpret", "verify.interpret.step", interpret.InterpretJob, interpret.InterpretResult, 3600,
    shapes_release=True,
)  # fmt: skip
# Beyond its own budget, which it keeps to.
LOCALIZE = Step(
    "localize", "localize.step", localize.LocalizeJob, localize.LocalizeResult, 5400,
    does="find what makes it wrong",
)  # fmt: skip
TRIAL = Step("trial", "localize.trial", localize.TrialJob, localize.TrialResult, 3600)
PROBE = Step(
    "probe", "probe.step", probe.ProbeJob, probe.ProbeResult, 1800, shapes_release=True,
    does="run it without Python, on hostile inputs, too",
)  # fmt: skip
MEASURE = Step(
    "measure", "probe.step:measure", probe.MeasureJob, probe.ProbeResult, 600, shapes_release=True,
    does="time its opening and its calls without Python",
)  # fmt: skip
BENCHMARK = Step(
    "benchmark", "timing.benchmark", timing.BenchmarkJob, timing.BenchmarkResult, 900,
    shapes_release=True, does="time it against eager",
)  # fmt: skip
RACE = Step(
    "race", "timing.race", timing.RaceJob, timing.RaceResult, 900, shapes_release=True,
    does="time the variants in turns",
)  # fmt: skip
SIDE_BY_SIDE = Step(
    "side by side", "timing.race:side_by_side", timing.SideBySideJob, comparison.SideBySide, 600
)
COMPARE = Step("compare", "timing.three_way", timing.ThreeWayJob, comparison.Comparison, 1800)
OPEN_KEY = Step(
    "open key", "registry.sign:open_key", registry.KeyJob, registry.KeyResult, 120,
    does="check the signing key",
)  # fmt: skip
LOOK_UP = Step(
    "look up", "registry.look_up", registry.LookUpJob, registry.LookUpResult, 600,
    does="was it released before",
)  # fmt: skip
# Gigabytes, over a line of some megabytes a second.
UPLOAD = Step(
    "upload", "registry.upload", registry.UploadJob, registry.UploadResult, 7200,
    does="packages and evidence, to the store",
)  # fmt: skip
DRAFT = Step("draft", "registry.draft", changes.DraftJob, changes.Draft, 600)
SIGN = Step("sign", "registry.sign", changes.SignJob, changes.SignResult, 600)
COMMIT = Step("commit", "registry.commit", changes.CommitJob, changes.CommitResult, 600)
CATALOGUE = Step(
    "catalogue", "registry.catalogue", registry.CatalogueJob, registry.CatalogueResult, 3600,
    does="show it in MLflow",
)  # fmt: skip
RESTORE = Step(
    "restore", "registry.pull:restore", registry.RestoreJob, registry.RestoreResult, 7200
)
PULL = Step("pull", "registry.pull", registry.PullJob, registry.PullResult, 7200)
TRY_RELEASE = Step(
    "try release", "follow.goldens:try_release", follow.TryReleaseJob, follow.TryReleaseResult, 600
)
COLLECT = Step(
    "collect", "registry.upkeep.collect", registry.CollectJob, registry.CollectResult, 3600
)
RECORDS = Step(
    "records", "registry.look_up:read_records", registry.RecordsJob, registry.Records, 600
)
SURVEY = Step("survey", "nightly.survey", nightly.SurveyJob, nightly.Survey, 3600)
NOTE_ROWS = Step(
    "note rows", "nightly.publishing:note_rows", nightly.NoteRowsJob, nightly.NightRows, 600
)
READ_ROWS = Step(
    "read rows", "nightly.publishing:read_night_rows", nightly.ReadRowsJob, nightly.NightRows, 600
)
SHOW_NIGHT = Step(
    "show night",
    "nightly.publishing:show_night",
    nightly.ShowNightJob,
    nightly.ShowNightResult,
    1800,
)
SHOW_REFUSED = Step(
    "show refused", "report.show_refused", report.ShowRefusedJob, report.ShowRefusedResult, 600
)
LIST_PAIRS = Step(
    "list pairs", "conformance.sampling:list_pairs", conformance.PairsJob, conformance.Pairs, 300
)
CONFORM = Step(
    "conform", "conformance.conform", conformance.ConformJob, conformance.ConformResult, 900
)
SIGN_TABLE = Step(
    "sign table",
    "conformance.tables:sign_table",
    conformance.SignTableJob,
    conformance.SignedTable,
    600,
)
KEEP_TABLE = Step(
    "keep table", "conformance.tables:keep_signed_table", conformance.KeepTableJob,
    conformance.KeptTable, 600,
)  # fmt: skip
READ_TABLES = Step(
    "read tables",
    "conformance.tables:read_tables",
    conformance.ReadTablesJob,
    conformance.Tables,
    600,
)
KNOWN_WRONG = Step(
    "known wrong", "conformance.known_faults:known_wrong", conformance.KnownWrongJob,
    conformance.KnownWrong, 600, shapes_release=True,
    does="what this compiler is known to get wrong",
)  # fmt: skip

ROWS: tuple[Step[Any, Any], ...] = tuple(v for v in vars().copy().values() if isinstance(v, Step))
_BY_JOB = {row.job: row for row in ROWS}
_BY_NAME = {row.name: row for row in ROWS}


def step_of(job: Job[Any]) -> Step[Any, Any]:
    """Return the row of the step that does `job`."""
    return _BY_JOB[type(job)]


def step_named(name: str) -> Step[Any, Any]:
    """Return the row of the step of that name."""
    return _BY_NAME[name]
