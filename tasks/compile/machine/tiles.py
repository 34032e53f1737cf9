"""Lets a package ask Linux for AMX's tiles itself, whoever opens it.

Linux kills a process that uses tiles without having asked (arch_prctl(2)). oneDNN asks when it
first computes with them; the matrix products that Inductor writes into a package don't, and neither
do torch's own loader and Triton's backend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.codecache import AotCodeCompiler

from handoff.artifacts.recipe.target import Target
from handoff.tasks.compile.patching import missing_internal, patch_attribute

_DECLARATION = 'extern "C" long syscall(long number, ...) noexcept;\n'
# By number, since of the kernel's headers none is read: SYS_arch_prctl of x86-64,
# ARCH_REQ_XCOMP_PERM of Linux's asm/prctl.h, and the tiles' place in XCR0.
_REQUEST = """\
    if (syscall(158, 0x1023, 18) != 0) {
        throw std::runtime_error("the kernel doesn't let this process use AMX's tiles");
    }
"""
# What is written into a package's source.
TEXTS = (_DECLARATION, _REQUEST)
_CONSTRUCTOR = re.compile(r"^AOTInductorModel::AOTInductorModel\([^{;]*\) \{\n", re.MULTILINE)


@contextmanager
def request_amx_tiles(target: Target) -> Iterator[None]:
    """Let a package that is compiled in the body ask for tiles first, where `target` has them.

    Where Linux refuses, it isn't opened. Raises `EnvironmentLacking` where torch has moved what
    this leans on.
    """
    if "amx_tile" not in target.cpu_flags:
        yield
        return
    original = AotCodeCompiler.compile

    def compile_with_request(graph: Any, code: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        source, replacements = _CONSTRUCTOR.subn(
            lambda start: _DECLARATION + start[0] + _REQUEST, code
        )
        if replacements != 1:
            raise missing_internal("the constructor of a package's AOTInductorModel")
        return original(graph, source, *args, **kwargs)

    with patch_attribute(AotCodeCompiler, "compile", staticmethod(compile_with_request)):
        yield
