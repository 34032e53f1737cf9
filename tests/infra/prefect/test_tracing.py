"""When traces of releases are sent; `tests/flows/test_release.py` tells what a collector gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from handoff.infra.settings import wants_traces
from tests.infra.commands.test_cli import handoff
from tests.prefect_server import common_server
from tests.tasks.deliveries import write_delivery


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(nn.functional.dropout(x, 0.5, True))
        return found


def refused(folder: Path, **environment: str) -> None:
    """Release a delivery that is refused when it is inspected."""
    delivery = write_delivery(folder / "delivery", Noise().eval(), {"x": torch.randn(3, 4)})
    settings = {"PREFECT_API_URL": common_server(), **environment}
    result = handoff("release", str(delivery), home=folder / "home", settings=settings)
    assert result.returncode == 2, result.stderr
    assert "random numbers" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.long
def test_a_collector_that_is_not_there_changes_no_outcome(tmp_path: Path) -> None:
    refused(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_sent_where_opentelemetrys_variables_say_so(
    given: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                 "OTEL_SDK_DISABLED"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert wants_traces() == wanted
