"""The steps as Prefect tasks: each hands its job to a step process and waits for the answer."""

from __future__ import annotations

from typing import cast

from prefect import task

from handoff.artifacts.captures import CaptureRow
from handoff.artifacts.comparison import Comparison, ThreeWayJob
from handoff.artifacts.conformance import (
    Conformance,
    KeepTableJob,
    KeptTable,
    ReadTablesJob,
    SignedTable,
    SignTableJob,
    Tables,
)
from handoff.artifacts.exchange import Received, ReceiveJob, SendJob, Sent
from handoff.artifacts.fetching import FetchJob, FetchResult
from handoff.artifacts.known_faults import KnownWrong, KnownWrongJob
from handoff.artifacts.localization import LocalizeJob, LocalizeResult
from handoff.artifacts.night_notes import (
    NotedRows,
    NoteRowsJob,
    ReadRowsJob,
    ShowNightJob,
    ShownNight,
)
from handoff.artifacts.probes import MeasureJob, ProbeJob, ProbeResult
from handoff.artifacts.registering import (
    Catalogued,
    CatalogueJob,
    KeyJob,
    KeyResult,
    LookUpJob,
    LookUpResult,
    PullJob,
    PullResult,
    RestoreJob,
    RestoreResult,
    Uploaded,
    UploadJob,
)
from handoff.artifacts.site import Site
from handoff.artifacts.steps import (
    BenchmarkJob,
    BenchmarkResult,
    CompileJob,
    CompileResult,
    IntakeJob,
    IntakeResult,
    OptimizeJob,
    OptimizeResult,
    RaceJob,
    RaceResult,
    ReferenceJob,
    ReferenceResult,
    TapJob,
    TapResult,
    TraceabilityJob,
    TraceabilityResult,
    VerifyJob,
    VerifyResult,
)
from handoff.artifacts.surveying import Records, RecordsJob, Survey, SurveyJob
from handoff.flows import policies
from handoff.flows.progress import announced
from handoff.infra.engine.child import StepProcess
from handoff.tasks.captures.rows import fill_rows
from handoff.tasks.conformance.running import Plan, Tell, make_table
from handoff.tasks.registry.appending import Appended, Change
from handoff.tasks.registry.appending import append as append_change
from handoff.tasks.release.jobs import Jobs


@task(**policies.FETCH)
def fetch(process: StepProcess, job: FetchJob) -> FetchResult:
    """Fetch the delivery from where it lies."""
    return cast(FetchResult, _wait(process, job, "fetch", policies.LIMITS_S["fetch"]))


@task(**policies.TAKE_IN)
def take_in(process: StepProcess, job: IntakeJob) -> IntakeResult:
    """Copy the delivery into staging and read it without executing it."""
    return cast(IntakeResult, _wait(process, job, "take in", policies.LIMITS_S["intake"]))


@task(**policies.CAPTURE)
def capture(jobs: Jobs) -> tuple[CaptureRow, ...]:
    """Fill the capture table: each technology in a process of its own, one after the other."""
    with announced("capture"):
        return fill_rows(jobs.staging, jobs.recipe.extensions, jobs.workspace / "logs")


@task(**policies.INSPECT)
def inspect(process: StepProcess, job: TraceabilityJob) -> TraceabilityResult:
    """Judge whether the delivered graph computes what was trained."""
    return cast(TraceabilityResult, _wait(process, job, "inspect", policies.LIMITS_S["inspect"]))


@task(**policies.LOOK_UP)
def look_up(process: StepProcess, job: LookUpJob) -> LookUpResult:
    """Find the version that was made from the same delivery, recipe and toolchain."""
    return cast(LookUpResult, _wait(process, job, "look up", policies.LIMITS_S["look up"]))


@task(**policies.CONFORM)
def conform(plan: Plan, tell: Tell) -> Conformance:
    """Ask every operator of PyTorch's test suite what the toolchain makes of it."""
    with announced("conform"):
        return make_table(plan, tell)


@task(**policies.SIGN_TABLE)
def sign_table(process: StepProcess, site: Site, table: Conformance) -> str:
    """Sign a conformance table; return the envelope."""
    job = SignTableJob(table, site.key)
    return cast(SignedTable, _wait(process, job, "sign", policies.LIMITS_S["table"])).envelope


@task(**policies.KEEP_TABLE)
def keep_table(process: StepProcess, job: KeepTableJob) -> KeptTable:
    """Keep a signed conformance table in the store, and show it in MLflow."""
    return cast(KeptTable, _wait(process, job, "keep", policies.LIMITS_S["table"]))


@task(**policies.READ_TABLES)
def read_tables(process: StepProcess, job: ReadTablesJob, slug: str) -> Tables:
    """Read the conformance table of today's toolchain, and the one before it."""
    found = _wait(process, job, f"read tables {slug}", policies.LIMITS_S["table"])
    return cast(Tables, found)


@task(**policies.KNOWN_WRONG)
def known_wrong(process: StepProcess, job: KnownWrongJob) -> KnownWrong:
    """Look up which of a graph's operators the toolchain is known to get wrong."""
    return cast(KnownWrong, _wait(process, job, "known wrong", policies.LIMITS_S["table"]))


@task(**policies.OPTIMIZE)
def optimize(process: StepProcess, job: OptimizeJob) -> OptimizeResult:
    """Run the recipe's passes, each checked, and capture the graph."""
    return cast(OptimizeResult, _wait(process, job, "optimize", policies.LIMITS_S["optimize"]))


@task(**policies.REFERENCE)
def run_reference(process: StepProcess, job: ReferenceJob) -> ReferenceResult:
    """Run the delivered model in eager and in float64 on the input plan."""
    return cast(ReferenceResult, _wait(process, job, "reference", policies.LIMITS_S["reference"]))


@task(**policies.COMPILE)
def compile_package(
    process: StepProcess, job: CompileJob, slug: str, limit_s: float = policies.LIMITS_S["compile"]
) -> CompileResult:
    """Compile the captured program for one target."""
    return cast(CompileResult, _wait(process, job, f"compile {slug}", limit_s))


@task(**policies.TAP)
def tap(process: StepProcess, job: TapJob, slug: str) -> TapResult:
    """Find inner values to compare where an output says nothing."""
    return cast(TapResult, _wait(process, job, f"tap {slug}", policies.LIMITS_S["tap"]))


@task(**policies.LOCALIZE)
def localize(process: StepProcess, job: LocalizeJob, slug: str) -> LocalizeResult:
    """Find out where and why a refused package's numbers are wrong."""
    return cast(
        LocalizeResult,
        _wait(process, job, f"localize {slug}", policies.LIMITS_S["localize"], job.budget),
    )


@task(**policies.VERIFY)
def verify(process: StepProcess, job: VerifyJob, slug: str) -> VerifyResult:
    """Compare a target's packages with the reference."""
    return cast(VerifyResult, _wait(process, job, f"verify {slug}", policies.LIMITS_S["verify"]))


@task(**policies.PROBE)
def probe(process: StepProcess, job: ProbeJob, slug: str) -> ProbeResult:
    """Let a program without Python call and ill-treat a target's packages."""
    return cast(ProbeResult, _wait(process, job, f"probe {slug}", policies.LIMITS_S["probe"]))


@task(**policies.MEASURE)
def measure(process: StepProcess, job: MeasureJob, slug: str) -> ProbeResult:
    """Time a target's packages without Python, and watch their memory."""
    return cast(ProbeResult, _wait(process, job, f"measure {slug}", policies.LIMITS_S["measure"]))


@task(**policies.BENCHMARK)
def benchmark(process: StepProcess, job: BenchmarkJob, slug: str) -> BenchmarkResult:
    """Time a target's package against eager."""
    return cast(
        BenchmarkResult, _wait(process, job, f"benchmark {slug}", policies.LIMITS_S["benchmark"])
    )


@task(**policies.RACE)
def race(process: StepProcess, job: RaceJob, slug: str) -> RaceResult:
    """Time the accepted variants of a target's package against each other."""
    return cast(RaceResult, _wait(process, job, f"race {slug}", policies.LIMITS_S["race"]))


@task(**policies.OPEN_KEY)
def open_key(process: StepProcess, job: KeyJob) -> KeyResult:
    """Open the signing key, or make it."""
    return cast(KeyResult, _wait(process, job, "open key", policies.LIMITS_S["open key"]))


@task(**policies.UPLOAD)
def upload(process: StepProcess, job: UploadJob) -> Uploaded:
    """Store the packages, the record and its evidence."""
    return cast(Uploaded, _wait(process, job, "upload", policies.LIMITS_S["upload"]))


@task(**policies.APPEND)
def append(registrar: StepProcess, signer: StepProcess, change: Change) -> Appended:
    """Sign the version, and append it to the ledger: from then on it is released."""
    with announced("sign"):
        return append_change(registrar, signer, change)


@task(**policies.CATALOGUE)
def catalogue(process: StepProcess, job: CatalogueJob) -> Catalogued:
    """Show in MLflow what the ledger says."""
    return cast(Catalogued, _wait(process, job, "catalogue", policies.LIMITS_S["catalogue"]))


@task(**policies.SURVEY)
def survey(process: StepProcess, job: SurveyJob) -> Survey:
    """Find out which of the served models would be made of something else today."""
    return cast(Survey, _wait(process, job, "survey", policies.LIMITS_S["survey"]))


@task(**policies.RECORDS)
def records(process: StepProcess, job: RecordsJob) -> Records:
    """Read the records of some versions."""
    return cast(Records, _wait(process, job, "records", policies.LIMITS_S["records"]))


@task(**policies.RESTORE)
def restore(process: StepProcess, job: RestoreJob) -> RestoreResult:
    """Fetch the delivery that a version was made from."""
    return cast(RestoreResult, _wait(process, job, "restore", policies.LIMITS_S["restore"]))


@task(**policies.PULL)
def pull(process: StepProcess, job: PullJob) -> PullResult:
    """Fetch a version's packages, verified."""
    return cast(PullResult, _wait(process, job, "pull", policies.LIMITS_S["pull"]))


@task(**policies.THREE_WAY)
def three_way(process: StepProcess, job: ThreeWayJob, slug: str) -> Comparison:
    """Compare the served package, the new one and eager."""
    return cast(Comparison, _wait(process, job, f"compare {slug}", policies.LIMITS_S["three ways"]))


@task(**policies.NOTE_ROWS)
def note_rows(process: StepProcess, job: NoteRowsJob) -> NotedRows:
    """Keep what became of some models of a night."""
    return cast(NotedRows, _wait(process, job, "note rows", policies.LIMITS_S["rows"]))


@task(**policies.READ_ROWS)
def read_rows(process: StepProcess, job: ReadRowsJob) -> NotedRows:
    """Read what is known so far of a night's models."""
    return cast(NotedRows, _wait(process, job, "read rows", policies.LIMITS_S["rows"]))


@task(**policies.SHOW_NIGHT)
def show_night(process: StepProcess, job: ShowNightJob) -> ShownNight:
    """Keep a night's record, and show it with the trends."""
    return cast(ShownNight, _wait(process, job, "show night", policies.LIMITS_S["show night"]))


@task(**policies.SEND)
def send(process: StepProcess, job: SendJob) -> Sent:
    """Keep a folder in the store for another machine."""
    return cast(Sent, _wait(process, job, "send", policies.LIMITS_S["send"]))


@task(**policies.RECEIVE)
def receive(process: StepProcess, job: ReceiveJob) -> Received:
    """Fetch a folder that another machine has kept in the store."""
    return cast(Received, _wait(process, job, "receive", policies.LIMITS_S["receive"]))


def _wait(process: StepProcess, job: object, step: str, limit_s: float, bound: str = "") -> object:
    """Announce the step, and return its result with the seconds that it took where it ran."""
    with announced(step, bound) as announcement:
        result: object = process.run(job, limit_s=limit_s)
        announcement.seconds = process.seconds(job)
    return result
