"""What is asked about a toolchain's operators and the tables of them, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from handoff.artifacts.conformance.table import Conformance, ConformanceRow, KnownFault
from handoff.artifacts.host import SigningKey, Stores
from handoff.artifacts.recipe.target import CpuTarget, Target
from handoff.artifacts.record import Job, added_field
from handoff.artifacts.release.evidence import Finding


@dataclass(frozen=True)
class ConformJob(Job["ConformResult"]):
    """Ask the pairs of operator and dtype (`amax:int8`) what a package for `target` makes of them.

    `eager_only` asks eager alone: whether a crash is the package's at all.
    """

    target: CpuTarget
    options: dict[str, object]
    pairs: tuple[str, ...]
    eager_only: bool = False


@dataclass(frozen=True)
class ConformResult:
    """A row for each pair that was asked about, and the seconds of the run that it took."""

    rows: tuple[ConformanceRow, ...]
    seconds: float = added_field(0.0)


@dataclass(frozen=True)
class PairsJob(Job["Pairs"]):
    """Name every pair of operator and dtype that PyTorch's test suite has for the CPU."""

    target: CpuTarget
    options: dict[str, object]
    compiler: str
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pairs:
    """The pairs, and the toolchain that they are to be asked about."""

    pairs: tuple[str, ...]
    toolchain: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SignTableJob(Job["SignedTable"]):
    """Sign a table with the key that releases are signed with."""

    table: Conformance
    key: SigningKey


@dataclass(frozen=True)
class SignedTable:
    """The DSSE envelope over a table's digest and toolchain."""

    envelope: str


@dataclass(frozen=True)
class KeepTableJob(Job["KeptTable"]):
    """Keep a signed table in the store, and show it in MLflow; `folder` is for what is shown."""

    table: Conformance
    envelope: str
    stores: Stores
    folder: Path


@dataclass(frozen=True)
class KeptTable:
    """Where the table lies in the store, and where MLflow's pages show it.

    `not_shown` says why MLflow doesn't; the table is kept all the same.
    """

    key: str
    page: str = ""
    not_shown: str = ""


@dataclass(frozen=True)
class ReadTablesJob(Job["Tables"]):
    """Read the tables of a target: today's toolchain's, and the newest of another one.

    A step process answers equal jobs once: `at` distinguishes one question from the next.
    """

    stores: Stores
    compiler: str
    target: CpuTarget
    at: float


@dataclass(frozen=True)
class Tables:
    """Today's toolchain's table, and the newest of another toolchain; None where there is none.

    `is_kept` says whether today's is in the store: one that comes with the code may not be.
    """

    today: Conformance | None
    before: Conformance | None
    is_kept: bool = True


@dataclass(frozen=True)
class KnownWrongJob(Job["KnownWrong"]):
    """Look a graph's calls up in the tables of today's toolchain, for each of the targets.

    `calls` are the graph's operators with the dtypes of their tensors, and `options` those of the
    recipe, for which the table without options stands in where there is none.
    """

    stores: Stores
    compiler: str
    targets: tuple[Target, ...]
    options: dict[str, object]
    calls: tuple[str, ...]


@dataclass(frozen=True)
class KnownWrong:
    """What the tables say of the graph: faults to ask it for, and notes for its record."""

    faults: tuple[KnownFault, ...] = ()
    notes: tuple[Finding, ...] = ()


NOTHING_KNOWN = KnownWrong()
