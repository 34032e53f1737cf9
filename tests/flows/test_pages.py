"""What a flow run's page says of a release leads to MLflow, and holds no secret."""

from __future__ import annotations

import pytest

from handoff.flows.pages import mlflow_page


@pytest.mark.parametrize(
    ("tracking", "page"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000/#/models/toy"),
        ("https://ann:secret@host/mlflow/?token=t", "https://host/mlflow/#/models/toy"),
        ("sqlite:////home/ann/mlflow.db", ""),
        ("postgresql://ann:secret@host/mlflow", ""),
    ],
)
def test_a_models_page_is_told_without_the_login_and_only_of_a_server(
    tracking: str, page: str
) -> None:
    assert mlflow_page(tracking, "#/models/toy") == page
