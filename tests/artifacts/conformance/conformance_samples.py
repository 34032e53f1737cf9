"""Conformance tables for tests."""

from __future__ import annotations

from handoff.artifacts.conformance.table import (
    Conformance,
    ConformanceRow,
    Counterexample,
    PlainTensor,
)

AMAX = "aten.amax.default(int8)"
ADD = "aten.add.Tensor(float32, float32)"
CODE = """\
def forward(self, tensors_0_0):
    amax = torch.ops.aten.amax.default(tensors_0_0, [-1]);  tensors_0_0 = None
    return (amax,)"""


def toolchain(torch: str = "2.15.0", target: str = "cpu-avx512") -> dict[str, str]:
    return {
        "torch": torch,
        "triton": "3.9.0",
        "compiler": "g++ 12.2.0",
        "target": target,
        "options": "{}",
    }


def wrong_amax(*, rows: int = 1) -> ConformanceRow:
    values = tuple(-1 - place for place in range(rows * 16))
    showing = Counterexample(
        "one-sided, negative",
        f"int8[{rows}, 16], -1",
        (AMAX,),
        CODE,
        (PlainTensor("int8", (rows, 16), values),),
        output=0,
        wrong=rows,
        elements=rows,
        first=0,
        got="0",
        want="-1",
    )
    return ConformanceRow(
        "amax",
        "int8",
        "wrong",
        asked=21,
        calls=(AMAX,),
        showing=showing,
        questions=("one-sided, negative",),
        reports=(191499,),
    )


def right_add() -> ConformanceRow:
    return ConformanceRow("add", "float32", "right", asked=60, calls=(ADD,))


def table(*rows: ConformanceRow, torch: str = "2.15.0") -> Conformance:
    ordered = sorted(rows or (right_add(), wrong_amax()), key=lambda row: row.pair)
    return Conformance(
        toolchain(torch), "2026-11-24T22:00:00+00:00", 1500.0, tuple(ordered), "AMD EPYC"
    )
