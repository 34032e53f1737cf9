"""A program of one's own in C++: what the wheel holds for it, as the serving page says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from handoff.artifacts.version import own_version
from handoff.infra.commands.cpp import PACKAGE
from handoff.tasks.probe.build import FLAGS, include_flags, link_flags
from tests.docs.pages import ROOT, blocks_of
from tests.docs.running import run_blocks
from tests.infra.test_wheel import build
from tests.limits import LIMIT_S
from tests.tasks.built_release import BuiltRelease

RUNNER = ROOT / "infra" / "runner"
SOURCES = sorted(RUNNER.glob("*.cpp"))
PAGE = ROOT / "docs" / "serving.md"
PROGRAM = {
    "answer.cpp", "bench.cpp", "cases.cpp", "each.cpp", "hostile.cpp", "main.cpp", "running.cpp",
}  # fmt: skip


def compiler_options(*arguments: str) -> list[str]:
    command = [sys.executable, "-P", "-m", "handoff", "cpp", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def run(*command: str | Path, folder: Path) -> str:
    ended = subprocess.run(
        [str(word) for word in command],
        cwd=folder, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.compile
@pytest.mark.parametrize(
    "source",
    [
        # One that includes the most, and one that includes the least.
        pytest.param(source, marks=[] if source.stem in ("base64", "model") else pytest.mark.long)
        for source in SOURCES
    ],
    ids=lambda source: source.name,
)
def test_each_source_compiles_by_itself(source: Path) -> None:
    flags = [*FLAGS, "-O0", "-Werror", *include_flags()]
    command = ["g++", "-fsyntax-only", *flags, str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.compile
@pytest.mark.parametrize(
    "mode",
    # What only an optimizer sees, such as a variable that may be unset, takes it a minute.
    ["-fsyntax-only", pytest.param("-c", marks=pytest.mark.long)],
)
def test_the_whole_runner_compiles_without_a_warning(mode: str, tmp_path: Path) -> None:
    whole = tmp_path / "runner.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in SOURCES))
    command = ["g++", mode, *FLAGS, "-Werror", *include_flags(), str(whole)]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.compile
def test_a_source_that_lacks_a_header_does_not(tmp_path: Path) -> None:
    text = (RUNNER / "base64.cpp").read_text().replace('#include "base64.h"\n', "")
    (tmp_path / "base64.cpp").write_text(text)
    flags = [*FLAGS, f"-I{RUNNER}", *include_flags()]
    command = ["g++", "-fsyntax-only", *flags, str(tmp_path / "base64.cpp")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 1


def test_the_one_source_is_all_of_the_runner_s_but_its_commands() -> None:
    held = set(re.findall(r'#include "\.\./(\w+\.cpp)"', (PACKAGE / "handoff.cpp").read_text()))
    assert held == {path.name for path in SOURCES} - PROGRAM
    built = set(re.findall(r"\w+\.cpp", (RUNNER / "CMakeLists.txt").read_text()))
    assert built == PROGRAM


def test_what_is_printed_is_what_the_runner_is_built_with() -> None:
    words = compiler_options()
    for flags in (include_flags(), link_flags()):
        assert {flag for flag in flags if not flag.startswith("-D")} <= set(words)
    assert words[0] == FLAGS[0]


def test_both_packages_have_handoff_s_version() -> None:
    assert f"\nVersion: {own_version()}\n" in (PACKAGE / "handoff.pc").read_text()
    version = (PACKAGE / "HandoffConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{own_version()}")' in version
    major, minor, _ = own_version().split(".")
    assert f"MAJOR EQUAL {major} AND PACKAGE_FIND_VERSION_MINOR EQUAL {minor})" in version


def test_only_one_tool_is_told_of_at_once() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        compiler_options("--cmake", "--pkg-config")
    assert "expected one of --cmake and --pkg-config, got both" in caught.value.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's package beside torch, as pip lays them; a link stands for torch."""
    folder = tmp_path_factory.mktemp("site-packages")
    zipfile.ZipFile(build(tmp_path_factory.mktemp("wheel"))).extractall(folder)
    torch = next(
        word for word in compiler_options("--cmake") if word.startswith("-DHandoff_TORCH=")
    )
    (folder / "torch").symlink_to(torch.partition("=")[2])
    return folder / "handoff" / "infra" / "runner" / "package"


def page_in(folder: Path, release: BuiltRelease, tool: str) -> list[str]:
    """Run the page's blocks for a tool with the release there; return the program's line."""
    (folder / "pulled").symlink_to(release.folder)
    shutil.copyfile(release.key, folder / "release.pub")
    blocks = [block for block in blocks_of(PAGE) if block.language in ("cpp", "cmake", "sh")]
    chosen = [
        b for b in blocks if b.kind == "file" or (b.argument == "a compiler" and tool in b.text)
    ]
    ran = run_blocks(chosen, folder, limit_s=600)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.compile
@pytest.mark.long
def test_the_page_s_program_is_built_by_one_line(
    built_release: BuiltRelease, tmp_path: Path
) -> None:
    name = built_release.manifest.model
    with pytest.raises(
        AssertionError, match=f"expected mymodel version of any number, got {name} version 3"
    ):
        page_in(tmp_path, built_release, "$(handoff cpp) ")
    answered = run("./serve", "pulled", "release.pub", name, folder=tmp_path)
    assert answered == f"{name} version 3: [6, 3]\n"


@pytest.mark.compile
@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
@pytest.mark.long
def test_the_page_s_program_is_built_by_pkg_config(
    built_release: BuiltRelease, installed: Path, tmp_path: Path
) -> None:
    page_in(tmp_path, built_release, "handoff cpp --pkg-config")
    arguments = ("pulled", "release.pub", built_release.manifest.model)
    assert "version 3" in run("./serve", *arguments, folder=tmp_path)
    # Out of the wheel as it is installed, by the folder alone, which finds torch beside it.
    for option in ("--cflags", "--libs", "--variable=source"):
        environment = f"PKG_CONFIG_PATH={installed}"
        words = run("env", environment, "pkg-config", option, "handoff", folder=tmp_path).split()
        paths = [Path(re.sub("^(-[IL]|-Wl,-rpath,)", "", word)) for word in words if "/" in word]
        assert paths
        assert all(path.exists() for path in paths)


@pytest.mark.compile
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_the_page_s_program_is_built_by_cmake(
    built_release: BuiltRelease, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What CMake asks of a compiler is found out by one that leaves out what takes it longest.
    compiler = tmp_path / "quick-g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O0\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    page_in(tmp_path, built_release, "cmake -S . ")
    arguments = ("pulled", "release.pub", built_release.manifest.model)
    assert "version 3" in run("build/serve", *arguments, folder=tmp_path)
    # Out of the wheel as it is installed, which finds torch beside it.
    run("cmake", "-S", ".", "-B", "wheel", f"-DHandoff_DIR={installed}", folder=tmp_path)
    cache = (tmp_path / "wheel" / "CMakeCache.txt").read_text()
    (found,) = re.findall("Handoff_TORCH_INCLUDE:PATH=(.*)", cache)
    assert Path(found).resolve() == (installed.parents[3] / "torch" / "include").resolve()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_without_a_torch_is_told_so(tmp_path: Path) -> None:
    (block,) = [block for block in blocks_of(PAGE) if block.argument == "CMakeLists.txt"]
    (tmp_path / "CMakeLists.txt").write_text(block.text)
    copied = shutil.copytree(PACKAGE, tmp_path / "a" / "b" / "c" / "d")
    command = ["cmake", "-S", ".", "-B", "build", f"-DHandoff_DIR={copied}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "expected a torch with include/ and lib/" in " ".join(ended.stderr.split())
