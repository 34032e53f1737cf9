"""Each class of refusal: a case of it, what it says to do, and that doing so gets further.

Classes whose remedy is a machine's or a server's are walked where there is one (`ELSEWHERE`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from handoff.artifacts.delivery.contract import CONTRACT_FILE, read_contract
from handoff.artifacts.errors import (
    ERRORS,
)
from handoff.artifacts.nightly.night import write_night
from handoff.artifacts.recipe.recipe import Recipe, read_recipe
from handoff.artifacts.release.manifest import read_manifest
from handoff.artifacts.stores.opening import open_store
from handoff.infra.commands.release import require_compiler
from handoff.tasks.registry.assemble import require_trial_alias
from tests.artifacts.nightly.nights import busy_night, night
from tests.artifacts.samples import write_release

CONTRACT = """
format = 1
[model]
name = "toy"
[[inputs]]
name = "x"
dtype = "float32"
shape = [4]
"""


def wrong_recipe(folder: Path, *, done: bool) -> None:
    path = folder / "recipe.toml"
    path.write_text("targets = ['cpu-avx2']" if done else "targets = ['cpu-avx9']")
    read_recipe(path)


def no_contract(folder: Path, *, done: bool) -> None:
    if done:
        (folder / CONTRACT_FILE).write_text(CONTRACT)
    read_contract(folder)


def alias_of_what_nobody_ran(_: Path, *, done: bool) -> None:
    recipe = Recipe(targets=("cuda-sm80",))
    require_trial_alias(recipe, "candidate" if done else "production")


def nothing_pulled(folder: Path, *, done: bool) -> None:
    if done:
        write_release(folder / "pulled")
    read_manifest(folder / "pulled")


def two_nights_in_a_second(folder: Path, *, done: bool) -> None:
    store = open_store(str(folder / "store"))
    write_night(store, busy_night())
    other = replace(busy_night(), rows=())
    write_night(store, night(3) if done else other)


def no_compiler(folder: Path, *, done: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CXX", "g++" if done else str(folder / "no-such-compiler"))
        require_compiler()


Case = Callable[..., None]
WALKED: dict[str, tuple[Case, str]] = {
    "UsageProblem": (wrong_recipe, "Did you mean cpu-avx2?"),
    "DeliveryUnreadable": (no_contract, "'handoff init FOLDER' writes one"),
    "BlessingRefused": (alias_of_what_nobody_ran, "Leave --alias out"),
    "PackageRefused": (nothing_pulled, "Pull one with"),
    "StoreFailed": (two_nights_in_a_second, "Run one night at a time"),
    "EnvironmentLacking": (no_compiler, "set CXX to a compiler"),
}

# What has to be there to do what these say, and the tests that refuse with them.
ELSEWHERE = {
    "StepCrashed": "a process that crashes: tests/infra/engine/test_child.py",
    "BudgetSpent": "a step over its limit: tests/infra/engine/test_child.py",
    "BuildCrashed": "a compiler that is killed: tests/tasks/registry/test_assemble.py",
    "DeliveryUnsound": "findings, a program each: tests/infra/commands/test_explain.py",
    "DeliveryUnreachable": "servers: tests/tasks/fetch/test_https.py",
    "NightFailed": "a night: tests/flows/test_recompile.py",
    "RegistryFailed": "a ledger: tests/tasks/registry/test_ledger.py",
    "NotShownYet": "an MLflow that fails: tests/studies/outages/mlflow_faults.py",
    "InputsRefused": "a loaded package: tests/artifacts/serve/test_loader.py",
}


def test_every_class_of_refusal_has_its_walk_or_its_place() -> None:
    assert {*WALKED} | {*ELSEWHERE} == {*ERRORS}
    assert not {*WALKED} & {*ELSEWHERE}
    root = Path(__file__).parents[3]
    for told in ELSEWHERE.values():
        assert (root / told.rpartition(": ")[2]).is_file(), told


@pytest.mark.parametrize("name", WALKED)
def test_doing_what_the_remedy_says_gets_further(name: str, tmp_path: Path) -> None:
    case, remedy = WALKED[name]
    if name == "EnvironmentLacking" and shutil.which("g++") is None:
        pytest.skip("there is no g++ here, which the remedy asks for")
    with pytest.raises(ERRORS[name]) as caught:
        case(tmp_path, done=False)
    assert type(caught.value) is ERRORS[name]
    assert remedy in caught.value.remedy
    assert str(caught.value).count("expected") == 1
    case(tmp_path, done=True)
