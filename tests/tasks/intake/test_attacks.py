"""Deliveries that want more than to be read: each is refused, and none gets to run anything."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from artifacts.errors import DeliveryUnreadable
from artifacts.steps import IntakeJob
from tasks.intake import read_delivery, take_in
from tests.tasks.intake.models import CASES, deliver, deliver_case, make_model


class Canary:
    """A pickle of this writes a file when it is loaded the official way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "delivery"
    deliver_case("attention", folder)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "delivery"))


def refuse(folder: Path, match: str) -> DeliveryUnreadable:
    canary = folder.parent / "canary"
    with pytest.raises(DeliveryUnreadable, match=match) as caught:
        take_in(IntakeJob(folder, folder.parent / "staging"))
    assert not canary.exists()
    assert not (folder.parent / "staging").exists()
    assert caught.value.remedy
    return caught.value


def rewrite_source(folder: Path, old: str, new: str) -> range:
    """Replace the first `old` in module.py by `new`; return the numbers of the lines it covers."""
    path = folder / "module.py"
    before, found, after = path.read_text().partition(old)
    assert found
    path.write_text(before + new.replace("CANARY", str(folder.parent / "canary")) + after)
    first = before.count("\n") + 1
    return range(first, first + new.count("\n") + 1)


EVIL = "__import__('os').mkdir('CANARY')"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch\n", f"import torch\n{EVIL}\n"),
        ("import torch\n", "import torch, os\n"),
        ("import torch\n", "import torch\nif True:\n    pass\n"),
        ("class FxModule(torch.nn.Module):", f"class FxModule(torch.nn.Module, x={EVIL}):"),
        ("class FxModule(torch.nn.Module):", f"class FxModule({EVIL}):"),
        ("class FxModule(torch.nn.Module):", f"@{EVIL}\nclass FxModule(torch.nn.Module):"),
        ("    def forward(", f"    x = {EVIL}\n    def forward("),
        ("    def forward(", f"    {EVIL}\n    def forward("),
        ("forward(self, ids : _Tensor_)", f"forward(self, ids={EVIL})"),
        ("forward(self, ids : _Tensor_)", f"forward(self, ids : {EVIL})"),
        ("forward(self, ids : _Tensor_)", f"forward(self, ids) -> {EVIL}"),
        ("forward(self, ids : _Tensor_)", "forward(self, *ids)"),
        ("    def forward", f"    @({EVIL})\n    def forward"),
        ("super().__init__()", f"super().__init__({EVIL})"),
        ("super().__init__()", f"super().__init__(); {EVIL}"),
        ("def __init__(self):", f"def __init__(self, x={EVIL}):"),
        ("embed = self.embed(ids)", f"embed = self.embed(ids) + {EVIL}"),
        ("embed = self.embed(ids)", "embed = self.embed(ids).__class__"),
        ("embed = self.embed(ids)", "embed = ids.__class__"),
        ("embed = self.embed(ids)", "embed = ids.__reduce_ex__(2)"),
        ("embed = self.embed(ids)", "embed = getattr(ids, '__class__')"),
        ("embed = self.embed(ids)", "embed = self.__init__(ids)"),
        ("embed = self.embed(ids)", "embed = self.embed.register_forward_hook(ids)"),
        ("embed = self.embed(ids)", "embed = self.missing(ids)"),
        ("embed = self.embed(ids)", "embed = ids.numpy()"),
        ("embed = self.embed(ids)", "embed = torch.load('CANARY')"),
        ("embed = self.embed(ids)", "embed = torch.ops.load_library('CANARY')"),
        ("embed = self.embed(ids)", "embed = torch.ops.aten.from_file('CANARY', True, 9)"),
        ("embed = self.embed(ids)", "embed = torch.ops.aten.from_file.default('CANARY', True, 9)"),
        ("embed = self.embed(ids)", "embed = torch.from_file('CANARY', True, 9)"),
        ("embed = self.embed(ids)", "embed = torch.ops.prim.Print('CANARY')"),
        ("embed = self.embed(ids)", "embed = torch.hub.load('CANARY', 'x')"),
        ("embed = self.embed(ids)", "embed = torch.compile(ids)"),
        ("embed = self.embed(ids)", "embed = torch.os.mkdir('CANARY')"),
        ("embed = self.embed(ids)", "embed = torch.Tensor.apply_(ids, ids)"),
        ("embed = self.embed(ids)", "embed = torch.nn.functional.torch.load('CANARY')"),
        ("embed = self.embed(ids)", "embed = eval('1')"),
        ("embed = self.embed(ids)", "embed = __import__('os')"),
        ("embed = self.embed(ids)", "embed = _operator_attrgetter('__class__')"),
        ("embed = self.embed(ids)", "embed = mypkg_mod_post(ids)"),
        ("embed = self.embed(ids)", "embed = (lambda: 1)()"),
        ("embed = self.embed(ids)", "embed = [i for i in ids]"),
        ("embed = self.embed(ids)", "embed = f'{ids}'"),
        ("embed = self.embed(ids)", "embed = (y := ids)"),
        ("embed = self.embed(ids)", "embed = ids if ids else ids"),
        ("embed = self.embed(ids)", "embed = torch.add(*ids)"),
        ("embed = self.embed(ids)", "embed = torch.add(**ids)"),
        ("embed = self.embed(ids)", "embed = ids[0:1]"),
        ("embed = self.embed(ids)", "embed = " + "(" * 150 + "ids" + ")" * 150),
        ("embed = self.embed(ids)", "embed = " + "-" * 5000 + "ids"),
        ("embed = self.embed(ids)", "embed = ids" + ".data" * 5000),
        ("embed = self.embed(ids)", "embed = ids + '" + "\\'" * 500_000),
        ("embed = self.embed(ids)", "embed = ids + " + "9" * 5000),
        ("embed = self.embed(ids)", "embed = ids + 99999999999999999999"),
        ("embed = self.embed(ids)", "ids = self.embed(ids)"),
        ("embed = self.embed(ids)", "embed = self.embed(nobody)"),
        ("embed = self.embed(ids)", "self.x = self.embed(ids)"),
        ("embed = self.embed(ids)", "embed, b = self.embed(ids)"),
        ("embed = self.embed(ids)", "del ids; embed = self.embed(ids)"),
        ("embed = self.embed(ids)", "ids = None; embed = self.embed(ids)"),
        ("embed = self.embed(ids)", "import os; embed = self.embed(ids)"),
        ("embed = self.embed(ids)", "global x; embed = self.embed(ids)"),
        ("embed = self.embed(ids)", "return ids; embed = self.embed(ids)"),
        ("embed = self.embed(ids)", "embed = fx_pytree.tree_flatten_spec(ids, self._in_spec)"),
    ],
)  # fmt: skip
def test_refuses_a_line_that_fx_does_not_write(folder: Path, old: str, new: str) -> None:
    changed = rewrite_source(folder, old, new)
    error = refuse(folder, "module.py")
    assert error.where in [f"module.py:{line}" for line in changed]


@pytest.mark.parametrize(
    "expression",
    [
        "ids" + " + ids" * 200,
        "ids" + " + ids" * 900,
        "ids" + " + ids" * 20_000,
        "(\n" * 190 + "ids" + ")" * 190,
        "[\n" * 190 + "ids" + "]" * 190,
    ],
)
def test_refuses_lines_that_are_nested_without_end(folder: Path, expression: str) -> None:
    rewrite_source(folder, "embed = self.embed(ids)", f"embed = self.embed({expression})")
    refuse(folder, "module.py")


def test_refuses_a_method_beside_forward(folder: Path) -> None:
    rewrite_source(folder, "    def forward(", "    def __del__(self): pass\n    def forward(")
    refuse(folder, "the methods __init__ and forward")


@pytest.mark.parametrize(
    "layer",
    [
        "Linear(in_features=10**9, out_features=1)",
        "Linear(in_features=99999999999999999, out_features=99999999999999999, bias=True)",
        "Linear('x', 4)",
        "Linear(torch.load('x'), 4)",
        "Conv2d(4, 4, kernel_size=(1, 1), padding_mode=evil)",
        "Embedding(4, 4)",
        "Sequential()",
        "torch.load(r'/etc/passwd', weights_only=False)",
        "torch.load(r'elsewhere/embed.pt', weights_only=False)",
        "torch.load(r'../embed.pt', weights_only=False)",
        "torch.load(r'delivery/embed.pt', weights_only=False, pickle_module=torch)",
    ],
)
def test_refuses_a_child_that_to_folder_does_not_write(folder: Path, layer: str) -> None:
    text = (folder / "module.py").read_text().splitlines()
    at = next(i for i, line in enumerate(text) if "setattr(self, 'embed'" in line)
    text[at] = f"        setattr(self, 'embed', {layer})"
    (folder / "module.py").write_text("\n".join(text))
    refuse(folder, r"module.py|embed")


def test_a_layer_of_any_size_costs_no_memory_before_it_is_refused(tmp_path: Path) -> None:
    deliver_case("perceptron", tmp_path / "delivery")
    rewrite_source(
        tmp_path / "delivery", "Linear(in_features=8, out_features=16",
        "Linear(in_features=4000000, out_features=4000000",
    )  # fmt: skip
    refuse(tmp_path / "delivery", "first.weight of shape")


def test_refuses_code_in_the_init_file(folder: Path) -> None:
    (folder / "__init__.py").write_text("from .module import *\nimport os")
    refuse(folder, "__init__.py")


def rewrite_pickle(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace `data.pkl` of an archive, with everything else as torch wrote it."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members:
            archive.writestr(name, change(data) if name.endswith("/data.pkl") else data)


@pytest.mark.parametrize("name", ["norm.pt", "state_dict.pt"])
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_never_runs_a_pickle_that_calls(folder: Path, name: str, protocol: int) -> None:
    evil = pickle.dumps(Canary(folder.parent / "canary"), protocol)
    rewrite_pickle(folder / name, lambda _: evil)
    refuse(folder, name)


def test_never_runs_a_call_beside_an_honest_module(folder: Path) -> None:
    evil = pickle.dumps(Canary(folder.parent / "canary"), 2)[2:-1] + b"0"
    rewrite_pickle(folder / "norm.pt", lambda data: data[:2] + evil + data[2:])
    refuse(folder, "norm.pt")


def test_names_the_class_of_the_team_s_own_that_a_file_holds(folder: Path) -> None:
    rewrite_pickle(
        folder / "norm.pt", lambda data: data.replace(b"torch.nn.modules.normalization", b"gates")
    )
    error = refuse(folder, "own code")
    assert error.got == "gates.LayerNorm"
    assert "handoff deliver" in error.remedy


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("_forward_hooks", {0: torch.nn.functional.relu}, "without hooks"),
        ("_forward_pre_hooks", {0: torch.nn.functional.relu}, "without hooks"),
        ("forward", torch.nn.functional.relu, "hide no method"),
        ("__call__", torch.nn.functional.relu, "hide no method"),
        ("__class__", 3, "hide no method"),
        ("reset_parameters", 3, "hide no method"),
        ("normalized_shape", torch.nn.functional.relu, "numbers, text and tuples"),
        ("activation", torch.nn.init.zeros_, "an activation"),
        ("activation", torch.hub.list, "an activation"),
        ("eps", {"a": [torch.zeros(1)]}, "numbers, text and tuples"),
    ],
)
def test_refuses_a_module_that_holds_more_than_values(
    folder: Path, name: str, value: object, match: str
) -> None:
    layer = nn.LayerNorm(16)
    vars(layer)[name] = value
    torch.save(layer, folder / "norm.pt")
    refuse(folder, match)


def test_refuses_a_module_inside_itself(folder: Path) -> None:
    outer = nn.Module()
    outer._modules["again"] = outer
    torch.save(outer, folder / "norm.pt")
    refuse(folder, "inside itself")


def test_refuses_modules_that_are_shared_without_end(folder: Path) -> None:
    layer: nn.Module = nn.ReLU()
    for _ in range(45):
        above = nn.Module()
        above._modules.update(a=layer, b=layer)
        layer = above
    torch.save(layer, folder / "norm.pt")
    refuse(folder, "at most 100000 modules")


def test_refuses_parameters_of_parameters(folder: Path) -> None:
    call = b"ctorch._utils\n_rebuild_parameter\n"
    nested = call * 5000 + b"N" + b"\x89ccollections\nOrderedDict\n)R\x87R" * 5000
    rewrite_pickle(folder / "state_dict.pt", lambda data: b"\x80\x02" + nested + b".")
    refuse(folder, "state_dict.pt")
    state = b"\x80\x02ccollections\nOrderedDict\n)RX\x05\x00\x00\x00a.b.c" + nested + b"s."
    rewrite_pickle(folder / "state_dict.pt", lambda data: state)
    refuse(folder, "state_dict.pt")


def test_refuses_values_that_are_shared_without_end(folder: Path) -> None:
    layer = nn.LayerNorm(16)
    value: tuple[object, ...] = (1, 2)
    for _ in range(11):
        value = (value,) * 40
    layer.eps = value  # type: ignore[assignment]
    torch.save(layer, folder / "norm.pt")
    refuse(folder, "too many")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("norm.bias"),
        lambda state: state.update({"more": torch.zeros(1)}),
        lambda state: state.update({"norm.bias": torch.zeros(17)}),
        lambda state: state.update({"norm.bias": torch.zeros(16, dtype=torch.float64)}),
        lambda state: state.update({"norm.bias": torch.full((16,), 1e-9)}),
        lambda state: state.update({"norm.bias": "text"}),
        lambda state: state.update({"norm.bias": torch.zeros(16).to_sparse()}),
        lambda state: state.update({"norm.bias": torch.zeros(16, device="meta")}),
        lambda state: state.update({"norm.bias": torch.zeros(1).expand(16)}),
    ],
)
def test_refuses_a_state_of_another_model(folder: Path, change: Callable[[Any], Any]) -> None:
    state = torch.load(folder / "state_dict.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "state_dict.pt")
    refuse(folder, "state_dict.pt")


def test_refuses_a_quantised_tensor_with_a_way_out(folder: Path) -> None:
    state = torch.load(folder / "state_dict.pt", weights_only=True)
    with pytest.warns(UserWarning, match="deprecated"):
        quantised = torch.quantize_per_tensor(torch.zeros(16), 0.1, 0, torch.qint8)
    torch.save({**state, "norm.bias": quantised}, folder / "state_dict.pt")
    assert "before quantisation" in refuse(folder, "dense tensors").remedy


def test_refuses_a_tensor_that_reaches_beyond_its_storage(folder: Path) -> None:
    size = b"K\x10\x85"
    assert size in zipfile.ZipFile(folder / "norm.pt").read("norm/data.pkl")
    rewrite_pickle(folder / "norm.pt", lambda data: data.replace(size, b"K\x11\x85", 1))
    refuse(folder, "within its storage of 16 elements")


def add_member(path: Path, name: str, *, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(name, bytes(1 << 16))


@pytest.mark.parametrize("name", ["../evil", "norm/../../evil", "norm/data/x", "/norm/version"])
def test_refuses_members_with_other_names(folder: Path, name: str) -> None:
    add_member(folder / "norm.pt", name)
    refuse(folder, "members named as torch.save names them")


def test_refuses_a_member_twice(folder: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        add_member(folder / "norm.pt", "norm/data/0")
    refuse(folder, "members of different names")


def test_refuses_a_member_that_nobody_mentions(folder: Path) -> None:
    add_member(folder / "norm.pt", "norm/data/77")
    refuse(folder, "one member for each storage")


def test_refuses_compressed_members(folder: Path) -> None:
    with zipfile.ZipFile(folder / "norm.pt") as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(folder / "norm.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    refuse(folder, "stored as it is")


def test_refuses_members_that_overlap(folder: Path) -> None:
    data = bytearray((folder / "norm.pt").read_bytes())
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 1)
    offset, size = struct.unpack_from("<L", data, first + 42)[0], 1 << 12
    struct.pack_into("<LL", data, first + 20, size, size)
    assert offset < struct.unpack_from("<L", data, second + 42)[0]
    (folder / "norm.pt").write_bytes(data)
    refuse(folder, "norm.pt")


@pytest.mark.parametrize("name", ["norm.pt", "state_dict.pt", "encoder.pt"])
def test_refuses_a_file_that_was_cut(folder: Path, name: str) -> None:
    path = folder / name
    data = path.read_bytes()
    for size in (0, 1, 21, 22, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        refuse(folder, name)


def test_refuses_a_flipped_bit_in_the_weights(folder: Path) -> None:
    path = folder / "encoder.pt"
    data = bytearray(path.read_bytes())
    weights = zipfile.ZipFile(io.BytesIO(data)).getinfo("encoder/data/0")
    data[weights.header_offset + 200 + weights.file_size // 2] ^= 1
    path.write_bytes(data)
    refuse(folder, "checksum")


def test_refuses_weights_swapped_between_deliveries(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = make_model("attention")
    for parameter in other.parameters():
        parameter.data.add_(1)
    deliver(other, tmp_path / "other", CASES["attention"][1])
    shutil.copy(tmp_path / "other" / "state_dict.pt", folder / "state_dict.pt")
    refuse(folder, "with the same bits")


def test_the_untouched_delivery_is_taken_in(folder: Path) -> None:
    take_in(IntakeJob(folder, folder.parent / "staging"))
    assert read_delivery(folder.parent / "staging").findings == ()
