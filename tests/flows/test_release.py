"""The whole road, by the command line, on a small model: released, listed, pulled and served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from handoff.tasks.release.jobs import names_in_order
from tests.conftest import served_s3
from tests.flows.small_delivery import deliver_and_release, released
from tests.infra.commands.test_cli import assert_is_a_sentence, handoff
from tests.infra.prefect.collector import Collector, collecting
from tests.limits import LIMIT_S
from tests.prefect_server import prefect_server

pytestmark = [pytest.mark.demo, pytest.mark.compile, pytest.mark.server]
# A recipe that nothing can be built with.
WRONG = 'extensions = ["no_such_module@sha256:' + "0" * 64 + '"]\n'


def test_a_release_prints_one_object_that_says_what_was_released(home: Path) -> None:
    answer = released(home)
    assert answer["model"] == "small"
    assert answer["version"] == 1
    assert answer["aliases"] == ["candidate"]
    (target,) = answer["targets"]
    assert target["accepted"]
    assert target["slug"].startswith("cpu-")
    sizes = {deviation["case"] for deviation in target["deviations"]}
    assert {"batch=1 seed=0", "batch=7 seed=1", "batch=1024 seed=0", "batch=8 example=0"} <= sizes
    assert target["speedup"] > 0
    assert answer["manifest"].startswith("sha256:")
    assert answer["report"]


def test_its_steps_ended_in_the_order_that_is_told_before(home: Path) -> None:
    ended = list(json.loads((home / "times" / "small.json").read_text()))
    slugs = {step.split()[1] for step in ended if step.startswith("verify ")}
    planned = names_in_order(slugs)
    # The reference may run beside a compiler.
    assert set(planned) <= set(ended)
    beside = {"reference", *(f"compile {slug}" for slug in slugs)}
    in_turn = [step for step in ended if step in planned and step not in beside]
    assert in_turn == [step for step in planned if step not in beside]
    assert max(map(ended.index, beside)) < ended.index(in_turn[3])
    assert ended.index("optimize") < min(map(ended.index, beside))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.mark.long
def test_a_dry_run_says_what_a_release_would_find_or_build_and_writes_nothing(
    training: Path, home: Path
) -> None:
    dry = ("release", "--dry-run", "--json")
    before = files_of(home)
    again = json.loads(handoff(*dry, str(training / "delivery"), home=home).stdout)
    assert (again["would"], again["version"], again["targets"]) == ("reuse", 1, [])
    anew = json.loads(handoff(*dry, "--rebuild", str(training / "delivery"), home=home).stdout)
    assert (anew["would"], anew["targets"][0]["cached"]) == ("build", "")
    assert "--rebuild" in anew["why"]
    assert anew["targets"][0]["expected_s"] > 0
    assert {"take in", "inspect", "release"} <= set(anew["steps"])
    recipe = training / "other.toml"
    recipe.write_text("[verify]\nseeds = 3\n")
    arguments = (str(training / "delivery"), "--recipe", str(recipe))
    other = json.loads(handoff(*dry, *arguments, home=home).stdout)
    # What is compiled is the same: it is in the cache, but not what the release is made from.
    assert (other["would"], other["targets"][0]["cached"]) == ("build", "package")
    assert other["why"] == "changed since version 1: the recipe"
    assert other["fingerprint"] != again["fingerprint"]
    dry_run = handoff("release", "--dry-run", *arguments, home=home)
    assert "in the cache" in dry_run.stdout
    assert "Nothing was written" in dry_run.stdout
    assert files_of(home) == before


@dataclass(frozen=True)
class Retrained:
    """Other weights of the released graph: their release's one target, and its steps in order."""

    target: dict[str, Any]
    steps: list[str]


@pytest.fixture(scope="module")
def retrained(training: Path, home: Path) -> Retrained:
    """Release other weights of the released graph."""
    other = (training / "small.py").read_text().replace("manual_seed(0)", "manual_seed(7)")
    (training / "retrained.py").write_text(other)
    return Retrained(*deliver_and_release("retrained:build", training, home))


@pytest.mark.long
def test_other_weights_of_a_released_graph_take_its_code_and_are_verified_like_any_other(
    home: Path, retrained: Retrained
) -> None:
    target = retrained.target
    assert target["reused"] == "code"
    assert len(target["deviations"]) == len(released(home)["targets"][0]["deviations"])
    assert target["instruction_sets"] == released(home)["targets"][0]["instruction_sets"]


@pytest.mark.long
def test_other_weights_of_a_released_graph_are_not_timed_again_unless_a_rebuild_is_asked_for(
    training: Path, home: Path, retrained: Retrained
) -> None:
    (first,) = released(home)["targets"]
    target, steps = retrained.target, retrained.steps
    assert target["timings"] == first["timings"]
    (library,) = [file["digest"] for file in first["files"] if file["path"].endswith(".so")]
    assert target["taken_over"]["library"] == library
    assert first["taken_over"] is None
    slug = target["slug"]
    assert {f"verify {slug}", f"probe {slug}"} <= {*steps}
    assert not {f"measure {slug}", f"benchmark {slug}"} & {*steps}
    said = handoff("show", "retrained-build@candidate", home=home).stdout
    assert "the same code" in said
    arguments = ("--rebuild", "--alias", "trial", "--json")
    again = handoff("release", str(training / "retrained-build"), *arguments, home=home)
    (anew,) = json.loads(again.stdout)["targets"]
    assert anew["taken_over"] is None
    assert anew["timings"] != first["timings"]


def test_show_prints_the_same_object_as_the_release(home: Path) -> None:
    expected = released(home)
    for reference in ("small@candidate", "small@1"):
        shown = handoff("show", reference, "--json", home=home)
        assert shown.returncode == 0, shown.stderr
        assert json.loads(shown.stdout) == expected


@pytest.mark.long
def test_a_second_release_of_the_same_is_found_again_unless_its_files_are_gone(
    training: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    first = handoff("release", str(training / "delivery"), "--json", home=home)
    assert first.returncode == 0, first.stderr
    command = ["release", str(training / "delivery"), "--json"]
    again = json.loads(handoff(*command, home=home).stdout)
    assert again == json.loads(first.stdout)
    other_alias = json.loads(handoff(*command, "--alias", "trial", home=home).stdout)
    assert other_alias["version"] == 1
    assert other_alias["aliases"] == ["candidate", "trial"]
    # Its files may be gone from the store: then it is built again, and the same bytes mend it.
    (victim,) = [f for t in again["targets"] for f in t["files"] if f["path"].endswith(".so")]
    stored = home / "store" / "objects" / "sha256" / victim["digest"].removeprefix("sha256:")
    stored.unlink()
    assert json.loads(handoff(*command, home=home).stdout)["version"] == 1
    assert stored.exists()


def test_list_names_the_model_its_version_and_its_alias(home: Path) -> None:
    result = handoff("list", home=home)
    assert result.returncode == 0, result.stderr
    assert "small" in result.stdout
    assert "@candidate" in result.stdout


def test_a_successful_build_leaves_no_files_of_its_own(home: Path) -> None:
    left = [path.name for path in (home / "builds").iterdir() if path.name[:2].isdigit()]
    assert left == []


@pytest.fixture(scope="module")
def pulled(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pull what was released, into a folder that is only read."""
    folder = tmp_path_factory.mktemp("model") / "pulled"
    result = handoff("pull", "small@candidate", "--to", str(folder), home=home)
    assert result.returncode == 0, result.stderr
    return folder


def test_what_was_pulled_verifies_and_reproduces_eager_with_torch_alone(
    home: Path, pulled: Path
) -> None:
    folder = pulled
    result = handoff("verify", str(folder), home=home)
    assert result.returncode == 0, result.stderr
    (slug,) = [path.name for path in folder.iterdir() if path.is_dir()]
    script = (
        "import torch\n"
        "from safetensors.torch import load_file\n"
        f"cases = load_file('{folder}/examples.safetensors')\n"
        f"package = torch._inductor.aoti_load_package('{folder}/{slug}/model.pt2')\n"
        f"library = torch._C._aoti.AOTIModelContainerRunnerCpu('{folder}/{slug}/model.so', 1)\n"
        f"loaded = torch._export.aot_load('{folder}/{slug}/model.so', 'cpu')\n"
        "x, y = cases['0/inputs/x'], cases['0/outputs/0']\n"
        "for got in (package(x), library.run([x])[0], loaded(x)):\n"
        "    torch.testing.assert_close(got, y)\n"
    )
    loading = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert loading.returncode == 0, loading.stderr


@pytest.mark.long
def test_the_comparison_can_be_repeated_with_the_delivery_and_no_other(
    training: Path, home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pulled"
    assert handoff("pull", "small@candidate", "--to", str(folder), home=home).returncode == 0
    trusting = {"HANDOFF_TRUSTED_KEYS": str(home / "keys" / "trusted")}
    repeated = handoff(
        "verify",
        str(folder),
        "--delivery",
        str(training / "delivery"),
        home=tmp_path,
        settings=trusting,
    )
    assert repeated.returncode == 0, repeated.stderr
    assert "accepted again" in repeated.stdout
    assert "on the recorded plan" in repeated.stdout
    another = shutil.copytree(training / "delivery", tmp_path / "another")
    contract = another / "delivery.toml"
    contract.write_text(contract.read_text().replace('commit = ""', 'commit = "another"'))
    arguments = ("verify", str(folder), "--delivery", str(another))
    other = handoff(*arguments, home=tmp_path, settings=trusting)
    assert_is_a_sentence(other, 64, "is not the delivery that small was released from")


def test_a_pulled_file_that_was_changed_is_refused(
    home: Path, pulled: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(pulled, tmp_path / "pulled")
    (library,) = folder.glob("*/model.so")
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.chmod(0o644)
    library.write_bytes(data)
    assert_is_a_sentence(handoff("verify", str(folder), home=home), 6, "model.so")


def found_on(address: str, kind: str) -> list[dict[str, Any]]:
    """Return all of a kind that a Prefect server keeps."""
    request = urllib.request.Request(
        f"{address}/{kind}/filter", b"{}", {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as reply:
        found: list[dict[str, Any]] = json.loads(reply.read())
    return found


@dataclass(frozen=True)
class Served:
    """A home whose releases servers record, keep and trace, and what the first one printed."""

    home: Path
    prefect: str
    settings: dict[str, str]
    collector: Collector
    answer: dict[str, Any]


@pytest.fixture(scope="module")
def served(
    training: Path, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Release the small network with servers for all that a home would have in files.

    What the other release compiled is in the cache.
    """
    folder = tmp_path_factory.mktemp("served")
    packages = Path("builds", "packages")
    shutil.copytree(home / packages, folder / "home" / packages, symlinks=True)
    with (
        prefect_server(folder / "prefect") as address,
        served_s3(os.environ.get("HANDOFF_TEST_S3", "")) as s3,
        collecting() as collector,
    ):
        settings = {
            **s3, "HANDOFF_STORE": "s3://models/handoff", "PREFECT_API_URL": address,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.address,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-login=of-the-team",
        }  # fmt: skip
        arguments = ("release", str(training / "delivery"), "--json")
        result = handoff(*arguments, home=folder / "home", settings=settings)
        assert result.returncode == 0, result.stderr
        yield Served(folder / "home", address, settings, collector, json.loads(result.stdout))


def test_a_release_sends_a_span_for_the_run_and_for_each_step(served: Served) -> None:
    collector = served.collector
    (run,) = collector.runs
    steps = {span.name: span for span in collector.spans if span.parent_span_id == run.span_id}
    assert {"take in", "inspect"} <= {name.partition("-")[0] for name in steps}
    assert {span.trace_id for span in collector.spans} == {run.trace_id}
    assert run.status.code != Status.STATUS_CODE_ERROR
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in collector.spans)
    named = {a.key: a.value.string_value for a in collector.sent[0].resource.attributes}
    assert named["service.name"] == "handoff"
    assert collector.logins == {"of-the-team"}


def test_a_named_prefect_server_records_the_run_and_its_steps(served: Served) -> None:
    address = served.prefect
    steps = {"take in", "optimize", "reference", "upload", "sign and append", "catalogue"}
    deadline = time.monotonic() + LIMIT_S
    names: set[str] = set()
    while not steps <= names and time.monotonic() < deadline:
        names = {
            run["name"]
            for run in found_on(address, "task_runs")
            if run["state_type"] == "COMPLETED"
        }
        time.sleep(0.5)
    ((run,), (report,)) = found_on(address, "flow_runs"), found_on(address, "artifacts")
    assert steps <= names
    assert (report["key"], report["flow_run_id"]) == ("release-small", run["id"])
    assert report["data"].startswith("**small@1** is released as @candidate.")
    assert "speed-up (95 %)" in report["data"]
    # Prefect's pages show entities as they are written.
    assert "&" not in report["data"]
    # And back: MLflow's page of the version leads to the run's.
    client = MlflowClient(f"sqlite:///{served.home / 'mlflow' / 'mlflow.db'}")
    page = address.removesuffix("/api")
    description = client.get_model_version("small", "1").description
    assert description is not None
    assert f"- flow run: [{run['id']}]({page}/" in description


def test_an_unreadable_delivery_is_told_on_its_runs_page_in_its_trace_and_in_mlflow(
    served: Served, training: Path, tmp_path: Path
) -> None:
    delivery = shutil.copytree(training / "delivery", tmp_path / "delivery")
    with (delivery / "module.py").open("a") as stream:
        stream.write("\nimport os\n")
    result = handoff("release", str(delivery), home=served.home, settings=served.settings)
    assert result.returncode == 3, result.stderr
    assert served.collector.runs[-1].status.code == Status.STATUS_CODE_ERROR
    (run,) = (one for one in found_on(served.prefect, "flow_runs") if one["state_type"] == "FAILED")
    (report,) = (
        one
        for one in found_on(served.prefect, "artifacts")
        # Prefect keeps one of its own, without a key, of each step that failed.
        if one["flow_run_id"] == run["id"] and one["key"]
    )
    assert run["name"] == "release small"
    assert report["key"] == "release-small"
    assert report["data"].startswith("Refused: nothing was released of small.\n\nmodule.py")
    assert "**What to do:**" in report["data"]
    client = MlflowClient(f"sqlite:///{served.home / 'mlflow' / 'mlflow.db'}")
    (experiment,) = (one for one in client.search_experiments() if one.name == "handoff")
    (logged,) = client.search_runs([experiment.experiment_id], "tags.`handoff.outcome` = 'refused'")
    assert (logged.info.run_name, logged.info.status) == ("small refused", "FAILED")
    assert logged.data.tags["handoff.refused_by"] == "DeliveryUnreadable"
    # Neither is anything registered, nor is what was released before touched.
    assert len(client.search_model_versions("name = 'small'")) == 1


def test_with_s3_configured_packages_and_mlflows_artifacts_lie_there(
    served: Served, tmp_path: Path
) -> None:
    home, settings = served.home, served.settings
    # Compiled by the other release, of the same delivery.
    assert served.answer["targets"][0]["reused"] == "package"
    assert served.answer["report"] == "s3://models/handoff/models/small/versions/1/report.html"
    pulled = tmp_path / "pulled"
    result = handoff("pull", "small@candidate", "--to", str(pulled), home=home, settings=settings)
    assert result.returncode == 0, result.stderr
    assert handoff("verify", str(pulled), home=home).returncode == 0
    assert not (home / "store").exists()
    assert not (home / "mlflow" / "artifacts").exists()


def test_a_night_that_lost_a_model_finds_it_again_once_its_recipe_is_mended(served: Served) -> None:
    """The last of them, since its flow runs and traces are in nobody else's way there."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return handoff(*arguments, home=served.home, settings=served.settings)

    promoted = run("promote", "small@candidate", "--to", "production")
    assert promoted.returncode == 0, promoted.stderr
    recipes = served.home / "recipes"
    recipes.mkdir()
    (recipes / "small.toml").write_text(WRONG)
    lost = run("recompile")
    assert lost.returncode == 1, lost.stderr
    assert "no_such_module" in lost.stdout
    assert "1 of 1 models could not be rebuilt" in lost.stderr
    assert "What serves them stays as it was" in lost.stderr
    assert "Traceback" not in lost.stdout + lost.stderr
    assert json.loads(run("show", "small@production", "--json").stdout)["version"] == 1
    (recipes / "small.toml").unlink()
    assert run("recompile", "small").returncode == 0
