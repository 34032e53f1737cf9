"""Which words the C++ may consist of that Inductor writes: torch's own, and names of ours.

AOTInductor calls a C++ variable after each weight: one named `int` or `errno` doesn't compile, and
whatever a name means there was chosen by whoever delivered it. A prefix makes each a name that
nothing else has. The table in the package still says what the model's author called it
(`original_fqn`), in characters that intake has confined to letters, digits, `_`, `-` and `.`.

A text of a delivery that ended a literal early would go on as code, and code needs names. The known
ones are those of the headers that generated code stands on and of the part of Inductor that writes
it, without all that reaches files, processes, the network or the assembler. Names of weights begin
with ours, those of values are counted (`buf12`, `arg3_1`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import torch
from torch._inductor import graph
from torch._inductor.codegen import cpp_wrapper_cpu
from torch.utils._sympy.symbol import prefix_str

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.printable import printable
from handoff.tasks.compile.patching import missing_internal, patch_attribute

_PREFIX = "ours_"
# Inductor recognises what it computes itself by this beginning.
_INDUCTOR_PREFIX = "_tensor_constant"


@contextmanager
def prefix_weight_names() -> Iterator[None]:
    """Let the weights have names of ours in the source code that is written in the body.

    Raises `EnvironmentLacking` where torch has moved what this leans on.
    """
    with ExitStack() as stack:
        # Where a variable is named, and where it is looked up which weight that is.
        for module in (graph, cpp_wrapper_cpu):
            original = getattr(module, "normalize_name", None)
            if original is None:
                raise missing_internal(f"{module.__name__}.normalize_name")

            def name_ours(name: str, original: object = original) -> str:
                assert callable(original)
                plain = str(original(name))
                return (
                    plain if plain.startswith((_INDUCTOR_PREFIX, _PREFIX)) else f"{_PREFIX}{plain}"
                )

            stack.enter_context(patch_attribute(module, "normalize_name", name_ours))
        yield


_INCLUDE = Path(torch.__file__).parent / "include"
_CODEGEN = Path(torch.__file__).parent / "_inductor" / "codegen"
_FOLDERS = ("torch/csrc/inductor", "ATen/cpu/vec")
# What those include of the rest of torch: half precision, special functions, random numbers.
_INCLUDED = re.compile(r"#include <((?:ATen|c10)/[A-Za-z0-9_/.-]+)>")
_MAX_SHOWN = 80


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# C++'s own and the standard library's, and what Inductor names, beyond what the headers hold.
_LANGUAGE_WORDS = words(
    """
    alignas alignof auto bool break case char const const_cast constexpr continue decltype
    default do double else enum explicit extern false float for goto if inline int long
    mutable namespace new noexcept nullptr operator private public reinterpret_cast return
    short signed sizeof static static_assert static_cast struct switch template this throw
    true typedef typename union unsigned using void volatile while abs fabs fmod floor ceil
    trunc round nearbyint rint sqrt cbrt exp exp2 expm1 log log2 log10 log1p pow sin cos tan
    asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf erfc lgamma tgamma hypot
    copysign signbit isnan isinf isfinite nextafter frexp ldexp modf fma remainder fmin fmax
    min max isless numeric_limits infinity quiet_NaN lowest epsilon omp_get_thread_num
    omp_get_num_threads omp_get_max_threads max_threads tid strided ivdep stream_guard C10_LIKELY
    C10_UNLIKELY C10_UNUSED TORCH_CHECK TORCH_WARN __restrict__ __attribute__ noinline
    aligned always_inline AOTInductorModelKernels AOTInductorModelKernelsBase env_var_value
    __check_inputs_outputs _check_aoti_runtime_check_inputs_env
    inductor_cpu_integer_div_error inductor_cpu_integer_div_error_flag
    """
)
# Numbered by Inductor, or put together with torch's own names for operators.
_COUNTED = re.compile(
    "|".join(
        (
            # Buffers, inputs, temporaries, sizes, loops' variables, and what is derived of them.
            r"(?:buf|arg|tmp|tmp_|s|u|z|ks|xs|[xyzr]|in_ptr|out_ptr|in_out_ptr|ws_ptr|i|_|L|l|f|ps"
            r"|int_array_|check_input_|handle_|index|idx|kernel)?\d+(?:_\w+)?",
            # Symbols of sizes and of numbers that only the data has, and what they are read into.
            f"(?:{'|'.join(map(re.escape, prefix_str.values()))})\\d+(?:_raw)?",
            r"tmp_\w+|tmpbuf\w*|(?:[a-z]+_)?tmp_acc\d+\w*|tmp(?:buf)?\d+\w*",
            r"[a-z]\w*_(?:\d+|tmp|inputs_|handle|handle_restrided|cond_result\w*)",
            r"(?:[a-z]+_)*helper\d+|(?:[a-z]+_)+index|_?local_acc_buf\w*",
            r"(?:[xyz]|r\d_)numel|(?:global|profile)_scratch_\w+",
            # Weights and constants.
            r"ours_\w+|_frozen_param\d+|_tensor_constant\w*|constant_?\w*|folded_\w*",
            # Kernels, torch's own functions, branches.
            r"cpp_[A-Za-z]\w*|(?:__|call_)?triton_[a-z]+_\w+|aoti_torch_\w+",
            r"cached_torch_(?:dtype|device_type|layout|memory_format)_\w+",
            r"(?:true|false)_graph_\d+\w*|cond_\w+|while_loop_\w+",
        )
    )
)
# What would reach beyond the model, though a header of torch's has a use for it.
DENIED = words(
    """
    asm __asm __asm__ system popen pclose fork vfork clone clone3 syscall execl execle
    execlp execv execve execvp execvpe execveat fexecve posix_spawn posix_spawnp dlopen
    dlmopen dlsym dlclose dladdr dlinfo open open64 openat creat close fopen fopen64 freopen
    fdopen fclose fread fwrite fputs fputc fgets fprintf vfprintf fscanf tmpfile mkstemp
    mkdtemp mmap mmap64 munmap mprotect mremap shm_open memfd_create ptrace process_vm_readv
    process_vm_writev socket connect bind listen accept accept4 send sendto sendmsg recv
    recvfrom recvmsg getaddrinfo gethostbyname unlink unlinkat remove rename renameat mkdir
    mkdirat rmdir chmod fchmod chown fchown link linkat symlink symlinkat readlink truncate
    ftruncate chdir chroot mount umount ioctl fcntl kill raise tgkill signal sigaction
    setenv putenv unsetenv environ setuid setgid prctl pthread_create thread jthread
    ofstream ifstream fstream filebuf basic_ofstream basic_ifstream basic_fstream filesystem
    experimental LoadLibrary DynamicLibrary atexit at_quick_exit constructor destructor
    ifunc section alias weakref cleanup __builtin___clear_cache setjmp longjmp __FILE__
    __BASE_FILE__ __DATE__ __TIME__ __TIMESTAMP__ __COUNTER__ read write puts
    vsystem wordexp glob nftw ftw scandir opendir
    """
)


@cache
def _torch_words() -> frozenset[str]:
    """Return every word of what generated code stands on, and of what writes it."""
    found: set[str] = set()
    included: set[str] = set()
    for folder in _FOLDERS:
        for header in sorted((_INCLUDE / folder).rglob("*.h")):
            text = header.read_text(encoding="utf-8", errors="replace")
            found.update(_WORD.findall(text))
            included.update(_INCLUDED.findall(text))
    others = [_INCLUDE / name for name in sorted(included)]
    writers = [*sorted(_CODEGEN.glob("cpp*.py")), _CODEGEN / "cuda" / "device_op_overrides.py"]
    for path in [*others, *writers]:
        if path.is_file():
            found.update(_WORD.findall(path.read_text(encoding="utf-8", errors="replace")))
    found.update(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
    return frozenset(found) - DENIED


def is_known_word(word: str) -> bool:
    """Return whether code that Inductor wrote may hold this word."""
    if word in DENIED:
        return False
    return word in _LANGUAGE_WORDS or is_numbered(word) or word in _torch_words()


def may_name_variable(word: str) -> bool:
    """Return whether a variable may have this name: it is none of what would reach further."""
    return word not in DENIED


def is_numbered(word: str) -> bool:
    """Return whether the word is one of those that Inductor numbers, or a weight's of ours."""
    return _COUNTED.fullmatch(word) is not None


def unknown_code_error(expected: str, got: str, line: str = "") -> BlessingRefused:
    """Return the refusal of generated source that holds what isn't known; both are shortened."""
    location = f", in the line {_shorten(line)}" if line else ""
    return BlessingRefused(
        "what the compiler wrote of this model is not compiled, since a part of it isn't known",
        expected=expected,
        got=f"{_shorten(got)}{location}",
        remedy="Look for it in the delivery, which may be an attack; where it is torch's own, "
        "report it with the versions of torch and of Handoff",
    )


def _shorten(text: str) -> str:
    shortened = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
    return printable(shortened).replace("\n", "\\n")
