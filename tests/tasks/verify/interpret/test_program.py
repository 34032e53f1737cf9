"""The program is taken apart, and what isn't such as Inductor writes is not carried out."""

from __future__ import annotations

import ast

import pytest

from handoff.artifacts.errors import BlessingRefused
from handoff.tasks.compile.cross.kernels import kernel_digest
from handoff.tasks.verify.interpret.program import NotCheckableError, split_program

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out_ptr0 + (xindex), tl.load(in_ptr0 + (xindex), xindex < xnumel), xindex < xnumel)
"""
PROGRAM = f"""
import os
async_compile = AsyncCompile()
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''{KERNEL}''')
async_compile.wait(globals())
def call(args):
    arg0_1, = args
    args.clear()
    with torch.cuda._DeviceGuard(0):
        torch.cuda.set_device(0)
        buf0 = empty_strided_cuda((7, ), (1, ), torch.float32)
        raw_stream0 = get_raw_stream(0)
        triton_poi_fused_add_0.run(arg0_1, buf0, 7, stream=raw_stream0)
        buf1 = torch.ops.aten.sort.default(buf0)
    return (buf1, )
"""


def test_the_calls_are_kept_without_devices_and_streams() -> None:
    parts = split_program(PROGRAM, {"aten::sort"})
    text = ast.unparse(parts.call)
    assert list(parts.kernels) == ["triton_poi_fused_add_0"]
    assert parts.operators == ("aten::sort.default",)
    assert "_launch('triton_poi_fused_add_0', ('arg0_1', 'buf0', ''), arg0_1, buf0, 7)" in text
    assert "buf1 = aten[0](buf0)" in text
    assert not {"cuda.", "stream", "import"} & set(text.replace("_cuda", "").split())


def test_an_operator_that_the_graph_does_not_have_is_not_called() -> None:
    with pytest.raises(NotCheckableError, match="calls aten::sort, which the graph doesn't"):
        split_program(PROGRAM, {"aten::mm"})


@pytest.mark.parametrize(
    ("place", "by"),
    [
        ("args.clear()", "os.system('true')"),
        ("args.clear()", "args.clear().__class__"),
        ("buf0 = empty", "import subprocess; buf0 = empty"),
        ("xindex = tl.program_id", "__import__('os'); xindex = tl.program_id"),
        ("return (buf1, )", "return open('x')"),
    ],
)
def test_what_inductor_does_not_write_is_refused(place: str, by: str) -> None:
    assert place in PROGRAM
    with pytest.raises(BlessingRefused, match="isn't known"):
        split_program(PROGRAM.replace(place, by), {"aten::sort"})


@pytest.mark.parametrize(
    "text", ["x = 1\n", PROGRAM + "\ndef true_graph_0(args):\n    return args\n"]
)
def test_a_program_of_other_parts_is_not_checked(text: str) -> None:
    with pytest.raises(NotCheckableError, match="branches or loops"):
        split_program(text, {"aten::sort"})


META = {"signature": {"in_ptr0": "*fp32", "xnumel": "i32"}, "constants": {}}


def test_the_digest_of_a_kernel_is_that_of_what_it_does() -> None:
    one = kernel_digest(KERNEL, META)
    assert one == kernel_digest(KERNEL[KERNEL.index("def ") :] + "    # a comment\n", META)
    assert one != kernel_digest(KERNEL.replace("xindex < xnumel", "xindex <= xnumel", 1), META)
    assert one != kernel_digest(KERNEL, {**META, "constants": {"xnumel": 1}})
    assert one != kernel_digest(KERNEL, {**META, "signature": {"in_ptr0": "*fp16"}})
    with pytest.raises(ValueError, match="kernel's function"):
        kernel_digest("x = 1", META)
