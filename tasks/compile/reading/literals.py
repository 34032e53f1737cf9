"""Reads what the compiler wrote, before another compiler makes it code.

Inductor writes source code out of a graph, and wasn't made for graphs of strangers: what it pastes
into a literal may end that. Intake lets nothing through that could; this is the second look, at
what came out. Every word of the C++ has to be known, every literal and every comment to be of a
form that can't be anything else. So is Python, which is what kernels for GPUs are written in. What
is torch's own text, or the C++ of an operator of ours or of an extension's, is known as a whole.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch._inductor import codecache, cpu_vec_isa
from torch._inductor.codegen.common import get_device_op_overrides
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from handoff.artifacts.errors import HandoffError
from handoff.tasks.compile.machine.tiles import TEXTS
from handoff.tasks.compile.patching import patch_attribute
from handoff.tasks.compile.reading.python_source import read_python
from handoff.tasks.compile.reading.source_words import (
    is_known_word,
    may_name_variable,
    unknown_code_error,
)
from handoff.tasks.optimize.kernels import own_definitions

_CPP_SUFFIXES = ("cpp", "h", "hpp", "c", "cu")
_TOKEN = re.compile(
    r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>(?<![A-Za-z0-9_])R"\([^()]*\)")
    |(?P<text>(?<![A-Za-z0-9_])"(?:[^"\\\n]|\\[^\n])*")
    |(?P<char>(?<![A-Za-z0-9_])'(?:[^'\\\n]|\\[^\n])+')
    |(?P<directive>\#[^\n]*)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>[0-9][0-9A-Za-z_.]*)
    |(?P<plain>[\s+\-*=<>()\[\]{};,.:&|!~%^?]+|/)
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
# A name, a dtype, a device, a path of attributes, an operator.
_NAMES = r"[A-Za-z0-9_.:/-]*"
# A message: words and sizes, with nothing that ends a literal, escapes, or ends a statement.
_PROSE = r"[A-Za-z0-9_ .,:<>=+*/()\[\]{}'&|!-]{0,2000}(?:\\n)?"
_TEXT = re.compile(rf'"(?:{_NAMES}|{_PROSE})"')
_CHAR = re.compile(r"'(?:[A-Za-z0-9 _.,-]|\\[0nt])'")
# The structure of inputs and outputs, in JSON.
_RAW = re.compile(r'R"\([A-Za-z0-9_.:/ \[\]{}",\\+-]*\)"')
_COMMENT = re.compile(r"//[\x20-\x5b\x5d-\x7e]*|/\*[\x20-\x7e\n]*\*/")
_DIRECTIVE = re.compile(
    r"\#\s*(?:include\s*<(?:torch|ATen|c10)/[A-Za-z0-9_/.-]+>"
    r"|include\s*<[a-z_]+(?:\.h)?>"
    r"|pragma\s+(?:omp|GCC|unroll|once|clang)\b[A-Za-z0-9_ (),:+*]*)\s*"
)
_ASSEMBLY = re.compile(
    r"\s*(?:\.section\s+\.[a-z.]+, \"[a-z]+\"(?:, @[a-z]+)?|\.balign \d+|\.globl\s+\w+|\w+:"
    r"|\.byte \d+|\.space \d+|\.quad 0x[0-9a-f]+)?\s*"
)
# A variable of a plain type, which the code makes itself: its name reaches nothing else.
_DECLARED = re.compile(
    r"(?<![A-Za-z0-9_])(?:auto|bool|float|double|u?int(?:8|16|32|64)_t) ([A-Za-z_]\w*)(?: =|;)"
)
_MAX_EXCERPT = 80


def read_cpp(code: str) -> None:
    """Raise `BlessingRefused` unless `code` is C++ such as Inductor writes for harmless graphs."""
    for pattern in (*_known_sources(), *map(_source_pattern, own_definitions())):
        code = pattern.sub("\n", code)
    # Ways of writing a character that these tokens wouldn't show.
    for spelling in ("??", "%:"):
        if spelling in code:
            raise unknown_code_error(
                "no other spelling of punctuation", _excerpt(code, code.index(spelling))
            )
    tokens: dict[tuple[str, str], int] = {}
    at = 0
    for token in _TOKEN.finditer(code):
        if token.start() != at:
            break
        at = token.end()
        kind = token.lastgroup or ""
        if kind not in ("plain", "number"):
            tokens.setdefault((kind, token.group()), token.start())
    if at != len(code):
        raise unknown_code_error("the characters of generated C++", _excerpt(code, at))
    declared = set(_DECLARED.findall(code))
    for (kind, text), offset in tokens.items():
        expected, is_known = _FORMS[kind]
        if not is_known(text) and not (
            kind == "word" and text in declared and may_name_variable(text)
        ):
            raise unknown_code_error(expected, text, _line_at(code, offset))


def read_assembly(code: str) -> None:
    """Raise `BlessingRefused` unless `code` only sets memory aside for the weights."""
    for line in code.splitlines():
        if not _ASSEMBLY.fullmatch(line):
            raise unknown_code_error("the assembly that holds the weights", line)


_FORMS: dict[str, tuple[str, Callable[[str], object]]] = {
    "word": ("words of torch's own", is_known_word),
    "text": ("literals that are names, sizes or messages of torch's", _TEXT.fullmatch),
    "char": ("plain characters", _CHAR.fullmatch),
    "raw": ("the structure of inputs and outputs as JSON", _RAW.fullmatch),
    "comment": ("comments in printable characters", _COMMENT.fullmatch),
    "directive": ("no directive but torch's headers and loops' pragmas", _DIRECTIVE.fullmatch),
}


def _line_at(code: str, at: int) -> str:
    """Return the line of `code` that `at` is on."""
    return code[code.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()


def _excerpt(code: str, at: int) -> str:
    return code[at : at + _MAX_EXCERPT]


@cache
def _known_sources() -> tuple[re.Pattern[str], ...]:
    """Return what matches torch's own text and ours, as it stands but for its indentation."""
    folder = Path(torch.__file__).parent / "_inductor" / "codegen" / "aoti_runtime"
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.cpp"))]
    sources += TEXTS
    # What is compiled to find out which vector instructions there are.
    for kind in _with_subclasses(cpu_vec_isa.VecISA):
        sources += [text for text in vars(kind).values() if isinstance(text, str) and "{" in text]
    with contextlib.suppress(RuntimeError, ImportError):
        sources.append(get_device_op_overrides("cuda").kernel_driver())
    return tuple(_source_pattern(source) for source in sources if source.strip())


def _with_subclasses(kind: type[object]) -> Iterator[type[object]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


@cache
def _source_pattern(source: str) -> re.Pattern[str]:
    lines = [re.escape(line.strip()) for line in source.splitlines() if line.strip()]
    return re.compile(r"\s*\n\s*".join(lines))


def prepare_reading() -> None:
    """Gather what is known, which takes some tenths of a second, before it is asked for."""
    _known_sources()
    is_known_word("")


@contextmanager
def check_sources() -> Iterator[None]:
    """Let every source that Inductor writes in the body be read before it is compiled or run.

    So is what it executes without writing it: the block that defines kernels and times them. What
    isn't known is refused as `BlessingRefused`. Raises `EnvironmentLacking` where torch has moved
    what this leans on.
    """
    original = codecache.write

    def read_then_write(
        content: str | bytes, extension: str, *args: object, **kwargs: object
    ) -> object:
        suffix = extension.rpartition(".")[2]
        if isinstance(content, str):
            if suffix in _CPP_SUFFIXES:
                read_cpp(content)
            elif suffix == "py":
                read_python(content)
            elif suffix == "S":
                read_assembly(content)
        return original(content, extension, *args, **kwargs)  # type: ignore[arg-type]

    tune = PythonWrapperCodegen.generate_and_run_autotune_block

    def read_then_tune(self: PythonWrapperCodegen) -> None:
        parts = (self.kernel_autotune_defs, self.kernel_autotune_calls)
        read_python("\n".join(part.getvalue() for part in parts))
        tune(self)  # type: ignore[no-untyped-call]

    with (
        patch_attribute(codecache, "write", read_then_write),
        patch_attribute(PythonWrapperCodegen, "generate_and_run_autotune_block", read_then_tune),
    ):
        yield


def refusal_within(error: BaseException | None) -> HandoffError | None:
    """Return the refusal that an error of Inductor's stands for, which wraps what it meets."""
    while error is not None and not isinstance(error, HandoffError):
        error = error.__cause__ or error.__context__
    return error
