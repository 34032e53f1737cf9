"""Each finding that makes a delivery unsound: its example, mended as `handoff explain` says."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from handoff.infra.explaining.explanations import Explanation, explanations
from handoff.tasks.inspect.messages import TraceabilityJob
from handoff.tasks.inspect.step import run as inspect
from handoff.tasks.intake.messages import IntakeJob
from handoff.tasks.intake.step import run as take_in
from tests.infra.commands.test_explain import write_contract

UNSOUND = {
    code: one
    for code, one in explanations().items()
    if one.kind == "finding" and one.severity.startswith("unsound")
}
# What the fix of each has changed in the program that shows it.
MENDED = {
    "example-fails": ('["batch", 8]', '["batch", 16]'),
    "size-baked-in": ("x.view(8, 4, 4)", "x.view(x.shape[0], 4, 4)"),
    "bag-offsets": ("self.bag(ids, offsets)", "self.bag(ids.unflatten(0, (offsets.shape[0], -1)))"),
    "size-beyond-model": ("max = 512", "max = 64"),
    "not-exportable": ("steps = { min = 1, max = 20 }", "steps = { min = 20, max = 20 }"),
    "golden-mismatch": ('weights["0.weight"] *= 2.0\n', ""),
    "golden-in-training-mode": ("net.train()(x)", "net.eval()(x)"),
    "not-repeatable": ("dropout(x, 0.5)", "dropout(x, 0.5, training=self.training)"),
    "random-operator": ("forward(self, x):\n        return x + torch.randn_like(x)",
                        "forward(self, x, noise):\n        return x + noise"),
    "burnt-in-random-constant": (
        "    def forward(self, x):\n        return x + torch.rand(16)",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('drawn', torch.rand(16))\n"
        "    def forward(self, x):\n        return x + self.drawn",
    ),
    "changes-state": ("        self.total.add_(x.mean())\n", ""),
    "training-mode": ("net.train()", "net.eval()"),
    "non-finite-weights": ('net[0].weight.data[0, 0] = float("nan")\n', ""),
    "non-finite-output": ("torch.log(-1.0 - x * x)", "torch.log((x * x).clamp(min=1e-6))"),
    "complex-output": ("torch.fft.fft(x)", "torch.view_as_real(torch.fft.fft(x))"),
    "constant-output": ("self.layer.bias * 2.0", "self.layer(x)"),
    "ids-beyond-table": ("high = 99", "high = 49"),
}  # fmt: skip
# And in the command that gives it a contract.
SAID = {
    "lineage-incomplete": " --repository https://example.org/models --commit 0123abc",
    "random-operator": " --input 'noise:float32:batch,16'",
}


def findings_of(explained: Explanation, folder: Path) -> tuple[str, dict[str, str]]:
    """Run the example in `folder`; return the verdict and each finding's severity."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        patched.chdir(folder)
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        exec(compile(explained.example, "example.py", "exec"), {"__name__": "__main__"})
        if explained.shown_by:
            write_contract(folder / "folder", explained)
        taken = take_in(IntakeJob(folder / "folder", folder / "staging"))
        judged = inspect(TraceabilityJob(folder / "staging", exports=True))
    findings = (*taken.findings, *judged.findings)
    return judged.verdict, {one.code: one.severity for one in findings}


def test_every_unsound_finding_has_its_walk() -> None:
    assert {*MENDED} | {*SAID} == {*UNSOUND}


@pytest.mark.parametrize("code", sorted(UNSOUND))
def test_doing_what_the_fix_says_leaves_the_finding_out(code: str, tmp_path: Path) -> None:
    explained = UNSOUND[code]
    _, before = findings_of(explained, tmp_path / "before")
    assert code in before
    was, becomes = MENDED.get(code, ("", ""))
    assert was in explained.example
    shown_by = tuple(command + SAID.get(code, "") for command in explained.shown_by)
    mended = replace(explained, example=explained.example.replace(was, becomes), shown_by=shown_by)
    verdict, after = findings_of(mended, tmp_path / "after")
    assert code not in after
    assert verdict != "unsound", after
