"""Gives the weights names of ours in the source code that the compiler writes.

AOTInductor calls a C++ variable after each weight: one named `int` or `errno` doesn't compile, and
whatever a name means there was chosen by whoever delivered it. A prefix makes each a name that
nothing else has. The table in the package still says what the model's author called it
(`original_fqn`), in characters that intake has confined to letters, digits, `_`, `-` and `.`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch._inductor import graph
from torch._inductor.codegen import cpp_wrapper_cpu

from handoff.tasks.compile.patching import moved, replaced

_PREFIX = "ours_"
# Inductor recognises what it computes itself by this beginning.
_OWN = "_tensor_constant"


@contextmanager
def weights_named() -> Iterator[None]:
    """Let the weights have names of ours in the source code that is written in the body.

    Raises `EnvironmentLacking` where torch has moved what this leans on.
    """
    with ExitStack() as stack:
        # Where a variable is named, and where it is looked up which weight that is.
        for module in (graph, cpp_wrapper_cpu):
            original = getattr(module, "normalize_name", None)
            if original is None:
                raise moved(f"{module.__name__}.normalize_name")

            def name_ours(name: str, original: object = original) -> str:
                assert callable(original)
                plain = str(original(name))
                return plain if plain.startswith((_OWN, _PREFIX)) else f"{_PREFIX}{plain}"

            stack.enter_context(replaced(module, "normalize_name", name_ours))
        yield
