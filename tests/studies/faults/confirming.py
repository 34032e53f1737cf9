"""python -m tests.studies.faults.confirming: are the cases wrong, or right, by torch alone?

Each model is exported and compiled with nothing but torch, as in the public reports, and its
package compared with eager on the inputs that the case says it shows on. Nothing of Handoff's
delivery, compilation or comparison takes part. Ends with 1 where a case isn't what it says.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.studies.faults.cases import Case
from tests.studies.faults.hard import HARD
from tests.studies.faults.reports.judging import REPORTS


@dataclass(frozen=True)
class OutputComparison:
    """How many elements of a package's outputs are wrong, of how many, and the first in words."""

    wrong: int
    elements: int
    first: str


def confirm(case: Case) -> OutputComparison:
    """Compile the case's model by torch alone and compare it with eager on what it shows on."""
    module, example, shown = case.module(), case.inputs(), case.shows()
    with torch.no_grad():
        want = pytree.tree_leaves(module(*_copies(shown)))
        program = torch.export.export(
            module, tuple(example.values()), dynamic_shapes=_dynamic(case), strict=False
        )
        with tempfile.TemporaryDirectory() as folder:
            file = torch._inductor.aoti_compile_and_package(
                program, package_path=str(Path(folder) / "model.pt2")
            )
            package = torch._inductor.aoti_load_package(file)
            got = pytree.tree_leaves(package(*_copies(shown)))
    found = [_compare(case, *pair) for pair in zip(got, want, strict=True)]
    first = next((one.first for one in found if one.first), "")
    return OutputComparison(
        sum(one.wrong for one in found), sum(one.elements for one in found), first
    )


def _dynamic(case: Case) -> object:
    if case.batch is None:
        return None
    low, high = case.batch
    batch = torch.export.Dim("batch", min=low, max=high)
    return tuple({0: batch} for _ in case.inputs())


def _copies(inputs: object) -> tuple[Tensor, ...]:
    assert isinstance(inputs, dict)
    return tuple(tensor.clone() for tensor in inputs.values())


def _compare(case: Case, got: Tensor, want: Tensor) -> OutputComparison:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        difference = f"{got.dtype} {tuple(got.shape)} for {want.dtype} {tuple(want.shape)}"
        return OutputComparison(want.numel(), want.numel(), difference)
    if want.is_complex():
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    if not want.is_floating_point():
        wrong = got != want
    else:
        exact, finite = want.double(), want.double().nan_to_num(0.0, 0.0, 0.0).abs()
        # By feature: what lies side by side may be of different sizes.
        largest = finite.amax(dim=tuple(range(want.dim() - 1))) if want.dim() > 1 else finite.max()
        same = (got == want) | (got.isnan() & want.isnan())
        wrong = ~same & ~((got.double() - exact).abs() <= case.rtol * largest)
    first = ""
    if wrong.any():
        place = tuple(int(index) for index in wrong.nonzero()[0])
        first = f"{got[place].item()!r} for {want[place].item()!r}"
    return OutputComparison(int(wrong.sum()), want.numel(), first)


def confirm_all(chosen: Iterable[Case]) -> bool:
    """Confirm each, print it, and return whether all are what they say."""
    good = True
    for case in chosen:
        found = confirm(case)
        is_wrong = getattr(case, "must", "released") == "refused"
        as_said = is_wrong == bool(found.wrong)
        good &= as_said
        counts = f"{found.wrong} of {found.elements} elements wrong"
        mark = "as said" if as_said else "NOT AS SAID"
        print(f"{mark}: {case.name}: {counts}{': ' * bool(found.first)}{found.first}", flush=True)
    return good


def main() -> int:
    """Confirm the cases of these names, or all."""
    warnings.simplefilter("ignore")
    names = sys.argv[1:]
    chosen = [case for case in (*REPORTS, *HARD) if not names or case.name in names]
    return 0 if chosen and confirm_all(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
