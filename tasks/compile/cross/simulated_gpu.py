"""Make this torch answer as if a named GPU were there: every patch of its internals, in one place.

What Inductor and Triton ask of a device falls in four groups, each a list below. The patches fit
the torch that `toolkit.KNOWN_TORCH` names; each patched name has to be there, or entering fails,
and the tests compile with it. `torch.cuda.is_available()` says yes, since Inductor decides by it
what a GPU can do (whether it adds bfloat16 atomically, for one); FakeTensorMode alone learns that
no device may be touched, and then installs guards that do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch._inductor.config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.machine.gpu import GpuProfile
from handoff.tasks.compile.cross.assembling import Assembler
from handoff.tasks.compile.cross.driver import PretendedDriver, torch_properties
from handoff.tasks.compile.cross.kernels import KernelChoice, keep_one_configuration
from handoff.tasks.compile.cross.retarget import Weights, storage_address
from handoff.tasks.compile.cross.toolkit import (
    Toolkit,
    can_add_ptx,
    find_toolkit,
    require_known_torch,
)
from handoff.tasks.compile.patching import missing_internal, patch_attribute, patch_environment

# The functions that remember an answer about a device (`functools.cache`), beside those that
# Inductor's own `clear_caches` makes forget. Not all that remember: some are how torch sees to it
# that a table of patterns is filled only once.
_CACHED_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "torch._inductor.codecache": ("CacheBase.get_system",),
    "torch._inductor.runtime.hints": ("DeviceProperties.create",),
    "torch._inductor.utils": (
        "get_gpu_type",
        "is_big_gpu",
        "get_max_num_sms",
        "using_b200",
        "get_backend_num_stages",
        "_get_device_tflops",
        "_get_device_dram_gbps",
        "get_gpu_dram_gbps",
        "_triton_supported_fp8_dtypes",
    ),
    "torch._subclasses.fake_tensor": ("init_gpu_context",),
    "torch.utils._triton": (
        "_device_supports_tensor_descriptor",
        "has_triton_experimental_host_tma",
        "has_triton_tensor_descriptor_host_tma",
        "has_triton_tma",
        "has_triton_tma_device",
        "has_triton_cuda_tma_device",
        "has_datacenter_blackwell_tma_device",
        "has_triton_stable_tma_api",
        "has_triton",
        "triton_backend",
        "triton_hash_with_backend",
    ),
    "triton.compiler.compiler": ("max_shared_mem",),
}

# Those of them that torch 2.11 doesn't have yet.
_NOT_IN_2_11 = frozenset({
    "_get_device_tflops", "_get_device_dram_gbps", "_triton_supported_fp8_dtypes",
    "_device_supports_tensor_descriptor", "has_triton_cuda_tma_device",
})  # fmt: skip


@dataclass(frozen=True)
class Patch:
    """A name of `owner` (a module, a class or an object), and what it stands for meanwhile."""

    owner: Any
    name: str
    value: object


def forget_devices() -> None:
    """Clear what torch and Triton remember, since an answer about a device is good for that one.

    Raises `EnvironmentLacking` where one of the functions isn't there: torch has moved it.
    """
    import_module("torch._inductor.utils").clear_caches()
    absent = _NOT_IN_2_11 if torch.__version__.startswith("2.11.") else frozenset()
    for module, names in _CACHED_FUNCTIONS.items():
        for name in names:
            if name in absent:
                continue
            try:
                function = attrgetter(name)(import_module(module))
                function.cache_clear()
            except AttributeError as error:
                raise missing_internal(f"{module}.{name}, which remembers") from error


# What Triton reads from the environment. Inductor sets the first in passing, to a folder of its
# cache. With line numbers, a kernel's binary would hold the path and time of the file it was in.
_ENVIRONMENT = {"TRITON_CACHE_DIR": None, "TRITON_DISABLE_LINE_INFO": "1"}


@contextmanager
def pretend_gpu(
    profile: GpuProfile,
    *,
    weights: Weights | None = None,
    toolkit: Toolkit | None = None,
    assembler: Assembler | None = None,
) -> Iterator[list[KernelChoice]]:
    """Answer as if this GPU were device 0 until the body ends; give the kernels it compiled.

    `weights` are those of the program to compile, without which one that has any is refused, and
    `assembler` makes the kernels' machine code for further GPUs. Nothing can be run or timed
    meanwhile: a launch or a benchmark raises. All that was replaced is as before on leaving, also
    after an exception. It holds for the whole process, so nothing else may compile in it meanwhile.

    Raises `EnvironmentLacking` for a torch whose internals aren't known, or one without its tools.
    """
    require_known_torch()
    tools = toolkit or find_toolkit(profile)
    assembler = assembler or Assembler()
    chosen: list[KernelChoice] = []
    patches = [
        *_device_patches(profile),
        *_triton_patches(profile),
        *_inductor_patches(profile, weights, assembler, chosen),
        *_build_patches(tools, assembler),
    ]
    forget_devices()
    try:
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch_attribute(patch.owner, patch.name, patch.value))
            # AOTInductor writes what it compiles for into its settings, and leaves it there.
            settings = torch._inductor.config.patch("aot_inductor.metadata", {})
            stack.enter_context(settings)
            stack.enter_context(patch_environment(_ENVIRONMENT))
            yield chosen
    finally:
        forget_devices()


def _device_patches(profile: GpuProfile) -> list[Patch]:
    """Return what torch.cuda and Inductor's interface to it say of the device.

    The interface holds functions of torch.cuda since its class was made, so that both are patched.
    """
    properties = torch_properties(profile)
    capability = (profile.major, profile.minor)
    answers: dict[str, Callable[..., object]] = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_properties": lambda _device=None: properties,
        "synchronize": lambda _device=None: None,
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_a, **_k: profile.capability >= 80,
    }
    on_module: dict[str, Callable[..., object]] = {
        "get_device_capability": lambda _device=None: capability,
        "get_device_name": lambda _device=None: profile.name,
        "mem_get_info": lambda _device=None: (profile.total_memory, profile.total_memory),
        "_exchange_device": lambda _index: 0,
        "_maybe_exchange_device": lambda _index: 0,
        # Inductor keeps the state of every generator and puts it back.
        "get_rng_state": lambda *_a, **_k: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_a, **_k: None,
    }
    on_interface: dict[str, Callable[..., object]] = {
        "exchange_device": lambda _index: 0,
        "maybe_exchange_device": lambda _index: 0,
    }
    devices = import_module("torch._dynamo.device_interface")
    worker_properties = {**devices.caching_worker_device_properties, "cuda": [properties]}
    return [
        *[Patch(torch.cuda, name, value) for name, value in {**answers, **on_module}.items()],
        *[
            Patch(devices.CudaInterface, name, staticmethod(value))
            for name, value in {**answers, **on_interface}.items()
        ],
        Patch(devices, "caching_worker_device_properties", worker_properties),
        Patch(FakeTensorMode, "avoid_device_init", property(lambda _mode: True)),
        # It makes a tensor on the device; torch 2.11 calls it for every fake one.
        Patch(import_module(FakeTensorMode.__module__), "init_gpu_context", lambda _device: None),
    ]


def _triton_patches(profile: GpuProfile) -> list[Patch]:
    """Return the driver that Triton compiles for, and stop the search for a real one."""
    runtime = import_module("triton.runtime.driver")
    helpers = import_module("torch._inductor.runtime.triton_helpers")
    return [
        Patch(runtime.driver, "_active", PretendedDriver(profile)),
        Patch(helpers, "set_driver_to_gpu", lambda: None),
    ]


def _inductor_patches(
    profile: GpuProfile,
    weights: Weights | None,
    assembler: Assembler,
    chosen: list[KernelChoice],
) -> list[Patch]:
    """Return what stands in for what Inductor does on a device: tune, time, fold, read weights."""
    graph = import_module("torch._inductor.graph")
    wrapper = import_module("torch._inductor.codegen.wrapper")
    heuristics = import_module("torch._inductor.runtime.triton_heuristics")
    benchmarking = import_module("torch._inductor.runtime.benchmarking")
    joint = import_module("torch._inductor.fx_passes.joint_graph")
    folder = joint.UniformValueConstantFolder
    deduce, original = folder._deduce_value, graph.GraphLowering.get_original_value_of_constant

    def keep_one(code: Any) -> None:  # noqa: ANN401 - Inductor's wrapper generator
        keep_one_configuration(code, profile, assembler, chosen)

    def deduce_on_cpu(self: Any, node: torch.fx.Node) -> object:  # noqa: ANN401 - Inductor's
        # A weight has no value here. Anything else that is folded starts from numbers in the graph.
        if node.op == "get_attr":
            return self.unknown_value
        with _CpuConstructionMode():
            return deduce(self, node)

    def find_value(self: Any, name: str) -> torch.Tensor:  # noqa: ANN401 - Inductor's
        tensor = self.constants.get(name)
        weight = weights.find(tensor) if weights and tensor is not None else None
        if weight is None and isinstance(tensor, FakeTensor):
            raise _missing_values_error(name)
        return weight if weight is not None else original(self, name)

    return [
        Patch(wrapper.PythonWrapperCodegen, "generate_and_run_autotune_block", keep_one),
        Patch(heuristics.CachingAutotuner, "bench", _refuse_to_time),
        Patch(benchmarking.Benchmarker, "benchmark", _refuse_to_time),
        Patch(folder, "_deduce_value", deduce_on_cpu),
        Patch(graph, "is_same_tensor", _is_same_tensor),
        Patch(graph.GraphLowering, "get_original_value_of_constant", find_value),
    ]


def _build_patches(tools: Toolkit, assembler: Assembler) -> list[Patch]:
    """Return where g++ finds CUDA's headers, and what makes fat binaries."""
    extension = import_module("torch.utils.cpp_extension")
    codecache = import_module("torch._inductor.codecache")
    folders = extension.library_paths

    def headers(*_args: object, **_kwargs: object) -> list[str]:
        include = Path(torch.__file__).parent / "include"
        api = include / "torch" / "csrc" / "api" / "include"
        return [str(path) for path in (include, api, *tools.headers)]

    def library_paths(_device: str = "cpu", *args: object, **kwargs: object) -> list[str]:
        # Asked for the CPU, since for CUDA it wants a toolkit's folder, of which nothing is linked.
        return list(folders("cpu", *args, **kwargs))

    def command(
        ptx: str, output: str, cubin: str, _nvcc: object, _fatbinary: object, architecture: str
    ) -> list[str]:
        images = [
            ("elf", architecture, cubin),
            *(("elf", *image) for image in assembler.write_images(Path(ptx), Path(output))),
            ("ptx", architecture, ptx),
        ]
        # Not compressed, so that which GPU the PTX is for can be read without decompressing it.
        return [
            str(tools.fatbinary), f"--create={output}", "-64", "--compress=false",
            *(f"--image3=kind={kind},sm={gpu},file={file}" for kind, gpu, file in images),
        ]  # fmt: skip

    patches = [
        Patch(extension, "include_paths", headers),
        Patch(extension, "library_paths", library_paths),
    ]
    if can_add_ptx():
        patches.append(Patch(codecache, "_cuda_fatbin_command", command))
    return patches


class _CpuConstructionMode(torch.utils._python_dispatch.TorchDispatchMode):
    """Makes on the CPU what an operator would make on the GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        def to_cpu(device: torch.device) -> torch.device:
            return torch.device("cpu") if device.type == "cuda" else device

        args, kwargs = torch.utils._pytree.tree_map_only(torch.device, to_cpu, (args, kwargs or {}))
        return func(*args, **kwargs)


def _is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two constants are one. Inductor compares addresses, which fakes don't have.

    Asked for one, torch raises, or gives 0 for all where its settings let it: weights of one shape
    would then be taken for one weight.
    """
    return bool(
        storage_address(one) == storage_address(other)
        and (one.size(), one.stride()) == (other.size(), other.stride())
        and one.storage_offset() == other.storage_offset()
        and (one.dtype, one.device) == (other.dtype, other.device)
    )


def _missing_values_error(name: str) -> BlessingRefused:
    return BlessingRefused(
        f"the compiler made {name} from weights, which have no values where there is no GPU",
        expected="weights that are packaged as they are", got="one that was computed",
        remedy="Leave out the options that change weights, or compile on a machine with the GPU",
    )  # fmt: skip


def _refuse_to_time(*_args: object, **_kwargs: object) -> NoReturn:
    raise RuntimeError("Inductor wanted to time a kernel where there is no GPU")
