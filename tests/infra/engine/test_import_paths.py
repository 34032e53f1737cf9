"""The folder that one stands in: what lies there is data, whatever names it has."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from handoff.artifacts.errors import DeliveryUnreadable
from handoff.artifacts.isolation import isolated_command
from handoff.infra.engine.child import ProcessPlan, StepProcess
from handoff.infra.engine.environments import with_absolute_paths
from handoff.tasks.intake.messages import IntakeJob
from tests.limits import LIMIT_S

ROOT = Path(__file__).parents[3]
SCRIPT = (str(Path(sys.executable).with_name("handoff")),)
MODULE = (sys.executable, "-m", "handoff")
SAFE_MODULE = (sys.executable, "-P", "-m", "handoff")
# Of ours, of Python's library, and of libraries of ours; imported early, late, or in a child only.
PLANTED = ("torch", "ctypes", "json", "numpy", "artifacts", "tasks", "flows", "click", "sympy")
CUSTOMIZING = ("sitecustomize", "usercustomize")
_FACTORY = """
    import torch
    from torch import nn
    import json, ctypes, numpy  # theirs are hidden, as torch's is
    from tasks.nets import Net
    from infra.sizes import WIDTH
    import flows, artifacts
    assert hasattr(json, "loads") and hasattr(ctypes, "CDLL") and hasattr(numpy, "zeros")
    assert flows.OURS == artifacts.OURS == "the trainer's"

    def build():
        from tasks.late import depth
        return Net(WIDTH, depth()).eval(), (torch.randn(3, WIDTH),)
"""
_NETS = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width, depth):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))

        def forward(self, x):
            from tasks.scaling import factor
            return self.layers(x) * factor()
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))


def plant(folder: Path, marks: Path, names: tuple[str, ...]) -> None:
    """Write modules that leave a mark where they are run."""
    for name in names:
        write(folder / f"{name}.py", f"open({str(marks / name)!r}, 'w').close()\n")


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, marks: Path) -> Path:
    """A training repository with packages of our names, and modules of everybody's."""
    folder = tmp_path_factory.mktemp("repository")
    write(folder / "tasks" / "__init__.py", "")
    write(folder / "tasks" / "making.py", _FACTORY)
    write(folder / "tasks" / "nets.py", _NETS)
    write(folder / "tasks" / "late.py", "def depth():\n    return 2\n")
    write(folder / "tasks" / "scaling.py", "def factor():\n    return 0.5\n")
    write(folder / "infra" / "__init__.py", "")
    write(folder / "infra" / "sizes.py", "WIDTH = 4\n")
    for name in ("flows", "artifacts"):
        write(folder / name / "__init__.py", 'OURS = "the trainer\'s"\n')
    plant(folder, marks, ("torch", "ctypes", "json", "numpy", *CUSTOMIZING))
    plant(folder / "sub", marks, (*PLANTED, *CUSTOMIZING))
    return folder


def run(
    command: tuple[str, ...], *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    home = cwd.parent / "home"
    return subprocess.run(
        [*command, *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "HANDOFF_HOME": str(home), **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def delivery(repository: Path) -> Path:
    """The delivery of the repository's model, written by the console script from there.

    Its factory is in a package of our name.
    """
    ended = run(SCRIPT, "deliver", "tasks.making:build", "--to", "delivery", cwd=repository)
    assert ended.returncode == 0, ended.stderr
    return repository / "delivery"


def test_a_factory_in_a_package_of_our_name_delivers_and_nothing_planted_runs(
    delivery: Path, marks: Path
) -> None:
    assert (delivery / "delivery.toml").exists()
    assert list(marks.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("command", [SCRIPT, SAFE_MODULE])
def test_it_inspects_from_there(
    delivery: Path, repository: Path, marks: Path, command: tuple[str, ...]
) -> None:
    ended = run(command, "inspect", "delivery", cwd=repository, PYTHONSTARTUP="torch.py")
    assert ended.returncode == 0, ended.stderr
    assert ": sound" in ended.stdout
    assert list(marks.iterdir()) == []


@pytest.mark.parametrize("command", [SCRIPT, pytest.param(MODULE, marks=pytest.mark.long)])
def test_a_subfolder_of_planted_modules_is_stood_in_and_only_the_command_follows_a_pythonpath(
    delivery: Path, repository: Path, marks: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    log = tmp_path / "arguments.log"
    write(
        tmp_path / "site" / "sitecustomize.py",
        f"import sys\nopen({str(log)!r}, 'a').write(' '.join(sys.orig_argv) + '\\n')\n",
    )
    given = {"PYTHONSTARTUP": "torch.py", "PYTHONPATH": str(tmp_path / "site")}
    ended = run(command, "inspect", "../delivery", cwd=repository / "sub", **given)
    assert ended.returncode == 0, ended.stderr
    assert ": sound" in ended.stdout
    assert list(marks.iterdir()) == []
    (line,) = log.read_text().splitlines()
    assert "handoff inspect" in line


def test_a_delivery_that_brings_modules_is_refused_by_name_and_they_do_not_run(
    delivery: Path, repository: Path, marks: Path, tmp_path: Path
) -> None:
    import shutil

    copied = tmp_path / "delivery"
    shutil.copytree(delivery, copied)
    plant(copied, marks, ("torch", "ctypes", "infra"))
    refused = run(SCRIPT, "inspect", ".", cwd=copied)
    assert refused.returncode == 3
    assert "holds something that to_folder doesn't write" in refused.stderr
    assert list(marks.iterdir()) == []


def test_a_factory_of_a_librarys_name_is_refused_with_the_way_out(
    repository: Path, marks: Path
) -> None:
    refused = run(SCRIPT, "deliver", "numpy:build", "--to", "other", cwd=repository)
    assert refused.returncode == 64
    assert "numpy in" in refused.stderr
    assert "to a module of another name" in refused.stderr
    assert list(marks.iterdir()) == []


@pytest.fixture
def planted_settings(tmp_path: Path) -> Path:
    """A folder with settings for Prefect in each of the files that it reads there."""
    folder = tmp_path / "planted"
    url = "http://planted.invalid/api"
    write(folder / "prefect.toml", f'[api]\nurl = "{url}"\nkey = "from-prefect-toml"\n')
    write(folder / "pyproject.toml", f'[tool.prefect.api]\nurl = "{url}"\n')
    write(folder / ".env", f"PREFECT_API_URL={url}\nPREFECT_CLOUD_API_URL={url}\n")
    return folder


_PRINT_SETTINGS = """
import sys, pathlib
from handoff.infra.engine import import_paths
from handoff.infra.engine.environments import prepare_prefect
from handoff.infra.settings import read_settings
def print_settings():
    prepare_prefect(read_settings())
    from prefect.settings import get_current_settings
    found = get_current_settings()
    print(found.api.url, found.cloud.api_url, found.api.key, pathlib.Path.cwd())
if sys.argv[1] == "program":
    with import_paths.working_folder_restored():
        print_settings()
    print(pathlib.Path.cwd())
else:
    print_settings()
"""


def test_a_command_reads_no_settings_of_prefect_from_the_folder(
    planted_settings: Path, tmp_path: Path
) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}

    def settings(kind: str) -> Iterator[str]:
        ended = subprocess.run(
            [sys.executable, "-c", _PRINT_SETTINGS, kind], cwd=planted_settings,
            capture_output=True, text=True, timeout=LIMIT_S, check=True,
            env={**kept, "HANDOFF_HOME": str(tmp_path / "h")},
        )  # fmt: skip
        yield from ended.stdout.splitlines()

    # That the settings would be taken shows that the files are what Prefect reads.
    (theirs,) = settings("library")
    assert "planted.invalid" in theirs
    ours, after = settings("program")
    assert "planted.invalid" not in ours
    assert "from-prefect-toml" not in ours
    assert ours.endswith(str(tmp_path / "h" / "standing"))
    assert after == str(planted_settings)


def test_a_step_stands_in_the_folder_of_its_log_and_is_given_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HANDOFF_HOME", "home")
    process = StepProcess(ProcessPlan("bare", writes=(Path(),)), Path("logs") / "bare.log")
    try:
        with pytest.raises(DeliveryUnreadable) as refused:
            process.run(IntakeJob(Path("none"), Path("staging")), limit_s=60)
        assert str(tmp_path / "none") in refused.value.what
        (child,) = (
            one
            for one in psutil.Process().children()
            if "handoff.infra.engine.worker" in one.cmdline()
        )
        assert child.cwd() == str(tmp_path / "logs")
        assert "PYTHONPATH" not in child.environ()
        assert child.environ()["PYTHONSAFEPATH"] == "1"
    finally:
        process.close()


def test_without_an_installation_ours_are_found_all_the_same(tmp_path: Path) -> None:
    # As with a checkout on the PYTHONPATH of another environment.
    command = isolated_command(
        "handoff.infra.engine.worker", "look up", "none.json", options=("-S",)
    )
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No such file or directory: 'none.json'" in ended.stderr


def test_what_the_environment_names_by_relative_paths_is_the_same_elsewhere() -> None:
    given = {
        "HANDOFF_HOME": "home", "HANDOFF_STORE": "s3://bucket/prefix", "TMPDIR": "/tmp",
        "HANDOFF_TRUSTED_KEYS": "a.pub:/etc/b.pub", "MLFLOW_TRACKING_URI": "sqlite:///runs.db",
        "AWS_CONFIG_FILE": "~/.aws/config", "HANDOFF_SIGNING_KEY": "awskms:alias/handoff",
        "OTHER": "left/alone",
    }  # fmt: skip
    here = Path.cwd()
    assert with_absolute_paths(given) == {
        "HANDOFF_HOME": f"{here}/home",
        "HANDOFF_TRUSTED_KEYS": f"{here}/a.pub:/etc/b.pub",
        "MLFLOW_TRACKING_URI": f"sqlite:///{here}/runs.db",
    }
    assert with_absolute_paths({"MLFLOW_TRACKING_URI": "http://localhost:5000"}) == {}


@pytest.mark.server
@pytest.mark.long
def test_a_flow_with_its_own_server_takes_nothing_from_the_folder(
    planted_settings: Path, tmp_path: Path
) -> None:
    database = tmp_path / "planted.db"
    with (planted_settings / "prefect.toml").open("a") as stream:
        stream.write(f'[server.database]\nconnection_url = "sqlite+aiosqlite:///{database}"\n')
    write(planted_settings / "matplotlibrc", "backend: module://planted_backend\n")
    marks = tmp_path / "marks"
    marks.mkdir()
    libraries = ("prefect", "uvicorn", "sqlalchemy", "pydantic", "mlflow", "matplotlib", "boto3")
    plant(planted_settings, marks, (*PLANTED, *libraries, "planted_backend"))
    kept = [name for name in os.environ if name.startswith(("PREFECT_", "MLFLOW_"))]
    ended = run(SCRIPT, "recompile", cwd=planted_settings, **dict.fromkeys(kept, ""))
    assert ended.returncode == 0, ended.stderr
    assert "0 models" in ended.stdout
    assert list(marks.iterdir()) == []
    assert not database.exists()
