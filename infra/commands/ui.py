"""`handoff ui`: MLflow's own UI on what is registered."""

from __future__ import annotations

import os

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.isolation import ISOLATION_VARIABLES, isolated_command
from handoff.infra.engine.environments import replace_process
from handoff.infra.engine.import_paths import empty_folder
from handoff.infra.extras import require_extra
from handoff.infra.servers import LOOPBACK, require_free_port
from handoff.infra.settings import Settings, read_settings, require_writable_home
from handoff.infra.terminal.output import echo


def open_ui(host: str, port: int) -> None:
    """Replace this process by MLflow's server on the embedded registry; it ends with Ctrl-C.

    Where `MLFLOW_TRACKING_URI` names a server, that server's own page is named instead.
    """
    settings = read_settings()
    if settings.stores.tracking_uri.startswith("http"):
        echo(f"The registry is a server of its own: open {settings.stores.tracking_uri}")
        return
    if host not in LOOPBACK:
        raise UsageProblem(
            "MLflow's UI is not shown to the network", expected="a loopback address",
            got=host[:60], remedy="MLflow has no login here: use an MLflow server with one, "
            "named by MLFLOW_TRACKING_URI, or an SSH tunnel",
        )  # fmt: skip
    # MLflow's server is a program of its own: nothing would say that it isn't here.
    require_extra("release")
    require_writable_home(settings)
    require_free_port(host, port, "MLflow")
    # Without this MLflow's pages begin with what is for language models.
    page = f"http://{host}:{port}/#/models?workflowType=machine_learning"
    echo(f"MLflow: {page}  (Ctrl-C ends it)", err=True)
    os.chdir(empty_folder(settings.home))
    replace_process(
        _command(settings, host, port),
        {**ISOLATION_VARIABLES, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )


def _command(settings: Settings, host: str, port: int) -> list[str]:
    return isolated_command(
        "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1",
        "--backend-store-uri", settings.stores.tracking_uri,
        "--default-artifact-root", settings.stores.artifact_root,
    )  # fmt: skip
