"""The command line's contract, as a person or a script meets it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from handoff.artifacts.recipe.choices import DEFAULT_PASSES
from handoff.artifacts.release.ledger import SeenLedgers
from handoff.infra.commands import doctor
from handoff.infra.commands.inspection import list_passes
from handoff.infra.settings import read_settings
from handoff.tasks.compile.cross.fatbinary import find_fatbinary
from tests.limits import LIMIT_S
from tests.mlflow_server import copy_mlflow_tables
from tests.prefect_server import copy_prefect_database
from tests.shared_tools import share_built

COMMANDS = (
    "deliver", "init", "inspect", "release", "list", "show", "pull", "verify", "ui",
    "passes", "doctor", "explain", "completion",
)  # fmt: skip


def handoff(
    *arguments: str,
    home: Path,
    cwd: Path | None = None,
    settings: dict[str, str] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run `handoff` with its state in `home`; return what it printed and its exit code."""
    if arguments[0] == "release":
        share_built(home / "builds")
        # What is only asked about writes nothing.
        if "--dry-run" not in arguments:
            copy_prefect_database(home / "prefect")
            copy_mlflow_tables(home / "mlflow" / "mlflow.db")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HANDOFF_", "AWS_", "MLFLOW"))}
    return subprocess.run(
        [sys.executable, "-m", "handoff", *arguments],
        env={**kept, "HANDOFF_HOME": str(home), **(settings or {}), **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def assert_is_a_sentence(result: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    """Assert the exit code, that every part is on standard error, and that no trace is."""
    assert result.returncode == code, result.stderr
    for part in parts:
        assert part in result.stderr
    assert "Traceback" not in result.stdout + result.stderr


def test_help_names_every_command_and_the_exit_codes(tmp_path: Path) -> None:
    result = handoff("--help", home=tmp_path)
    assert result.returncode == 0
    for command in COMMANDS:
        assert f"  {command} " in result.stdout
    assert "4 a package was refused" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, tmp_path: Path) -> None:
    result = handoff(command, "--help", home=tmp_path)
    assert result.returncode == 0
    assert f"handoff {command}" in result.stdout


def test_the_command_line_and_the_flows_import_no_torch() -> None:
    code = (
        "import sys, handoff.infra.cli.main, handoff.infra.commands.release\n"
        "import handoff.flows.release\n"
        "sys.exit(', '.join(m for m in ('torch', 'mlflow', 'boto3') if m in sys.modules) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_help_imports_neither_prefect_nor_mlflow_nor_pydantic() -> None:
    code = (
        "import sys, handoff.infra.cli.main\n"
        "sys.exit(', '.join(m for m in ('prefect', 'mlflow', 'pydantic') if m in sys.modules) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_an_unknown_option_is_told_with_the_help_to_look_at(tmp_path: Path) -> None:
    result = handoff("release", "somewhere", "--fast", home=tmp_path)
    assert_is_a_sentence(result, 64, "--fast", "release --help")


def test_an_unknown_command_is_reported(tmp_path: Path) -> None:
    assert_is_a_sentence(handoff("relase", home=tmp_path), 64, "relase")


@pytest.mark.parametrize("command", ["inspect", "release"])
def test_a_missing_folder_is_not_a_delivery(command: str, tmp_path: Path) -> None:
    result = handoff(command, str(tmp_path / "none"), home=tmp_path / "home")
    assert_is_a_sentence(result, 3, "none", "nothing of that name", "handoff deliver")


@pytest.mark.parametrize("command", ["inspect", "release"])
def test_a_file_is_not_a_delivery(command: str, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes(b"weights")
    assert_is_a_sentence(handoff(command, str(file), home=tmp_path / "home"), 3, "got a file")


def test_an_empty_folder_is_not_a_delivery(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = handoff("inspect", str(empty), home=tmp_path / "home")
    assert_is_a_sentence(result, 3, "module.py", "handoff deliver")


def test_a_home_that_is_a_file_is_told_before_anything_is_started(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("not a folder")
    delivery = tmp_path / "delivery"
    delivery.mkdir()
    (delivery / "module.py").touch()
    assert_is_a_sentence(handoff("release", str(delivery), home=home), 1, "HANDOFF_HOME", str(home))


def test_a_missing_compiler_is_told_before_anything_is_started(tmp_path: Path) -> None:
    delivery = tmp_path / "delivery"
    delivery.mkdir()
    (delivery / "module.py").touch()
    result = handoff("release", str(delivery), home=tmp_path / "home", CXX="no-such-g++")
    assert_is_a_sentence(result, 1, "no-such-g++", "Install g++")
    # Only what the tests themselves put there.
    left = {path.name for path in (tmp_path / "home" / "builds").iterdir()}
    assert left == {"programs", "compiler"}


def test_a_store_of_another_kind_is_reported(tmp_path: Path) -> None:
    result = handoff("list", home=tmp_path, HANDOFF_STORE="ftp://somewhere")
    assert_is_a_sentence(result, 64, "HANDOFF_STORE", "s3://bucket/prefix")


def test_a_wrong_recipe_is_told_with_its_place(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[options]\nfrezing = true\n")
    delivery = tmp_path / "delivery"
    delivery.mkdir()
    (delivery / "module.py").touch()
    result = handoff("release", str(delivery), "--recipe", str(recipe), home=tmp_path / "home")
    assert_is_a_sentence(result, 64, "recipe.toml", "frezing", "freezing")


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    result = handoff("inspect", str(tmp_path / "none"), "--debug", home=tmp_path / "home")
    assert result.returncode == 3
    assert "Traceback" in result.stderr


def test_doctor_says_what_a_release_needs(tmp_path: Path) -> None:
    result = handoff("doctor", "--json", home=tmp_path / "home")
    answer = json.loads(result.stdout)
    names = {check["name"] for check in answer["checks"]}
    assert {"torch", "compiler", "processor", "home", "registry", "store"} <= names
    # Who would be, is asked once there is a Prefect server.
    assert "notified" not in names
    assert result.returncode == (0 if answer["ok"] else 1)


def test_doctor_says_who_is_notified_once_there_is_a_prefect_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = handoff(
        "doctor", "--json", home=tmp_path, PREFECT_API_URL="http://127.0.0.1:9/api",
        HANDOFF_NOTIFY="slack-webhook/team", HANDOFF_FORGE="github",
    )  # fmt: skip
    checks = json.loads(found.stdout)["checks"]
    notified = [one["found"] for one in checks if one["name"] == "notified"]
    assert notified == ["messages through slack-webhook/team and commit statuses on github"]
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    for name in ("HANDOFF_NOTIFY", "HANDOFF_FORGE"):
        monkeypatch.delenv(name, raising=False)
    nobody = "nobody, of a refused release or a bad night"
    assert doctor._notifications(read_settings()).found == nobody


def test_doctor_misses_a_compiler_that_is_not_there(tmp_path: Path) -> None:
    result = handoff("doctor", home=tmp_path / "home", CXX="no-such-g++")
    assert result.returncode == 1
    assert "missing  compiler" in result.stdout


def test_doctor_misses_a_store_that_lacks_ledgers_which_were_seen_in_it(tmp_path: Path) -> None:
    def asked() -> str:
        text = handoff("doctor", home=tmp_path, HANDOFF_STORE=str(store)).stdout
        (line,) = (line for line in text.splitlines() if re.search(r"\bstore\b", line[:20]))
        return line

    store = tmp_path / "mounted"
    (store / "models" / "there").mkdir(parents=True)
    assert asked().startswith("ok")
    for model in ("there", "ranker"):
        SeenLedgers(tmp_path / "ledgers" / "seen.json").note(
            str(store), model, (1, "sha256:0"), since=(0, "")
        )
    assert asked().startswith("missing")
    assert "that of ranker" in asked()
    (store / "models" / "ranker").mkdir()
    assert asked().startswith("ok")


@pytest.mark.parametrize("is_there", [True, False])
def test_doctor_tells_of_what_packages_for_several_gpus_take(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if find_fatbinary() is not None:
        pytest.skip("it is installed beside torch")
    if is_there:
        (tmp_path / "fatbinary").touch(mode=0o755)
    check = doctor._fatbinary()
    assert check.answer == ("ok" if is_there else "note")
    assert is_there or "packages for GPUs before sm_90, or for several, aren't built" in check.found
    assert is_there or "pip install nvidia-cuda-nvcc" in check.remedy


def test_every_pass_is_listed_with_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = json.loads(handoff("passes", "--json", home=tmp_path).stdout)["passes"]
    assert [one["name"] for one in listed if one["default"]] == [c.name for c in DEFAULT_PASSES]
    assert all(len(one["does"]) > 20 and one["level"] in ("fx", "aten") for one in listed)
    # As text, it is printed here: a second program would import torch, too.
    list_passes(as_json=False)
    text = capsys.readouterr().out
    assert all(one["name"] in text for one in listed)


def test_nothing_registered_is_said_in_words(tmp_path: Path) -> None:
    result = handoff("list", home=tmp_path / "home")
    assert result.returncode == 0, result.stderr
    assert "Nothing is registered in " in result.stdout


def test_the_ui_is_not_shown_to_the_network(tmp_path: Path) -> None:
    result = handoff("ui", "--host", "0.0.0.0", home=tmp_path / "home")
    assert_is_a_sentence(result, 64, "loopback")


def test_a_deliver_of_a_module_that_is_not_there_is_reported(tmp_path: Path) -> None:
    result = handoff("deliver", "nowhere:build", "--to", str(tmp_path / "d"), home=tmp_path)
    assert_is_a_sentence(result, 64, "nowhere")
    assert not (tmp_path / "d").exists()


def test_a_refusal_that_may_pass_names_the_line_that_repeats_it_and_where_to_read_on(
    tmp_path: Path,
) -> None:
    delivery = tmp_path / "a delivery"
    delivery.mkdir()
    (delivery / "module.py").touch()
    asked = ("release", str(delivery))
    result = handoff(*asked, home=tmp_path / "home", CXX="no-such-g++")
    assert_is_a_sentence(result, 1, f"again: handoff release '{delivery}'", "handoff explain")
    quiet = handoff(*asked, "--quiet", home=tmp_path / "home", CXX="no-such-g++")
    assert_is_a_sentence(quiet, 1, "no-such-g++")
    assert len(quiet.stderr.splitlines()) == 1


def test_a_refusal_that_stays_is_not_repeated(tmp_path: Path) -> None:
    result = handoff("inspect", str(tmp_path / "none"), home=tmp_path / "home")
    assert_is_a_sentence(result, 3, "more:  handoff explain DeliveryUnreadable")
    assert "again:" not in result.stderr


def test_a_promotion_of_no_version_in_particular_is_refused(tmp_path: Path) -> None:
    result = handoff("promote", "toy", home=tmp_path / "home")
    assert_is_a_sentence(result, 64, "which version of toy", "NAME@ALIAS", "toy@candidate")


@pytest.mark.parametrize("command", ["inspect", "release"])
def test_a_pass_that_is_nobodys_is_told_before_the_delivery_is_looked_at(
    command: str, tmp_path: Path
) -> None:
    delivery, recipe = tmp_path / "delivery", tmp_path / "recipe.toml"
    delivery.mkdir()
    (delivery / "module.py").touch()
    recipe.write_text('passes = [{ name = "fold-batchnorm" }]\n')
    result = handoff(command, str(delivery), "--recipe", str(recipe), home=tmp_path / "home")
    assert_is_a_sentence(result, 64, "a pass that doesn't exist", "got fold-batchnorm")


def test_a_refusal_names_the_folder_that_was_given_and_not_our_copy(tmp_path: Path) -> None:
    delivery = tmp_path / "mine"
    delivery.mkdir()
    (delivery / "module.py").touch()
    for name in ("module.py", "__init__.py", "state_dict.pt"):
        (delivery / name).write_text("")
    result = handoff("inspect", str(delivery), home=tmp_path)
    assert_is_a_sentence(result, 3, f"{delivery} has no contract")
    assert "staging" not in result.stderr
