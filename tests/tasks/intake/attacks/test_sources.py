"""Attacks in module.py and __init__.py: nothing that fx does not write is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.intake.attacks.planting import refuse, rewrite_source
from tests.tasks.intake.models import deliver_case

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
