"""The capture table: what each capture technology makes of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from handoff.artifacts.release.interval import Interval

CaptureMethod = Literal[
    "torch.fx", "torch.export", "torch.export strict", "torch.compile", "torch.jit.trace",
    "torch.jit.script", "torch.onnx", "lazy tensors",
]  # fmt: skip
# In the order of the table.
CAPTURE_METHODS: tuple[CaptureMethod, ...] = (
    "torch.fx", "torch.export", "torch.export strict", "torch.compile", "torch.jit.trace",
    "torch.jit.script", "torch.onnx", "lazy tensors",
)  # fmt: skip


@dataclass(frozen=True)
class CaptureRow:
    """What one method made of a model.

    `captured` without a `reason` means that there is something to call. `tried` sizes and values
    other than the example's were compared with eager, `wrong` says at which of them it failed or
    differed and how, and `max_abs` is the largest difference where it ran. `speedup` is eager's
    time by the captured model's on the example, with a 95 % interval; 0 where it wasn't measured.
    `breaks` are Dynamo's graph breaks, each with its reason and line.
    """

    # By this name records have it.
    road: CaptureMethod
    captured: bool
    reason: str = ""
    tried: int = 0
    wrong: tuple[str, ...] = ()
    max_abs: float = 0.0
    capture_s: float = 0.0
    speedup: float = 0.0
    speedup_low: float = 0.0
    speedup_high: float = 0.0
    breaks: tuple[str, ...] = ()

    @property
    def method(self) -> CaptureMethod:
        """The method that the row is of."""
        return self.road

    @property
    def is_right(self) -> bool:
        """Return whether it was captured and gave eager's results wherever it was tried."""
        return self.captured and not self.wrong and self.tried > 0

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, below `COLUMNS`."""
        if not self.captured:
            return self.method, "no", "", "", "", ""
        right = f"{self.tried - len(self.wrong)} of {self.tried}"
        speed = Interval(self.speedup, self.speedup_low, self.speedup_high).text
        breaks = f", {len(self.breaks)} breaks" if self.breaks else ""
        return (
            self.method, f"yes{breaks}", right, f"{self.max_abs:.1e}",
            speed if self.speedup else "", f"{self.capture_s:.1f} s",
        )  # fmt: skip

    @property
    def shortcomings(self) -> tuple[str, ...]:
        """Why it wasn't captured, else the first of what is wrong and of the graph's breaks."""
        return (self.reason,) if self.reason else (*self.wrong[:3], *self.breaks[:3])


COLUMNS = ("captured by", "captured", "right elsewhere", "max error", "x eager", "capture")


def recommend(rows: tuple[CaptureRow, ...]) -> str:
    """Return in words which method suits the model, and why: the rows' measurements decide.

    It is a decision tree for a service without Python: ahead of time by `torch.export`
    where that is right on every size, and how to come there where it isn't.
    """
    by_method = {row.method: row for row in rows}
    exports = [by_method[method] for method in CAPTURE_METHODS[1:3] if method in by_method]
    right = next((row for row in exports if row.is_right), None)
    parts = []
    if right is not None:
        parts.append(
            f"{right.method} captures it and is right on all {right.tried} other inputs: "
            "compile it ahead of time (AOTInductor)"
        )
        parts += [
            f"not {row.method}, which is wrong {row.wrong[0]}" for row in rows if row.wrong
        ]  # fmt: skip
        return "; ".join(parts) + "."
    parts += [f"{row.method}: {row.reason or _describe_first_failure(row)}" for row in exports]
    compiled = by_method.get("torch.compile")
    others = [
        row
        for row in rows
        if row.is_right and row.method not in ("torch.compile", *CAPTURE_METHODS[:3])
    ]
    if compiled is not None and compiled.breaks:
        parts.append(f"Dynamo breaks the graph: {compiled.breaks[0]}")
    if others:
        fastest = max(others, key=lambda row: row.speedup)
        parts.append(f"{fastest.method} is right on all {fastest.tried} other inputs, meanwhile")
    elif compiled is not None and compiled.is_right:
        parts.append("torch.compile is right, for a service that has Python")
    else:
        parts.append("nothing is right on every input: serve it in eager until that is fixed")
    return "No capture that can be compiled ahead of time: " + "; ".join(parts) + "."


def _describe_first_failure(row: CaptureRow) -> str:
    return f"wrong {row.wrong[0]}" if row.wrong else "not compared"
