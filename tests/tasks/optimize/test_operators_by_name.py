"""Models of operators that AOTInductor has no C function for: released, in Python and in C++."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from handoff.artifacts.delivery.signature import Dimension
from handoff.artifacts.errors import PackageRefused
from handoff.artifacts.recipe.recipe import Recipe
from handoff.artifacts.serve.archive import operators_in
from handoff.artifacts.serve.loader import load
from handoff.tasks.verify.messages import VerifyJob
from handoff.tasks.verify.step import run as verify
from tests.tasks.built_release import BuiltRelease, release_of

pytestmark = pytest.mark.compile


class Mixed(nn.Module):
    """An inverse, a filter in the frequency domain, a log-mel spectrogram, rounding; and counts.

    The last two outputs have sizes that only the data decides.
    """

    window: Tensor
    mel: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("window", torch.hann_window(64))
        self.register_buffer("mel", torch.rand(33, 10))

    def forward(self, x: Tensor) -> Any:
        matrices = x[:, :64].reshape(-1, 8, 8)
        symmetric = matrices @ matrices.transpose(-1, -2) + 4.0 * torch.eye(8)
        filtered = torch.fft.irfft(torch.fft.rfft(x, dim=-1) * 0.5, n=320)
        framed = torch.stft(x, 64, 32, window=self.window, return_complex=True)
        mel = (framed.abs().square().transpose(1, 2) @ self.mel + 1e-2).log()
        rounded = torch.fake_quantize_per_tensor_affine(x[:, :8], 0.05, 0, -128, 127)
        ids = (x[:, :8] * 2.0).round().clamp(-4.0, 4.0).to(torch.int64) + 4
        counts = torch.bincount(ids.flatten(), minlength=6)
        return torch.linalg.inv(symmetric), filtered, mel, rounded, torch.unique(ids), counts


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> BuiltRelease:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("by-name")
    return release_of(folder, Mixed().eval(), {"x": torch.randn(4, 320)}, Dimension(1, 64))


def test_the_json_of_what_is_called_is_released_beside_the_library(release: BuiltRelease) -> None:
    names = [file.path.rpartition("/")[2] for file in release.manifest.targets[0].files]
    assert sorted(names) == ["model.json", "model.pt2", "model.so"]
    called = operators_in((release.package / "model.json").read_bytes())
    for name in ("linalg_inv_ex", "_fft_c2r", "_unique2", "bincount"):
        assert f"aten::{name}" in called


def test_its_numbers_are_accepted(release: BuiltRelease) -> None:
    job = VerifyJob(release.package, release.reference, Recipe(), target=release.slug)
    found = verify(job)
    assert found.reasons == ()
    assert {deviation.output for deviation in found.deviations} == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("file", ["model.so", "model.pt2"])
def test_python_and_cpp_give_what_eager_gives(
    release: BuiltRelease, runner: Path, tmp_path: Path, file: Any
) -> None:
    x = torch.randn(5, 320)
    got = load(release.folder, keys=release.key, file=file)(x)
    for one, want in zip(got, Mixed().eval()(x), strict=True):
        torch.testing.assert_close(one, want, rtol=1e-4, atol=1e-4)
    cases = tmp_path / "cases.safetensors"
    save_file(
        {"0/inputs/x": x, **{f"0/outputs/{i}": t.contiguous() for i, t in enumerate(got)}}, cases
    )
    arguments = [
        str(runner), "replay", str(release.folder), str(cases), "--key", str(release.key),
        "--file", file, "--threads", "1,4",
    ]  # fmt: skip
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [json.loads(line)["calls"] for line in ended.stdout.splitlines()] == [3, 12]


def test_another_json_is_opened_by_nobody(release: BuiltRelease, runner: Path) -> None:
    path = release.package / "model.json"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"aten::linalg_inv_ex", b"aten::linalg_pinv_x"))
    try:
        with pytest.raises(PackageRefused, match=r"model\.json is not the file that was released"):
            load(release.folder, keys=release.key)
        ended = subprocess.run(
            [str(runner), "call", str(release.folder), "x", "y", "--key", str(release.key)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 1
        assert "model.json is not the file that was released" in ended.stderr
    finally:
        path.write_bytes(data)
