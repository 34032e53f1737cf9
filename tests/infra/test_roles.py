"""A training or a serving machine: the wheel and its base dependencies, and no more."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from handoff.infra.extras import EXTRAS, extra_of
from tests.infra.roles import required_distributions, role, run, top_level_paths

ROOT = Path(__file__).parents[2]
# Modules that only a type checker imports, or that are looked for and done without; and the one
# that prepare.py has in the servers' image, which holds nothing of Handoff's.
_DONE_WITHOUT = {"mypy_boto3_s3", "kubernetes_asyncio"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and its base dependencies."""
    return role(tmp_path_factory.mktemp("role"))


def test_nothing_of_a_release_is_there_and_doctor_finds_nothing_missing(
    python: Path, tmp_path: Path
) -> None:
    names = sorted({name for names in EXTRAS.values() for name in names})
    code = f"import importlib.util as i; print([n for n in {names} if i.find_spec(n)])"
    assert run(python, tmp_path, "-c", code)[1].strip() == "[]"
    status, output, errors = run(python, tmp_path, "-m", "handoff", "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(output)["checks"]}
    assert status == 0, (output, errors)
    assert checks["[release]"]["answer"] == "note"
    assert "handoff[release]" in checks["[release]"]["remedy"]
    assert not {"compiler", "registry", "flows"} & set(checks)


@pytest.mark.parametrize(
    ("arguments", "settings", "extra"),
    [
        (("release", "."), {}, "release"),
        (("promote", "toy@1"), {}, "release"),
        (("rollback", "toy"), {}, "release"),
        (("sync",), {}, "release"),
        (("ui",), {}, "release"),
        (("deploy",), {"PREFECT_API_URL": "http://127.0.0.1:9/api"}, "release"),
        (("up",), {}, "stack"),
        (("list",), {"HANDOFF_STORE": "s3://bucket/prefix"}, "s3"),
        (("pull", "toy", "--to", "x"), {"HANDOFF_STORE": "s3://bucket/prefix"}, "s3"),
    ],
)
def test_a_command_of_another_role_names_the_extra_that_it_needs(
    arguments: tuple[str, ...], settings: dict[str, str], extra: str, python: Path, tmp_path: Path
) -> None:
    (tmp_path / "module.py").touch()  # a folder without one is no delivery
    status, _, errors = run(python, tmp_path, "-m", "handoff", *arguments, **settings)
    assert status == 1
    assert f"expected handoff[{extra}], got handoff without it. Install it: pip install" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("call", "settings", "extra"),
    [
        ("release('.')", {}, "release"),
        ("promote('toy@1')", {}, "release"),
        ("pull('toy', 'x')", {"HANDOFF_STORE": "s3://bucket/prefix"}, "s3"),
    ],
)
def test_a_function_of_another_role_names_it_too(
    call: str, settings: dict[str, str], extra: str, python: Path, tmp_path: Path
) -> None:
    code = f"import handoff\ntry: handoff.{call}\nexcept handoff.HandoffError as e: print(repr(e))"
    (tmp_path / "module.py").touch()  # a folder without one is no delivery
    _, output, errors = run(python, tmp_path, "-c", code, **settings)
    assert output.startswith("EnvironmentLacking("), errors
    assert f"handoff[{extra}]" in output


def test_each_package_that_is_imported_is_in_the_base_or_brought_by_a_named_extra() -> None:
    base = {
        top.stem
        for found in required_distributions("handoff").values()
        for top in top_level_paths(found)
    }
    lost = {
        (module, str(file.relative_to(ROOT)))
        for room in ("artifacts", "tasks", "flows", "infra")
        for file in (ROOT / room).rglob("*.py")
        for module in imports_of(file) - base - sys.stdlib_module_names - _DONE_WITHOUT
        if module != "handoff" and extra_of(module) is None
    }
    assert not lost


def imports_of(file: Path) -> set[str]:
    """Return the top-level names that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}
