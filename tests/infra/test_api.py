"""The Python API: what needs no compile. The walk of the documents goes the rest of its way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import handoff


def test_importing_the_api_imports_no_torch() -> None:
    code = "import sys, handoff, handoff.infra.api\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_is_delivered_and_judged(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    result = handoff.deliver(model, (torch.randn(2, 4),), tmp_path / "delivery", name="toy")
    assert result.contract.source.created
    inspection = handoff.inspect(tmp_path / "delivery")
    assert (inspection.model, inspection.verdict) == ("toy", "sound")


def test_what_is_no_delivery_is_refused_as_the_command_line_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(handoff.DeliveryUnreadable, match="got nothing of that name"):
        handoff.release(tmp_path / "nowhere")


def test_without_a_key_nothing_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDOFF_HOME", str(tmp_path))
    monkeypatch.delenv("HANDOFF_TRUSTED_KEYS", raising=False)
    with pytest.raises(handoff.UsageProblem, match="holds no public key"):
        handoff.trusted_keys()


def test_what_mlflow_was_shown_by_the_first_version_still_finds_its_loader(tmp_path: Path) -> None:
    code = (
        "import sys, types; sys.path[:] = [p for p in sys.path if p]\n"
        "sys.path_importer_cache.clear()\n"
        "import handoff\n"
        "sys.path[:] = [p for p in sys.path if not __import__('os').path.isdir(p + '/infra')]\n"
        "import handoff.infra.flavor\n"
        "try:\n    import infra\n    print('for all')\nexcept ModuleNotFoundError:\n"
        "    print('hidden')\n"
        "sys.modules['mlflow'] = types.ModuleType('mlflow')\n"
        "import infra.flavor\n"
        "print(infra.flavor is handoff.infra.flavor)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stdout.split("\n")[:2] == ["hidden", "True"]
