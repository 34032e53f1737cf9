"""What compilations share: made once, and there when it is whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch._inductor import codecache, cpp_builder

from handoff.artifacts.recipe.target import CpuTarget, CudaTarget, native_cpu_target
from handoff.tasks.compile.caching import compiled_interface
from handoff.tasks.compile.caching.shared_tools import build_headers_in
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.compile.step import run as compile_package
from tests.tasks.compile.cross import models


def make(name: str) -> bool:
    """Make a header where Inductor would, unless it is there; return whether it had to be made."""
    made = Path(codecache._HEADER_DIR, f"{name}.h.gch")
    is_new = not made.exists()
    if is_new:
        Path(codecache._HEADER_DIR, f"{name}.h").write_text("source")
        made.write_text("made")
    return is_new


def fail_halfway() -> None:
    make("one")
    raise OSError("No space left on device")


def test_a_header_is_made_once_and_others_beside_it(tmp_path: Path) -> None:
    with build_headers_in(tmp_path):
        assert make("one")
    with build_headers_in(tmp_path):
        assert not make("one")
        assert make("two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["headers"]
    assert sorted(path.name for path in (tmp_path / "headers").iterdir()) == [
        "one.h", "one.h.gch", "two.h", "two.h.gch",
    ]  # fmt: skip


def test_what_a_former_version_left_among_the_headers_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "headers" / "locks").mkdir(parents=True)
    with build_headers_in(tmp_path):
        assert make("one")
    assert (tmp_path / "headers" / "one.h.gch").exists()


def test_half_a_header_is_in_nobodys_way(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space"), build_headers_in(tmp_path):
        fail_halfway()
    assert list((tmp_path / "headers").iterdir()) == []


def test_two_at_once_make_the_same_and_neither_is_in_the_others_way(tmp_path: Path) -> None:
    with build_headers_in(tmp_path):
        assert make("one")
        with build_headers_in(tmp_path):
            assert make("one")
        assert (tmp_path / "headers" / "one.h.gch").read_text() == "made"
    assert (tmp_path / "headers" / "one.h.gch").read_text() == "made"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The file of an exported program."""
    file = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(torch.nn.GELU(), (torch.ones(4, 8),)), file)
    return file


@pytest.mark.compile
@pytest.mark.parametrize(
    "target",
    [native_cpu_target(), pytest.param(CudaTarget(80), marks=models.needs_known_torch)],
    ids=["cpu", "cuda"],
)
def test_torchs_own_part_of_a_package_is_compiled_once_and_the_bytes_are_the_same(
    program: Path, target: CpuTarget | CudaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    run_command = cpp_builder.run_compile_cmd

    def noted(command: str, cwd: str) -> None:
        ran.append(command)
        run_command(command, cwd)

    monkeypatch.setattr(cpp_builder, "run_compile_cmd", noted)
    made, taken = (
        compile_package(CompileJob(program, target, tmp_path / name, {}))
        for name in ("made", "taken")
    )
    assert made.files == taken.files
    interfaces = ["interface.cpp" in command for command in ran]
    # At most once in all: what ran before in this process has left it as well.
    assert sum(interfaces) <= 1
    assert sum("wrapper.cpp" in command for command in ran) == 2
    linked = [
        command for command in ran if ".wrapper.o" in command and ".wrapper.cpp" not in command
    ]
    assert len(linked) == 2
    # Beside this process's own header, or one that tests before it have shared.
    assert len({re.search(r"\S+\.[0-9a-f]{12}\.o ", one)[0] for one in linked}) == 1  # type: ignore[index]


@pytest.mark.compile
def test_a_source_without_torchs_text_as_it_stands_is_compiled_whole(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "interface.cpp"
    other.write_text("// another torch's\n")
    monkeypatch.setattr(compiled_interface, "_SOURCE", other)
    compile_package(CompileJob(program, native_cpu_target(), tmp_path / "whole", {}))
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(tmp_path / "whole" / "model.so"), 1)
    x = torch.randn(4, 8)
    torch.testing.assert_close(runner.run([x])[0], torch.nn.functional.gelu(x))
