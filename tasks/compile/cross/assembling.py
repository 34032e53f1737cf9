"""Assemble the kernels of a package for several generations of GPUs, each for every generation.

Triton writes the PTX of the lowest capability, and a GPU's assembler takes that of an earlier one.
The options are those that Triton gives it (`make_cubin` in its NVIDIA backend), so that the lowest
one's machine code would come out the same; the name of a later one is without its letter (`sm_90`,
not `sm_90a`), since PTX of an earlier one has nothing that only that GPU could do.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.machine.gpu import GpuProfile
from handoff.tasks.compile.cross.driver import KernelResources, read_resources

_SECONDS = 300


@dataclass(frozen=True)
class FurtherResources:
    """What a kernel takes of a further GPU: registers of a thread, and spilled ones."""

    capability: int
    registers: int
    spills: int

    def __str__(self) -> str:
        """Return it as a record states it."""
        spilled = f", {self.spills} spilled" if self.spills else ""
        return f"{self.registers} registers for sm_{self.capability}{spilled}"


class Assembler:
    """Makes machine code for further GPUs, and keeps it until the fat binaries are written."""

    def __init__(self, profiles: Sequence[GpuProfile] = ()) -> None:
        """Assemble for these GPUs, beside the one that Triton compiles for."""
        self.profiles = tuple(profiles)
        self._images: dict[str, dict[int, bytes]] = {}

    def assemble_further(self, name: str, binary: Any, warps: int) -> tuple[FurtherResources, ...]:  # noqa: ANN401
        """Assemble the kernel `name`, which Triton compiled to `binary`; return what it takes.

        Raises `BlessingRefused` where an assembler doesn't take it, or a GPU hasn't enough for one
        block of it.
        """
        text, resources_found = str(binary.asm["ptx"]), []
        for profile in self.profiles:
            image = assemble(name, text, binary.metadata, profile.capability)
            resources = read_resources(image)
            require_room(name, resources, warps, int(binary.metadata.shared), profile)
            self._images.setdefault(text, {})[profile.capability] = image
            spills = resources.frame_bytes // 4
            resources_found.append(
                FurtherResources(profile.capability, resources.registers, spills)
            )
        return tuple(resources_found)

    def write_images(self, ptx: Path, sibling: Path) -> list[tuple[int, Path]]:
        """Write the machine code of the kernel whose PTX is in `ptx` to files; return those.

        Their names begin as that of `sibling`.
        """
        written = []
        for capability, image in self._images.get(ptx.read_text(), {}).items():
            image_file = sibling.with_name(f"{sibling.stem}.sm_{capability}.cubin")
            image_file.write_bytes(image)
            written.append((capability, image_file))
        return written


def assemble(name: str, ptx: str, metadata: Any, capability: int) -> bytes:  # noqa: ANN401
    """Return the machine code of the kernel `name` for GPUs of this capability, out of its PTX.

    `metadata` is what Triton says of the kernel that it compiled. Raises `BlessingRefused` where
    the assembler doesn't take it.
    """
    backend = import_module("triton.backends.nvidia.compiler")
    with tempfile.TemporaryDirectory(prefix="handoff-ptx-") as scratch:
        source, cubin = Path(scratch) / "kernel.ptx", Path(scratch) / "kernel.cubin"
        source.write_text(ptx)
        command = [
            backend.get_ptxas(capability).path, "-lineinfo", "-suppress-debug-info",
            *([] if metadata.enable_fp_fusion else ["--fmad=false"]), "--regAllocOptLevel=2",
            *(metadata.ptx_options or "").split(), f"--gpu-name=sm_{capability}",
            str(source), "-o", str(cubin),
        ]  # fmt: skip
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if not completed.returncode:
            return cubin.read_bytes()
    raise BlessingRefused(
        f"{name} can't be assembled for sm_{capability}", expected="machine code out of its PTX",
        got=completed.stderr.strip()[-200:] or f"exit code {completed.returncode}",
        remedy="Leave that GPU out of the target, or name it in a target of its own",
    )  # fmt: skip


def require_room(
    name: str, resources: KernelResources, warps: int, shared_bytes: int, profile: GpuProfile
) -> None:
    """Raise `BlessingRefused` where a GPU of `profile` can't hold one block of the kernel."""
    threads = warps * profile.warp_size
    needs = {
        "threads": (threads, profile.max_threads_per_block),
        "registers": (resources.registers * threads, profile.registers_per_multiprocessor),
        "bytes of shared memory": (shared_bytes, profile.shared_memory_per_block_optin),
    }
    for resource, (needed, most) in needs.items():
        if needed > most:
            raise BlessingRefused(
                f"a block of {name} doesn't fit {profile.slug}",
                expected=f"at most {most} {resource}", got=str(needed),
                remedy="Leave that GPU out of the target, or name it in a target of its own",
            )  # fmt: skip
