"""What a monitoring system is given: figures of real registries, homes and Prefect servers."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from handoff.artifacts.errors import EnvironmentLacking, StoreUnreachable
from handoff.artifacts.night import write_night
from handoff.artifacts.stores.store import Store, open_store
from handoff.infra.metrics import families as known
from handoff.infra.metrics.collector import MetricsCollector
from handoff.infra.metrics.families import FAMILIES, Sample
from handoff.infra.metrics.sources import home_samples, prefect_samples, store_samples
from handoff.infra.metrics.store_usage import StoreUse
from handoff.infra.settings import Settings
from handoff.infra.terminal.step_times import keep_times, times_folder
from handoff.infra.triggers.arrival import Arrival
from handoff.infra.triggers.poster import Poster
from handoff.infra.triggers.spool import Spool
from tests.artifacts.nights import busy_night
from tests.docs.pages import ROOT
from tests.limits import LIMIT_S
from tests.prefect_server import free_port
from tests.served_stack import wait_until
from tests.tasks.registry.registering import SomeRegistry, some_registry
from tests.tasks.registry.test_promoting import slower

FOLDER = ROOT / "infra" / "metrics" / "prometheus"


@pytest.fixture
def registry(tmp_path: Path) -> SomeRegistry:
    return some_registry(tmp_path)


def settings_of(registry: SomeRegistry, home: Path) -> Settings:
    return Settings(home, registry.stores, "", registry.key)


def by_labels(samples: list[Sample], family: known.Family) -> dict[tuple[str, ...], float]:
    return {one.labels: one.value for one in samples if one.family == family}


def test_versions_aliases_and_figures_of_what_serves_are_read_off_the_ledgers(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    registry.release(timings=slower(2.0))
    registry.promote(1)
    registry.release("2026-11-22T00:00:00+00:00")
    kept: dict[Any, Any] = {}
    found = list(store_samples(settings_of(registry, tmp_path / "home"), kept))
    assert by_labels(found, known.VERSIONS) == {("toy",): 2}
    aliases = {("toy", "production"): 1, ("toy", "candidate"): 2}
    assert by_labels(found, known.ALIAS) == aliases
    ((labels, speed),) = by_labels(found, known.SPEEDUP).items()
    assert (labels[:2], speed) == (("toy", "production"), 2.0)
    assert by_labels(found, known.LEDGER)[("toy",)] > 0
    assert by_labels(found, known.NIGHT_ENDED) == {}
    # What is signed doesn't change, and is read once.
    assert len(kept) == 1


def test_the_newest_night_is_counted_by_outcome(registry: SomeRegistry, tmp_path: Path) -> None:
    night = busy_night()
    write_night(open_store(registry.stores.objects), night)
    found = list(store_samples(settings_of(registry, tmp_path / "home"), {}))
    counted = by_labels(found, known.NIGHT_MODELS)
    assert sum(counted.values()) == len(night.rows)
    assert counted[("replaced",)] == sum(row.outcome == "replaced" for row in night.rows)
    assert by_labels(found, known.NIGHT_ENDED)[()] > 1.7e9
    built = by_labels(found, known.NIGHT_PACKAGES)
    assert sum(built.values()) == sum(len(row.comparisons) for row in night.rows) > 0
    assert {labels[0] for labels in built} <= {"nothing", "code", "package"}


def test_what_a_store_holds_is_listed_once_an_hour(registry: SomeRegistry) -> None:
    now, opened = [0.0], [0]

    def open_it() -> Store:
        opened[0] += 1
        return open_store(registry.stores.objects)

    use = StoreUse(open_it, clock=lambda: now[0])
    registry.release()
    files = [path for path in Path(registry.stores.objects).rglob("*") if path.is_file()]
    wanted = {known.STORE_OBJECTS: len(files), known.STORE_BYTES: sum(map(size_of, files))}
    assert dict(by_family(use)) == wanted
    registry.release("2026-11-22T00:00:00+00:00")
    assert dict(by_family(use)) == wanted
    assert opened == [1]
    now[0] = 3601.0
    wait_until("it is listed again", lambda: dict(by_family(use)) != wanted, 30)
    assert opened == [2]


def by_family(use: StoreUse) -> Iterator[tuple[known.Family, float]]:
    return ((one.family, one.value) for one in use.samples())


def size_of(path: Path) -> int:
    return path.stat().st_size


def test_a_store_that_cannot_be_listed_says_so_and_is_listed_when_it_can(
    registry: SomeRegistry,
) -> None:
    registry.release()
    is_away = [True]

    def open_it() -> Store:
        if is_away[0]:
            raise StoreUnreachable("away", expected="an answer", got="none", remedy="Wait")
        return open_store(registry.stores.objects)

    use = StoreUse(open_it)
    for _ in range(2):
        with pytest.raises(StoreUnreachable):
            list(use.samples())
    is_away[0] = False
    assert [one.family for one in use.samples()] == [known.STORE_OBJECTS, known.STORE_BYTES]


def test_disks_commits_that_wait_and_step_times_are_read_off_the_home(
    registry: SomeRegistry, tmp_path: Path
) -> None:
    settings = settings_of(registry, tmp_path / "home")
    (tmp_path / "home").mkdir()
    Path(registry.stores.objects).mkdir()
    for took_s in (3.0, 5.0, 4.0):
        keep_times(times_folder(settings), "toy", {"verify cpu": took_s})
    Spool(settings.home).keep(Arrival("/data/toy", "toy", "", "", "ada"), "queue")
    found = list(home_samples(settings))
    assert by_labels(found, known.STEP) == {("toy", "verify cpu"): 4.0}
    assert by_labels(found, known.WAITING) == {(): 1}
    assert by_labels(found, known.SET_ASIDE) == {(): 0}
    free, size = by_labels(found, known.DISK_FREE), by_labels(found, known.DISK_SIZE)
    assert set(free) == set(size) == {("home",), ("store",)}
    assert all(0 < free[folder] <= size[folder] for folder in free)


@pytest.mark.server
def test_runs_queues_and_workers_are_asked_of_prefect(client: Any) -> None:
    from prefect import states

    before = list(prefect_samples(client))
    poster = Poster(client)
    waiting = poster.post(Arrival("/data/toy", "toy", "", "c0ffee1", "ada"))
    failed = poster.post(Arrival("/data/other", "other", "", "c0ffee1", "ada"))
    client.set_flow_run_state(failed.id, states.Failed(message="refused"), force=True)
    now = list(prefect_samples(client))

    def more(family: known.Family, *labels: str) -> float:
        return by_labels(now, family)[labels] - by_labels(before, family)[labels]

    assert more(known.FLOW_RUNS, "release", "failed") == 1
    assert more(known.FLOW_RUNS, "release", "scheduled") == 1
    assert more(known.FLOW_RUNS, "recompile", "failed") == 0
    assert more(known.QUEUED, "handoff-build") + more(known.QUEUED, "handoff-control") == 1
    assert set(by_labels(now, known.WORKERS).values()) == {0}
    client.set_flow_run_state(waiting.id, states.Cancelled(), force=True)


def test_a_source_that_is_away_has_no_old_figures_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    away, looks, now = [False], [0], [0.0]

    def read() -> Iterator[Sample]:
        looks[0] += 1
        yield Sample(known.WAITING, (), looks[0])
        if away[0]:
            raise EnvironmentLacking("gone", expected="an answer", got="none", remedy="Wait")

    figures = MetricsCollector({"home": read}, fresh_s=10.0, clock=lambda: now[0])
    up = Sample(known.SOURCE_UP, ("home",), 1)
    assert figures.samples() == [up, Sample(known.WAITING, (), 1)]
    now[0] = 9.0
    assert figures.samples() == [up, Sample(known.WAITING, (), 1)], "many who ask cost one look"
    now[0], away[0] = 20.0, True
    assert figures.samples() == [Sample(known.SOURCE_UP, ("home",), 0)]
    now[0] = 40.0
    assert figures.samples() == [Sample(known.SOURCE_UP, ("home",), 0)]
    assert caplog.text.count("no figures from the home") == 1
    now[0], away[0] = 60.0, False
    assert figures.samples() == [up, Sample(known.WAITING, (), 4)]


def exposed(*samples: Sample) -> str:
    registry = CollectorRegistry()
    registry.register(MetricsCollector({"store": lambda: samples}))
    return generate_latest(registry).decode()


def test_what_is_given_is_prometheus_text_whatever_a_model_is_called(tmp_path: Path) -> None:
    hostile = 'a"b\\c\nd\x1b[2J'
    text = exposed(Sample(known.VERSIONS, (hostile,), 3), Sample(known.WAITING, (), 0))
    (versions,) = [one for one in text_string_to_metric_families(text)
                   if one.name == known.VERSIONS.name]  # fmt: skip
    (sample,) = versions.samples
    assert (sample.labels["model"], sample.value) == ('a"b\\c\\nd\\x1b[2J', 3.0)
    if promtool := shutil.which("promtool"):
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr


def expressions() -> Iterator[str]:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def test_dashboard_and_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    labels = {family.name: set(family.labels) for family in FAMILIES}
    asked = list(expressions())
    assert len(asked) >= 15
    for expression in asked:
        names = re.findall(r"\bhandoff_[a-z_]+", expression)
        assert names, expression
        for name in names:
            assert name in labels, expression
        for name, chosen in re.findall(r"(handoff_[a-z_]+)\{([^}]*)\}", expression):
            assert {part.split("=")[0] for part in chosen.split(",")} <= labels[name], expression
    # Each is on the dashboard or alarms: one that nobody looks at wouldn't be missed.
    assert {name for one in asked for name in re.findall(r"\bhandoff_[a-z_]+", one)} == set(labels)


def test_each_panel_of_the_dashboard_has_what_the_types_of_grafana_ask_for() -> None:
    """As `Dashboard` in @grafana/schema 13.2 has it, whose compiler found what lacked here."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    assert dashboard["schemaVersion"] >= 36
    for panel in dashboard["panels"]:
        fields = panel.get("fieldConfig", {"defaults": {}, "overrides": []})
        assert isinstance(fields["overrides"], list), panel["title"]
        assert isinstance(fields["defaults"], dict), panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus has promtool")
def test_prometheus_takes_the_configuration_and_the_alerts() -> None:
    for command in (("config", "scrape.yaml"), ("rules", "alerts.yaml")):
        checked = subprocess.run(
            ["promtool", "check", *command], cwd=FOLDER, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_docs_name_every_metric() -> None:
    page = (ROOT / "docs" / "automation.md").read_text()
    for family in FAMILIES:
        assert f"`{family.name}`" in page


def test_the_command_answers_prometheus_and_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    port, environment = free_port(), {"HANDOFF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "handoff", "metrics", "--port", str(port)]

    def get() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as serving:
        try:
            wait_until("it answers", lambda: _answers(get))
            assert 'handoff_source_up{source="store"} 1.0' in get()
            second = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            assert second.returncode == 64
            assert "can't be used: expected a free port" in second.stderr
        finally:
            serving.send_signal(signal.SIGTERM)
        assert serving.wait(timeout=LIMIT_S) == 0
    once = subprocess.run(
        [*command[:-2], "--once"], env=environment, capture_output=True, text=True, check=True
    )
    assert "# HELP handoff_source_up" in once.stdout


def _answers(get: Any) -> bool:
    try:
        return bool(get())
    except OSError:
        return False
