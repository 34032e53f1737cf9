"""Reading what the compiler wrote: torch's own passes; whatever a text could make of it doesn't."""

from __future__ import annotations

import re
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch.export import Dim, ExportedProgram

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.target import native_cpu_target
from handoff.tasks.compile import step as compiling
from handoff.tasks.compile.messages import CompileJob
from handoff.tasks.compile.reading.literals import (
    check_sources,
    read_assembly,
    read_cpp,
    refusal_within,
)
from handoff.tasks.compile.reading.python_source import read_python
from handoff.tasks.optimize.programs import save_program
from tests.studies.faults.releasing import make_module
from tests.studies.faults.toys import TOYS
from tests.tasks.compile.generated import generate

KERNEL = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 8},
    filename=__file__,
    triton_meta={'signature': {'in_ptr0': '*fp32', 'out_ptr0': '*fp32'}, 'device':
        DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9)},
    inductor_meta={'kernel_name': 'triton_poi_fused_relu_0'},
)
@triton.jit
def triton_poi_fused_relu_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask, eviction_policy='evict_last')
    # Topologically Sorted Source Nodes: [relu], Original ATen: [aten.relu]
    tl.store(out_ptr0 + (xindex), triton_helpers.maximum(tmp0, 0.0), xmask)
"""
BLOCK = f"""
import torch
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
get_raw_stream = torch._C._cuda_getCurrentRawStream
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', '''{KERNEL}''',
    device_str='cuda')
async_compile.wait(globals())
del async_compile
"""

# What Inductor goes on with where there is a GPU, as 2.11 and 2.15 write it: it times the kernel.
TIMED = f"""{BLOCK}
import triton
import triton.language as tl
from torch._inductor.runtime.triton_heuristics import start_graph, end_graph
from torch._C import _cuda_getCurrentRawStream as get_raw_stream
generate_example_value = AlgorithmSelectorCache.generate_example_value
with torch.cuda._DeviceGuard(0):
    raw_stream0 = get_raw_stream(0)
_autotune_storage_0 = generate_example_value((64,), (1,), 'cuda:0', torch.float32, 0, (64,))
buf2 = torch.as_strided(_autotune_storage_0, (4, 16), (16, 1), 0)
with torch.cuda._DeviceGuard(0):
    triton_poi_fused_relu_0.run(buf2, 64, stream=raw_stream0)
del buf2, _autotune_storage_0
"""


def exported(module: nn.Module, *inputs: torch.Tensor) -> ExportedProgram:
    batch = Dim("batch", min=1, max=64)
    with torch.no_grad():
        return torch.export.export(
            module.eval(), inputs, dynamic_shapes=tuple({0: batch} for _ in inputs)
        )


class Reserved(nn.Module):
    """Weights whose names mean something in C++, and an assertion."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message
        for name in ("int", "main", "errno", "std", "NULL", "operator", "weights-1"):
            self.register_parameter(name, nn.Parameter(torch.rand(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._assert_async.msg((x > -9).all(), self.message)
        for parameter in self.parameters():
            x = torch.sin(x) * parameter
        return x


@pytest.fixture(scope="module")
def code() -> list[str]:
    """What is written of a model with an assertion: wrapper and kernels."""
    return list(generate(exported(Reserved("it failed"), torch.randn(5, 8))))


@pytest.mark.compile
@pytest.mark.parametrize("name", sorted(TOYS))
def test_what_is_written_of_models_of_many_kinds_is_read(name: str) -> None:
    module = make_module(TOYS[name], 0)
    for source in generate(exported(module, *TOYS[name].inputs(torch.float32).values())):
        assert source
        read_cpp(source)


@pytest.mark.compile
def test_weights_have_names_of_ours_in_the_code_and_their_own_in_the_table(
    code: list[str],
) -> None:
    wrapper, kernels = code
    for name in ("int", "main", "errno", "std", "NULL", "operator", "weights_1"):
        assert f"auto& ours_{name} = constants_->at(" in wrapper
        assert not re.search(rf"auto& {name}\b", wrapper)
    names = set(re.findall(r'original_fqn = "([^"]*)"', wrapper))
    assert names == {"int", "main", "errno", "std", "NULL", "operator", "weights-1"}
    assert wrapper.count("ConstantType::Parameter)") == len(names)
    assert "it failed" in kernels


PAYLOADS = [
    '");system("touch /tmp/x");//',
    '"); unheard_of(1); ("',
    '"); asm("nop"); ("',
    '" __FILE__ "',
    '\\',
    "a\nunheard_of",
    "a\\\nb",
    "\x1b[31m",
    "??/",
    "%:include <a>",
    "é",
    '\\x41',
    '%n$s;',
    'R"x(',
    "`id`",
    "$(id)",
]  # fmt: skip


@pytest.mark.compile
@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_text_that_is_pasted_into_a_literal_or_a_comment_is_refused(
    payload: str, code: list[str]
) -> None:
    wrapper, kernels = code
    read_cpp(wrapper)
    read_cpp(kernels)
    places = [
        (kernels, '"it failed"', f'"{payload}"'),
        (wrapper, '.original_fqn = "main"', f'.original_fqn = "{payload}"'),
        (wrapper, 'R"([1, ', f'R"({payload})"[1, '),
        (wrapper, "auto& ours_main =", f"auto& ours_main{payload} ="),
        (kernels, "#pragma omp parallel", f"#pragma omp parallel {payload}"),
    ]
    for source, old, new in places:
        assert old in source
        with pytest.raises(BlessingRefused, match="is not compiled") as caught:
            read_cpp(source.replace(old, new, 1))
        assert str(caught.value).isprintable()
    # In a comment, what ends neither it nor the line is harmless.
    comment = f"// Source Nodes: [{payload}]\n"
    if payload.isascii() and payload.isprintable() and not re.search(r"\\|\?\?|%:", payload):
        read_cpp(comment + kernels)
    else:
        with pytest.raises(BlessingRefused):
            read_cpp(comment + kernels)


@pytest.mark.parametrize(
    "line",
    [
        # Of YOLOv8: a size that only a number of the data decides.
        "float zuf0_raw; auto zuf0 = zuf0_raw;",
        "int64_t u3_raw; auto u3 = u3_raw;",
        # What a later Inductor may call its variables.
        "auto newly_named = 3; newly_named;",
    ],
)
def test_variables_that_the_code_declares_itself_are_no_matter(line: str, code: list[str]) -> None:
    wrapper, _ = code
    read_cpp(f"{wrapper}\n{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "auto x = newly_named();",
        "auto environ = 3;",
        "extern int newly_named(int);",
        "#include </etc/passwd>",
        '#include "/etc/passwd"',
        "#define return system",
        "#pragma GCC poison x\\",
        "#line 1 \"x\"",
        "void f() { fopen; }",
        "auto x = std::ofstream{};",
        "auto x = dlopen;",
        "__asm__ volatile;",
        "auto x = 'ab';",
        "auto x = u8\"a\";",
        "auto x = R\"x(a)x\";",
        "auto x = \"a\" /* \x00 */;",
        "int \\u0061;",
        "@",
    ],
)  # fmt: skip
def test_code_that_torch_does_not_write_is_refused_by_the_line(line: str) -> None:
    with pytest.raises(BlessingRefused):
        read_cpp(f"int64_t buf0 = 3L;\n{line}\n")
    read_cpp('int64_t buf0 = 3L; // reuse\nauto tmp0 = "index out of bounds: 0 <= tmp0 < 7L";\n')


def test_kernels_in_triton_are_read_and_so_is_the_block_that_defines_them() -> None:
    read_python(KERNEL)
    read_python(BLOCK)
    read_python(TIMED)


@pytest.mark.parametrize("payload", ["", "import os\nos.mkdir(PLACE)\n"])
def test_what_inductor_executes_without_writing_it_is_read_first(
    payload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = []

    def execute(code: PythonWrapperCodegen) -> None:
        # As Inductor does it, but for the GPU that it asks first.
        executed.append(True)
        exec(f"{code.kernel_autotune_defs.getvalue()}\n{code.kernel_autotune_calls.getvalue()}", {})

    monkeypatch.setattr(PythonWrapperCodegen, "generate_and_run_autotune_block", execute)
    place = tmp_path / "made"
    code: Any = PythonWrapperCodegen.__new__(PythonWrapperCodegen)
    code.kernel_autotune_defs = StringIO("from math import inf, nan\nbuf0 = 3\n")
    code.kernel_autotune_calls = StringIO(payload.replace("PLACE", repr(str(place))))
    with pytest.raises(BlessingRefused) if payload else nullcontext(), check_sources():
        code.generate_and_run_autotune_block()
    assert executed == ([] if payload else [True])
    assert not place.exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_DeviceGuard(0):\n    triton", "_DeviceGuard(load('x')):\n    triton"),
        ("_DeviceGuard(0):\n    triton", "_DeviceGuard(0) as taken:\n    triton"),
        ("with torch.cuda._DeviceGuard(0):\n    triton", "with open('x'):\n    triton"),
        ("with torch.cuda._DeviceGuard(0):\n    triton", "with torch.cuda.device(0):\n    triton"),
        ("import _cuda_getCurrentRawStream as", "import _cuda_init as"),
        ("torch.as_strided", "torch.load"),
        ("torch.as_strided", "torch.cuda.memory._snapshot"),
        ("'cuda:0'", "__import__('os').system('id')"),
    ],
)
def test_a_block_that_times_kernels_does_nothing_else(old: str, new: str) -> None:
    assert old in TIMED
    with pytest.raises(BlessingRefused):
        read_python(TIMED.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'evict_last'", "'a'); __import__('os').system('id'"),
        ("'evict_last'", "'a;b'"),
        ("'evict_last'", "open"),
        ("'evict_last'", "b'evict_last'"),
        ("'evict_last'", "f'{tmp0}'"),
        ("'evict_last'", "(lambda: 1)()"),
        ("'evict_last'", "tl.__class__"),
        ("'evict_last'", "unheard_of"),
        ("'evict_last'", "torch.load"),
        ("'evict_last'", "torch.hub.load"),
        ("'evict_last'", "getattr(tl, 'load')"),
        ("[relu]", "[relu]\n    import os #"),
        ("[relu]", "[relu]\n    exec #"),
        ("[relu]", "[é]"),
        ("[relu]", "[\x1b[31m]"),
        ("import triton\n", "import triton, os\n"),
        ("import triton\n", "from subprocess import run\n"),
        ("@triton.jit", "@eval"),
        ("(in_ptr0, ", "(in_ptr0=open, "),
    ],
)
def test_python_that_torch_does_not_write_is_refused(old: str, new: str) -> None:
    for source in (KERNEL, BLOCK):
        assert old in source
        with pytest.raises(BlessingRefused) as caught:
            read_python(source.replace(old, new, 1))
        assert str(caught.value).isprintable()


def test_assembly_holds_weights_only() -> None:
    good = '\t.section\t.lrodata, "a"\n\t.balign 64\n\t.globl\t_start\n_start:\n\t.byte 7\n'
    read_assembly(good)
    for line in ('.incbin "/etc/shadow"', "call system", ".include 'x'", ".macro a"):
        with pytest.raises(BlessingRefused, match="assembly"):
            read_assembly(good + line + "\n")


@pytest.mark.compile
@pytest.mark.parametrize("payload", ['");system("touch CANARY");//', '");unheard_of(1);//', "\\"])
def test_a_program_whose_text_becomes_code_is_refused_before_anything_is_compiled(
    payload: str, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    module = Reserved(payload.replace("CANARY", str(canary)))
    program = save_program(exported(module, torch.randn(5, 8)), tmp_path / "program.pt2")
    job = CompileJob(program, native_cpu_target(), tmp_path / "package", {})
    with pytest.raises(BlessingRefused, match="a part of it isn't known"):
        compiling.run(job)
    assert not canary.exists()
    assert not job.folder.exists()


def test_a_refusal_is_found_within_the_errors_that_wrap_it() -> None:
    refusal = BlessingRefused("a", expected="b", got="c", remedy="d")
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = ValueError("once more")
    wrapped.__cause__.__cause__ = refusal
    assert refusal_within(wrapped) is refusal
    assert refusal_within(ValueError("another")) is None
