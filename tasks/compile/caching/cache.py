"""The cache of compiled packages: one entry for each key, the digest of all that code depends on.

An entry is a library, the package around it, and the digests of both, which are checked before it
is used. Weights that can be put in again (`tasks.compile.weights`) are not kept: in their places
the library has holes, so that an entry takes as much of the disk as its code does. What is taken
from here is verified like what was just compiled.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from handoff.artifacts.digest import Digest, digest_bytes, digest_file
from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.files.writing import replace_folder, scratch_folder
from handoff.artifacts.recipe.target import describe_host_cpu
from handoff.artifacts.record import RecordInvalid, from_plain, to_plain
from handoff.tasks.compile.caching.package_cache import ENTRY_FILE
from handoff.tasks.compile.fingerprint import digest_sources
from handoff.tasks.compile.messages import AssumedRange, CompileJob, ReusedPart
from handoff.tasks.compile.packages import write_package, write_shell
from handoff.tasks.compile.weights import (
    WeightSlot,
    copy_code,
    first_of_storage,
    put_weights,
    weight_bytes,
)
from handoff.tasks.verify.loading import PACKAGE, SHARED_LIBRARY

# Operators whose code is torch's or ours; that of others may change behind their names.
_KNOWN_NAMESPACES = {"aten", "prims", "prim", "handoff"}
_SUBNORMAL_SHARE = 1e-3


def compilation_key(program: ExportedProgram, job: CompileJob, toolchain: dict[str, str]) -> Digest:
    """Return the digest of graph, shapes, layouts, options, target, toolchain and our own code."""
    plain = {
        "graph": str(program.graph),
        "values": [_describe(node.meta.get("val")) for node in program.graph.nodes],
        "ranges": {str(k): str(v) for k, v in program.range_constraints.items()},
        "signature": str(program.graph_signature),
        # The names of a dictionary's entries are written into the package.
        "structure": [str(program.call_spec.in_spec), str(program.call_spec.out_spec)],
        "state": {name: _layout(tensor) for name, tensor in program.state_dict.items()},
        "tied": first_of_storage(program),
        "constants": {
            name: _digest_value(value) for name, value in sorted(program.constants.items())
        },
        "options": {name: str(value) for name, value in sorted(job.options.items())},
        "target": repr(job.target),
        "toolchain": toolchain,
        # Inductor sizes the blocks of its matrix products by the machine's caches, and shares work
        # out by the threads.
        "machine": [describe_host_cpu(), torch.get_num_threads()],
        "code": digest_sources("tasks.compile.step", "tasks.optimize.kernels"),
    }
    return digest_bytes(json.dumps(plain, sort_keys=True, default=str).encode())


def digest_weights(program: ExportedProgram) -> dict[str, str]:
    """Return the digest of each weight's bytes."""
    return {
        name: hashlib.sha256(weight_bytes(tensor)).hexdigest()
        for name, tensor in program.state_dict.items()
    }


def digest_code(code: Digest, program: ExportedProgram) -> str:
    """Return the digest of a library's code with the weights that its speed may depend on.

    Integers and booleans decide what is read and computed. Subnormal numbers take a processor many
    times as long: where more than a thousandth of a weight is subnormal, nothing is returned.
    """
    parts: list[str] = [code]
    for name in sorted(_used_weights(program)):
        tensor = program.state_dict[name]
        if not tensor.is_floating_point():
            parts.append(f"{name} {_digest_value(tensor)}")
        elif _is_subnormal(tensor):
            return ""
    return digest_bytes("\n".join(parts).encode())


def _used_weights(program: ExportedProgram) -> set[str]:
    """Return the weights that anything is computed from: batch norms count their batches, too."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    nodes = (node for node in program.graph.nodes if node.op == "placeholder" and node.users)
    used = {names[node.name] for node in nodes if node.name in names}
    return {name for name in program.state_dict if name in used}


def _is_subnormal(tensor: torch.Tensor) -> bool:
    smallest = torch.finfo(tensor.dtype).tiny
    sizes = tensor.detach().abs()
    return int(((sizes > 0) & (sizes < smallest)).sum()) > _SUBNORMAL_SHARE * sizes.numel()


def has_own_operators_only(program: ExportedProgram) -> bool:
    """Return whether everything that the graph calls is torch's own, and nothing is nested."""
    for node in program.graph.nodes:
        target = node.target
        if node.op == "get_attr" or isinstance(target, torch._ops.HigherOrderOperator):
            return False
        if isinstance(target, torch._ops.OpOverload) and target.namespace not in _KNOWN_NAMESPACES:
            return False
    return True


def _describe(value: Any) -> Any:  # noqa: ANN401 - a node's value may be anything
    return [
        (str(leaf.dtype), str(tuple(leaf.shape)), str(leaf.stride()), str(leaf.device))
        if isinstance(leaf, torch.Tensor) else str(leaf)
        for leaf in pytree.tree_leaves(value)
    ]  # fmt: skip


def _layout(tensor: torch.Tensor) -> list[str]:
    storage = tensor.untyped_storage()
    return [
        str(tensor.dtype), str(tuple(tensor.shape)), str(tensor.stride()),
        str(tensor.storage_offset()), str(storage.nbytes()), str(tensor.requires_grad),
    ]  # fmt: skip


def _digest_value(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_layout(value)} {hashlib.sha256(weight_bytes(value)).hexdigest()}"
    return str(value)


_FILES = (SHARED_LIBRARY, PACKAGE)


@dataclass(frozen=True)
class PackageMetadata:
    """What is known of a compiled package: its weights, where they lie, what was assumed.

    `weights` are the digests of the program's; without `slots` they are part of the code.
    `atomic_sums` are its functions that add in an order that threads decide.
    """

    weights: dict[str, str]
    slots: tuple[WeightSlot, ...]
    assumed: tuple[AssumedRange, ...]
    atomic_sums: tuple[str, ...]


@dataclass(frozen=True)
class CacheEntry:
    """A compiled package, and the digests of the entry's files."""

    compiled: PackageMetadata
    files: dict[str, Digest]

    @property
    def code(self) -> Digest:
        """The digest of the library with holes where weights belong: that of its code."""
        return self.files[SHARED_LIBRARY]


def read_entry(cache: Path, key: Digest) -> CacheEntry | None:
    """Return the entry, and leave everything as it is; None where there is none that is whole."""
    entry = _parse(cache / key.hex)
    return entry if entry and _is_intact(cache / key.hex, entry) else None


def find_entry(cache: Path, key: Digest) -> CacheEntry | None:
    """Return the entry, or None where there is none that is whole.

    It counts as used now; one whose files aren't whole is removed. Whoever goes on to take it holds
    the cache meanwhile (`artifacts.files.locks.lock_folder`), so that no other process drops it.
    """
    folder = cache / key.hex
    entry = _parse(folder)
    if entry is None:
        return None
    if not _is_intact(folder, entry):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    (folder / ENTRY_FILE).touch()
    return entry


def take_entry(
    cache: Path, key: Digest, entry: CacheEntry, tensors: Mapping[str, torch.Tensor], to: Path
) -> None:
    """Write the entry's library with these tensors, and the package around it, to the folder."""
    folder, slots = cache / key.hex, entry.compiled.slots
    copy_code(folder / SHARED_LIBRARY, slots, to / SHARED_LIBRARY)
    put_weights(slots, tensors, to / SHARED_LIBRARY)
    write_package(folder / PACKAGE, to / SHARED_LIBRARY, to / PACKAGE)


def _parse(folder: Path) -> CacheEntry | None:
    try:
        plain = parse_json((folder / ENTRY_FILE).read_bytes())
        return from_plain(CacheEntry, plain)
    except (OSError, ValueError, RecordInvalid):
        return None


def _is_intact(folder: Path, entry: CacheEntry) -> bool:
    try:
        return all(digest_file(folder / name) == entry.files[name] for name in _FILES)
    except (OSError, KeyError):
        return False


def find_reusable_part(entry: CacheEntry, weights: dict[str, str]) -> ReusedPart:
    """Return what of an entry a program with these weights can take."""
    if weights == entry.compiled.weights:
        return "package"
    return "code" if entry.compiled.slots else ""


def keep_entry(cache: Path, key: Digest, package: Path, metadata: PackageMetadata) -> CacheEntry:
    """Keep what the folder `package` holds, whole or not at all, in the place of an earlier one."""
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    with scratch_folder(cache, ".entry-") as staging:
        copy_code(package / SHARED_LIBRARY, metadata.slots, staging / SHARED_LIBRARY)
        write_shell(package / PACKAGE, staging / PACKAGE)
        entry = CacheEntry(metadata, {name: digest_file(staging / name) for name in _FILES})
        (staging / ENTRY_FILE).write_text(json.dumps(to_plain(entry)), encoding="utf-8")
        with lock_folder(cache):
            replace_folder(staging, cache / key.hex)
    return entry
