"""What a library for ARM64 is seen to hold, by the lines that objdump prints of it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from handoff.artifacts.errors import BlessingRefused
from handoff.artifacts.recipe.target import ArmTarget
from handoff.tasks.compile.reading.instructions import features_of, find_arm_features


@pytest.mark.parametrize(
    ("mnemonic", "operands", "features"),
    [
        (b"add", b"x0, x1, x2", set()),
        (b"fadd", b"v0.4s, v1.4s, v2.4s", {"asimd"}),
        (b"ldr", b"q0, [x1]", {"asimd"}),
        (b"ldadd", b"w0, w1, [x2]", {"atomics"}),
        (b"casal", b"x0, x1, [x2]", {"atomics"}),
        (b"fadd", b"v0.8h, v1.8h, v2.8h", {"asimd", "asimdhp"}),
        (b"fcvtl", b"v0.4s, v1.4h", {"asimd"}),
        (b"fmadd", b"h0, h1, h2, h3", {"fphp"}),
        (b"sdot", b"v0.4s, v1.16b, v2.16b", {"asimd", "asimddp"}),
        (b"bfmmla", b"v0.4s, v1.8h, v2.8h", {"asimd", "bf16"}),
        (b"smmla", b"v0.4s, v1.16b, v2.16b", {"asimd", "i8mm"}),
        (b"fadd", b"z0.s, p0/m, z0.s, z1.s", {"sve"}),
        (b"ptrue", b"p0.s", {"sve"}),
    ],
)
def test_an_instruction_names_the_feature_that_it_needs(
    mnemonic: bytes, operands: bytes, features: set[str]
) -> None:
    assert features_of(mnemonic, operands) == features


def test_sve_and_bfloat16_are_beyond_the_level() -> None:
    assert not {"sve", "bf16", "i8mm", "asimddp", "asimdhp"} & ArmTarget("v8.2").cpu_flags


def test_a_library_for_another_processor_is_refused() -> None:
    objdump = shutil.which("objdump")
    assert objdump is not None
    if Path(objdump).name != "objdump" or "aarch64" in sys.version:
        pytest.skip("this machine's own is ARM64's")
    with pytest.raises(BlessingRefused, match="not a library for ARM64"):
        find_arm_features(Path(shutil.which("true") or "/bin/true"), objdump)
