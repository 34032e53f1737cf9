"""Tensors of one `.pt` file, made from its inert description: bounds first, bytes second."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from handoff.tasks.intake.files.archive import Archive
from handoff.tasks.intake.files.pickled import Call, Global, OrderedItems, Storage, decode

_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
_LOCATION = re.compile(r"(cpu|cuda|mps|xpu|hpu|mtia|xla)(:[0-9]{1,3})?")
_MAX_NUMBER = 1 << 62
_MAX_WRAPPINGS = 2
_PLAIN_TYPES = {"torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer"}


def find_dtype(name: str) -> torch.dtype | None:
    """Return the dtype that torch calls `name`, or None."""
    found = vars(torch).get(name)
    return found if isinstance(found, torch.dtype) else None


def _unwrap(call: Call) -> Call:
    """Return the plain tensor's call inside a parameter's, or inside one with attributes.

    Attributes that somebody set on a tensor are left out: torch's own code reads none of them.
    """
    for _ in range(_MAX_WRAPPINGS):
        match call.function.name, call.args:
            case "_rebuild_parameter", (Call() as inner, bool(), OrderedItems() as hooks):
                pass
            case (
                "_rebuild_parameter_with_state",
                (Call() as inner, bool(), OrderedItems() as hooks, _),
            ):
                pass
            case (
                "_rebuild_from_type_v2",
                (Global() as function, Global() as kind, tuple() as args, _),
            ) if str(kind) in _PLAIN_TYPES:
                inner, hooks = Call(function, args), OrderedItems()
            case _:
                return call
        if hooks:
            return call
        call = inner
    return call


class TensorFile:
    """One `.pt` file: what its pickle describes, and the tensors in it, on the CPU.

    A tensor that the file holds twice (tied weights) is one tensor here as well. The file's bytes
    are in memory once; tensors share them as they did when they were saved.
    """

    def __init__(self, path: Path) -> None:
        """Read the file; raise `DeliveryUnreadable` with a reason."""
        self.archive = Archive(path)
        self.where = path.name
        self.content, keys = decode(self.archive.read("data.pkl"), self.where)
        stored = {name[5:] for name in self.archive.members if name.startswith("data/")}
        if stored != keys:
            mismatched = sorted(stored ^ keys)[0]
            raise self.archive.refuse(
                "one member for each storage", f"a mismatch at {mismatched[:20]!r}"
            )
        self._storages: dict[str, torch.Tensor] = {}
        self._tensors: dict[tuple[object, ...], torch.Tensor] = {}

    def tensor(self, description: object) -> torch.Tensor:
        """Return the tensor or parameter that a call in the pickle describes, as a plain tensor.

        It is dense, of the shape and dtype that stand there. Raises `DeliveryUnreadable` unless it
        lies within its storage.
        """
        if not isinstance(description, Call):
            raise self.archive.refuse("a tensor", type(description).__name__)
        description = _unwrap(description)
        name, args = description.function.name, description.args
        if name == "_rebuild_tensor_v2" and len(args) in (6, 7):
            return self._rebuild(args[:6], None, args[6:])
        if name == "_rebuild_tensor_v3" and len(args) in (7, 8) and isinstance(args[6], Global):
            dtype = find_dtype(args[6].name) if args[6].module == "torch" else None
            if dtype is not None:
                return self._rebuild(args[:6], dtype, args[7:])
        raise self.archive.refuse(
            "a dense tensor", f"{description.function} with {len(args)} values"
        )

    def _rebuild(
        self, args: tuple[object, ...], dtype: torch.dtype | None, rest: tuple[object, ...]
    ) -> torch.Tensor:
        match args:
            case (Storage() as storage, int(offset), tuple(size), tuple(stride), bool(), hooks):
                pass
            case _:
                raise self.archive.refuse("a dense tensor", "one with other properties")
        if hooks or any(rest) or len(size) != len(stride) or len(size) > 64:
            raise self.archive.refuse("a plain dense tensor", "one with hooks or odd strides")
        numbers = (offset, *size, *stride)
        if not all(type(n) is int and 0 <= n < _MAX_NUMBER for n in numbers):
            raise self.archive.refuse("sizes and strides of 0 or more", "other values")
        dtype, numel = self._check_storage(storage, dtype)
        count, last = 1, offset
        for n, step in zip(size, stride, strict=True):
            count *= n
            last += (n - 1) * step
        if count and (last >= numel or count > numel):
            raise self.archive.refuse(
                f"a tensor within its storage of {numel} elements",
                f"size {size}, stride {stride}, offset {offset}",
            )
        if not count and (offset > numel or max(size, default=0) > numel + 1024):
            raise self.archive.refuse("a tensor within its storage", f"size {size}")
        key = (storage.key, dtype, *numbers, len(size))
        if key not in self._tensors:
            raw = self._load(storage.key).untyped_storage()
            empty = torch.empty(0, dtype=dtype)
            self._tensors[key] = empty.set_(raw, offset, size, stride)
        return self._tensors[key]

    def _check_storage(
        self, storage: Storage, dtype: torch.dtype | None
    ) -> tuple[torch.dtype, int]:
        """Return dtype and number of elements of `storage`, whose size is that of its member."""
        kind = storage.kind
        is_untyped = str(kind) == "torch.storage.UntypedStorage"
        storage_dtype = dtype if is_untyped else _STORAGES.get(kind.name)
        if storage_dtype is None or not (is_untyped or (kind.module == "torch" and dtype is None)):
            raise self.archive.refuse("storages of torch's dense dtypes", str(kind))
        if not _LOCATION.fullmatch(storage.location):
            raise self.archive.refuse("a storage that was saved from a device", storage.location)
        size_bytes = self.archive.members[f"data/{storage.key}"].size
        itemsize = 1 if is_untyped else storage_dtype.itemsize
        if storage.numel < 0 or storage.numel * itemsize != size_bytes:
            raise self.archive.refuse(
                f"{storage.numel} elements of {storage_dtype}", f"{size_bytes} bytes"
            )
        return storage_dtype, size_bytes // storage_dtype.itemsize

    def _load(self, key: str) -> torch.Tensor:
        if key not in self._storages:
            member = self.archive.members[f"data/{key}"]
            self.archive.verify_checksum(member)
            # torch's own allocation, because kernels choose their path by alignment.
            copy = torch.empty(member.size, dtype=torch.uint8)
            if member.size:
                mapped = torch.frombuffer(
                    self.archive.bytes, dtype=torch.uint8, count=member.size, offset=member.begin
                )
                copy.copy_(mapped)
                self.archive.release_pages(member)
            self._storages[key] = copy
        return self._storages[key]
