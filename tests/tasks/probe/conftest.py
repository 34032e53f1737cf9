"""A probe of the recommender, and what it finds: once for all tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from handoff.tasks.probe import step as probe
from handoff.tasks.probe.messages import ProbeJob, ProbeResult
from handoff.tasks.release.jobs import RUNNER_SOURCE
from tests.limits import LIMIT_S
from tests.tasks.built_release import BuiltRelease
from tests.tasks.probe.samples import PLANTED, QUICK, bless


@pytest.fixture(scope="package")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that has every fault that a package can have."""
    # Without libtorch, whose own address space is more than the limit that these faults meet.
    program = tmp_path_factory.mktemp("planted") / "planted"
    own = [str(RUNNER_SOURCE / name) for name in ("each.cpp", "json.cpp", "json_parser.cpp")]
    sources = [str(PLANTED / "main.cpp"), *own]
    command = ["g++", "-std=c++17", "-O1", f"-I{RUNNER_SOURCE}", *sources, "-o", str(program)]
    subprocess.run([*command, "-lpthread"], check=True, timeout=LIMIT_S)
    return program


@pytest.fixture(scope="package")
def job(
    built_release: BuiltRelease, runner: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProbeJob]:
    """A probe of the recommender, which finds the program that was built once for all tests."""
    built = built_release.manifest.targets[0]
    assert built.fit is not None
    folder = tmp_path_factory.mktemp("probe")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "build_runner", lambda source, programs: (runner, 0.0))
        yield ProbeJob(
            folder=built_release.package,
            files=built.files,
            fit=built.fit,
            signature=built_release.manifest.signature,
            reference=built_release.reference,
            recipe=built_release.manifest.recipe,
            source=RUNNER_SOURCE,
            programs=folder / "programs",
            workspace=folder / "workspace",
            limits=QUICK,
        )


@pytest.fixture(scope="package")
def probed(job: ProbeJob) -> ProbeResult:
    """What a probe of the recommender finds."""
    return bless(job)
