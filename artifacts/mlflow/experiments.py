"""The experiments that runs are logged in: releases in one, nights and tables in others."""

from __future__ import annotations

from handoff.artifacts.mlflow.session import Session

RELEASES = "handoff"
NIGHTS = "handoff nights"
CONFORMANCE = "handoff conformance"
# MLflow's pages take an experiment for one with language models otherwise.
_TAGS = {"mlflow.experimentKind": "custom_model_development"}


def open_experiment(session: Session, name: str, artifact_root: str) -> str:
    """Return the experiment's id; make it first where it isn't there.

    Its artifacts are kept below `artifact_root`; where that is empty, the server says where.
    """
    client = session.client
    found = session.call(client.get_experiment_by_name, name)
    if found is None:
        session.create_once(client.create_experiment, name, artifact_root or None, _TAGS)
        found = session.call(client.get_experiment_by_name, name)
    assert found is not None
    return str(found.experiment_id)
