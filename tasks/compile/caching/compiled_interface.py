"""The part of every package that is torch's own, compiled once for all that are built alike.

Inductor writes one source around its kernels: the model, and before it the text of torch's
`interface.cpp` with the container that it stands on. g++ takes 5.0 s for that of a small model at
`-O1` with a precompiled header, of which the model is 1.6 s: the rest is the same in every package
(torch 2.15.0, g++ 12, one core of an AMD EPYC). For a GPU it was 10 to 11 s without a header, and
is 3 s (one core of a Xeon). Here it is an object file that lies beside the precompiled header that
it was made with; the model's source says only that it is elsewhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._inductor import codecache, config, cpp_builder
from torch._inductor.codecache import AotCodeCompiler

from handoff.artifacts.digest import digest_bytes
from handoff.tasks.compile.patching import missing_internal, patch_attribute
from handoff.tasks.compile.workdir import map_path_prefix

_SOURCE = Path(codecache.__file__).with_name("codegen") / "aoti_runtime" / "interface.cpp"
_INSTANCE = (
    "namespace torch::aot_inductor {{\n"
    "{0}template class AOTInductorModelBase<AOTInductorModel>;\n"
    "}}\n"
)
_EXTERN_INTERFACE = "#include <torch/csrc/inductor/aoti_runtime/model.h>\n" + _INSTANCE.format(
    "extern "
)


def interface_source(device: str) -> str:
    """Return the C++ of all that a package has beside its model, as this torch has it."""
    return (
        f"#include <torch/csrc/inductor/aoti_include/{device}.h>\n"
        + _SOURCE.read_text(encoding="utf-8")
        + _INSTANCE.format("")
    )


@contextmanager
def link_interface_object() -> Iterator[None]:
    """Let packages that are compiled in the body have their interface from an object file.

    It is taken from where the precompiled header is, or made where Inductor's own are. A source in
    which torch's text isn't found as it stands is compiled whole, as is one without such a header.
    """
    original = AotCodeCompiler.compile

    def compile_model(graph: Any, code: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        interface = _SOURCE.read_text(encoding="utf-8")
        if not config.aot_inductor.precompile_headers or code.count(interface) != 1:
            return original(graph, code, *args, **kwargs)
        objects: list[str] = []
        linked: list[str] = []

        def builder(name: str, sources: Any, **options: Any) -> cpp_builder.CppBuilder:  # noqa: ANN401
            if str(sources).endswith(".wrapper.cpp"):
                objects.append(
                    str(_interface_object(options["BuildOption"], kwargs["device_type"]))
                )
            elif isinstance(sources, list) and sources[0].endswith(".wrapper.o"):
                linked.extend(objects)
                # Another list: what is in Inductor's own is removed afterwards.
                sources = [*sources, *objects]
            return cpp_builder.CppBuilder(name, sources, **options)

        with patch_attribute(codecache, "CppBuilder", builder):
            result = original(graph, code.replace(interface, _EXTERN_INTERFACE), *args, **kwargs)
        if len(linked) != 1:
            raise missing_internal("the files that codecache.CppBuilder is given")
        return result

    with patch_attribute(AotCodeCompiler, "compile", staticmethod(compile_model)):
        yield


def _interface_object(build_options: cpp_builder.BuildOptionsBase, device: str) -> Path:
    """Return the interface's object file for these options, made where there is none yet."""
    header = Path(str(build_options.precompiled_header))
    source = interface_source(device)
    flags = [
        torch.__version__,
        source,
        *build_options.get_definitions(),
        *build_options.get_cflags(),
    ]
    name = f"{header.stem}.{digest_bytes(' '.join(flags).encode()).short}.o"
    local_object = Path(codecache._HEADER_DIR, name)
    for candidate in (header.with_name(name), local_object):
        if candidate.exists():
            return candidate
    local_object.parent.mkdir(parents=True, exist_ok=True)
    # One that a killed compiler left half done would spoil every package after it.
    with tempfile.TemporaryDirectory(dir=local_object.parent, prefix=".making-") as folder:
        source_file = Path(folder, "interface.cpp")
        source_file.write_text(source, encoding="utf-8")
        builder = cpp_builder.CppBuilder(
            "interface", str(source_file), build_options, output_dir=folder
        )
        cpp_builder.run_compile_cmd(
            map_path_prefix(builder.get_command_line(), Path(folder)), cwd=folder
        )
        Path(builder.get_target_file_path()).replace(local_object)
    return local_object
