"""The Python API: what needs no compile. The walk of the documents goes the rest of its way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.artifacts.errors import DeliveryUnreadable, UsageProblem
from handoff.infra import api


def test_importing_the_api_imports_no_torch() -> None:
    code = "import sys, infra.api\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_is_delivered_and_judged(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    result = api.deliver(model, (torch.randn(2, 4),), tmp_path / "delivery", name="toy")
    assert result.contract.source.created
    inspection = api.inspect(tmp_path / "delivery")
    assert (inspection.model, inspection.verdict) == ("toy", "sound")


def test_what_is_no_delivery_is_refused_as_the_command_line_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(DeliveryUnreadable, match="got nothing of that name"):
        api.release(tmp_path / "nowhere")


def test_without_a_key_nothing_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.delenv("HANDOFF_TRUSTED_KEYS", raising=False)
    with pytest.raises(UsageProblem, match="holds no public key"):
        api.trusted_keys()
