"""Every place of a delivery where a text can stand, and a delivery that has them all."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from safetensors.torch import load_file, save_file
from torch import nn

from handoff.artifacts.delivery.contract import CONTRACT_FILE, EXAMPLES_FILE, SOURCES_FILE
from tests.tasks.intake.attacks.planting import rewrite_pickle
from tests.tasks.intake.models import deliver, spec

Plant = Callable[[Path, str], None]
_STRUCTURE = """[structure]
inputs = ["x"]
outputs = ["scores", "rows"]
fixed = ["mode = 1"]

[[inputs]]"""


class Texts(nn.Module):
    """A model with a text wherever a model has one."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.GELU("tanh")
        self.layer = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.offset: torch.Tensor
        self.register_buffer("offset", torch.rand(8))
        self.scale = nn.Parameter(torch.rand(8, 8))

    def forward(self, x: torch.Tensor, mode: str = "bilinear") -> dict[str, Any]:
        good = torch.ops.aten.all.default(torch.ops.aten.gt.Scalar(x, -99.0))
        torch.ops.aten._assert_async.msg(good, "too small")
        torch._assert(good, "too low")
        y = F.gelu(self.norm(self.layer(self.act(x))), approximate="tanh")
        z = torch.einsum("ij,kj->ik", y, self.scale).to("cpu").to(torch.float32)
        zeros = torch.zeros_like(z, device=torch.device("cpu"))
        return {"scores": z + zeros + self.offset, "rows": [y]}


def write_delivery(folder: Path) -> Path:
    """Write the delivery of `Texts`, with a contract, examples and sources."""
    torch.manual_seed(0)
    deliver(Texts().eval(), folder, (spec("x", "float32", "N", 8),))
    save_file({"0/inputs/x": torch.rand(3, 8)}, folder / EXAMPLES_FILE)
    (folder / SOURCES_FILE).write_text(json.dumps({"gelu": "net.py:7"}))
    contract = (folder / CONTRACT_FILE).read_text()
    structure = '[structure]\ninputs = ["x"]\noutputs = ["scores", "rows"]\nfixed = ["mode = 1"]\n'
    (folder / CONTRACT_FILE).write_text(
        contract.replace("[[inputs]]", f"{structure}\n[[inputs]]", 1)
    )
    return folder


@dataclass(frozen=True)
class PlaceOfText:
    """A place by name, how a text is put there, one that has to pass, and what happens to others.

    `kept out` says that the delivery is read, and that the text goes no further than the folder, or
    is shown as it is where it can be.
    """

    name: str
    plant: Plant
    harmless: str
    otherwise: Literal["refused", "kept out"] = "refused"


def _in_file(file: str, old: str, new: Callable[[str], str]) -> Plant:
    """Return what replaces the first `old` in a text file by what `new` makes of the text."""

    def plant(folder: Path, text: str) -> None:
        path = folder / file
        before, found, after = path.read_text(encoding="utf-8").partition(old)
        assert found, f"{old!r} is not in {file}"
        path.write_text(before + new(text) + after, encoding="utf-8", newline="")

    return plant


def _source(old: str, new: str) -> Plant:
    """Return what puts the text's repr for `@` in `new`, which takes the place of `old`."""
    return _in_file("module.py", old, lambda text: new.replace("@", repr(text)))


def _bare(old: str, new: str) -> Plant:
    """Return what puts the text itself for `@` in `new`, up to its first line's end."""
    return _in_file("module.py", old, lambda text: new.replace("@", text.split("\n")[0]))


def _contract(old: str, new: str) -> Plant:
    def quoted(text: str) -> str:
        return new.replace("@", json.dumps(text).replace("\x7f", "\\u007f"))

    return _in_file(CONTRACT_FILE, old, quoted)


def _pickled(file: str, old: str) -> Plant:
    """Return what puts the text for one that a pickle holds, everywhere in it."""

    def coded(text: str) -> bytes:
        data = text.encode()
        return b"X" + struct.pack("<I", len(data)) + data

    def plant(folder: Path, text: str) -> None:
        def change(data: bytes) -> bytes:
            assert coded(old) in data
            return data.replace(coded(old), coded(text))

        rewrite_pickle(folder / file, change)

    return plant


def _added_attribute(folder: Path, text: str) -> None:
    layer = nn.LayerNorm(8)
    vars(layer)["never_read"] = text
    state = torch.load(folder / "state_dict.pt", weights_only=True)
    layer.load_state_dict({key: state[f"norm.{key}"] for key in ("weight", "bias")})
    torch.save(layer.eval(), folder / "norm.pt")


def _example_key(folder: Path, text: str) -> None:
    save_file({f"0/inputs/{text}": torch.rand(3, 8)}, folder / EXAMPLES_FILE)


def _example_note(folder: Path, text: str) -> None:
    save_file(load_file(folder / EXAMPLES_FILE), folder / EXAMPLES_FILE, {"note": text})


def _sources_key(folder: Path, text: str) -> None:
    (folder / SOURCES_FILE).write_text(json.dumps({text: "net.py:7"}))


def _sources_line(folder: Path, text: str) -> None:
    (folder / SOURCES_FILE).write_text(json.dumps({"gelu": text}))


def _file_name(folder: Path, text: str) -> None:
    name = re.sub("[/\0]", "_", text)
    if name != "__pycache__":
        (folder / name).write_text("x")


_ACT = "act = self.act(x)"
_FORWARD = "    def forward"
_WRAP = "torch.fx._symbolic_trace.wrap"
_LIMITS = "[dimensions.N]"

_OPERATORS: tuple[PlaceOfText, ...] = (
    PlaceOfText("an operator's word", _source("approximate = 'tanh'", "approximate = @"), "none"),
    PlaceOfText("a message of ATen's", _source("'too small'", "@"), "so", "kept out"),
    PlaceOfText("a message of torch's", _source("'too low'", "@"), "so", "kept out"),
    PlaceOfText("an einsum equation", _source("'ij,kj->ik'", "@"), "ij,kj->ki"),
    PlaceOfText("a device as text", _source(".to('cpu')", ".to(@)"), "cuda:0"),
    PlaceOfText("a device", _source("device(type='cpu')", "device(type=@)"), "cuda"),
    PlaceOfText("a dtype as text", _source("device = device", "dtype = @, device = device"), ""),
    PlaceOfText("a text beside a tensor", _source("act(x)", "act(x, @)"), ""),
    PlaceOfText("a key of an argument", _source("act(x)", "act(x, {@: 1})"), ""),
    PlaceOfText("an input's default", _source("'bilinear'", "@"), "nearest"),
    PlaceOfText("an output's key", _source("'scores'", "@"), "head.0/box"),
    PlaceOfText("an output that is a text", _source("'rows'", "'rows': @, 'more'"), "label"),
)
_NAMES: tuple[PlaceOfText, ...] = (
    PlaceOfText(
        "a wrapped function", _source(_FORWARD, f"    {_WRAP}(@)\n\n{_FORWARD}"), "math_sqrt"
    ),
    PlaceOfText("an attribute of a tensor", _bare(_ACT, "act = x.@"), "mT"),
    PlaceOfText("a path below self", _bare("self.act(x)", "self.@(x)"), "act"),
    PlaceOfText("a path in quotes", _source("self.act(x)", "getattr(self, @)(x)"), ""),
    PlaceOfText("a child", _source("'layer', Linear", "@, Linear"), "layer"),
    PlaceOfText("a buffer", _source("'offset'", "@"), "offset"),
    PlaceOfText("a parameter", _source("'scale'", "@"), "scale"),
    PlaceOfText("the class", _bare("class FxModule(", "class @("), "Other"),
    PlaceOfText("a value's name", _bare(_ACT, "@ = act = self.act(x)"), ""),
    PlaceOfText("a keyword", _bare("approximate =", "@ ="), "approximate"),
    PlaceOfText("a dtype", _bare("to(torch.float32)", "to(torch.@)"), "float32"),
    PlaceOfText("a function", _bare("functional.einsum", "functional.@"), "einsum"),
    PlaceOfText("a file's folder", _bare("r'", "r@ r'"), ""),
)
_UNREAD: tuple[PlaceOfText, ...] = (
    PlaceOfText("a comment", _bare(_ACT, f"{_ACT}  # @"), "a note", "kept out"),
    PlaceOfText("an annotation", _source("_torch_Tensor_", "@"), "Tensor", "kept out"),
    PlaceOfText("a docstring", _source(_FORWARD, f"    @\n\n{_FORWARD}"), ""),
    PlaceOfText("a docstring of forward", _source(_ACT, f"@; {_ACT}"), ""),
)
_TENSORS: tuple[PlaceOfText, ...] = (
    PlaceOfText("a key of the state", _pickled("state_dict.pt", "offset"), "offset"),
    PlaceOfText("a layer's word", _pickled("act.pt", "tanh"), "none"),
    PlaceOfText("a layer's attribute", _pickled("act.pt", "approximate"), "approximate"),
    PlaceOfText("an attribute that nobody reads", _added_attribute, "a note", "kept out"),
    PlaceOfText("a layer's parameter", _pickled("norm.pt", "weight"), "weight"),
    PlaceOfText("an example's key", _example_key, "x"),
    PlaceOfText("a note of the examples", _example_note, "a note", "kept out"),
)
_SAID = ("class_name", "captured_by", "repository", "commit", "training_run", "author", "created")
_CONTRACT: tuple[PlaceOfText, ...] = (
    *(
        PlaceOfText(f"the {key}", _contract(f'{key} = ""', f"{key} = @"), "Zoë, 7", "kept out")
        for key in _SAID
    ),
    PlaceOfText("the torch", _contract(f'"{torch.__version__}"', "@"), "2.14", "kept out"),
    PlaceOfText("the model's name", _contract('name = "toy"', "name = @"), "toy-2"),
    PlaceOfText("an input's name", _contract('name = "x"', "name = @"), "x"),
    PlaceOfText("an input's dtype", _contract('dtype = "float32"', "dtype = @"), "float32"),
    PlaceOfText("a dimension", _contract('["N", 8]', "[@, 8]"), "N"),
    PlaceOfText("an unused dimension", _contract(_LIMITS, f"{_LIMITS[:-2]}@]\n\n{_LIMITS}"), "M"),
    PlaceOfText("a key of the contract", _contract("draw =", "@ = 1\ndraw ="), ""),
    PlaceOfText("how inputs are drawn", _contract('"random"', "@"), "random"),
    PlaceOfText(
        "an input's path", _contract('inputs = ["x"]', "inputs = [@]"), "b['x']", "kept out"
    ),
    PlaceOfText("an output's path", _contract('"scores", ', "@, "), "['y'][0]", "kept out"),
    PlaceOfText("a fixed argument", _contract('["mode = 1"]', "[@]"), "a = 'b'", "kept out"),
)
_FILES: tuple[PlaceOfText, ...] = (
    PlaceOfText("a node in the sources", _sources_key, "gelu", "kept out"),
    PlaceOfText("a line in the sources", _sources_line, "models/net.py:12"),
    PlaceOfText("a file's name", _file_name, "__pycache__"),
    PlaceOfText("__init__.py", _in_file("__init__.py", "import *", lambda t: f"import *\n{t}"), ""),
)
PLACES = (*_OPERATORS, *_NAMES, *_UNREAD, *_TENSORS, *_CONTRACT, *_FILES)
