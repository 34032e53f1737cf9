"""A worker whose machine loses its compiler leaves its pool, and another one releases the model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from handoff.artifacts.release.signing import make_key
from handoff.flows.names import RELEASE
from handoff.infra.prefect.absences import read_absences
from handoff.infra.prefect.pools import online_workers
from tests.flows.small_delivery import FACTORY
from tests.infra.triggers.conftest import deployed_server

_POOL = "handoff-build"
_COMPILER = '#!/bin/sh\nexec g++ "$@"\n'


def wait_for(what: str, get: Callable[[], Any], limit_s: float = 200.0) -> Any:
    """Return what is there as soon as it is; fail with its name."""
    deadline = time.monotonic() + limit_s
    while not (found := get()):
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.5)
    return found


def environment(api: str, home: Path, **settings: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "HANDOFF_"))}
    return {**kept, "PREFECT_API_URL": api, "HANDOFF_HOME": str(home), **settings}


@contextmanager
def working(api: str, home: Path, log: Path, name: str, **settings: str) -> Iterator[None]:
    """Run `handoff worker` as a person does; end it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "handoff", "worker", "--name", name], stdout=output,
            stderr=output, env=environment(api, home, **settings), stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield
        except AssertionError as error:
            raise AssertionError(f"{error}; its log: {log.read_text()[-3000:]}") from error
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.server
@pytest.mark.compile
@pytest.mark.long
def test_a_model_is_released_by_the_worker_that_has_a_compiler(tmp_path: Path) -> None:
    from prefect.client.orchestration import SyncPrefectClient

    private, public = tmp_path / "keys" / "release.pem", tmp_path / "trusted" / "release.pub"
    make_key(private, public)
    stores = {
        "HANDOFF_STORE": str(tmp_path / "store"), "HANDOFF_SIGNING_KEY": str(private),
        "HANDOFF_SIGNING_PUBLIC_KEY": str(public), "HANDOFF_TRUSTED_KEYS": str(public.parent),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }  # fmt: skip
    compiler = tmp_path / "compiler"
    compiler.write_text(_COMPILER)
    compiler.chmod(0o755)
    (tmp_path / "training.py").write_text(FACTORY)
    with deployed_server(tmp_path / "prefect") as api, SyncPrefectClient(api) as client:

        def now() -> Any:
            return client.read_flow_run(run.id).state

        def online() -> list[str]:
            return online_workers(client).get(_POOL, [])

        made = subprocess.run(
            [sys.executable, "-m", "handoff", "deliver", "training:build", "--to", "small"],
            cwd=tmp_path, env=environment(api, tmp_path / "sound", **stores),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        lame = working(
            api, tmp_path / "lame", tmp_path / "lame.log", "lame", CXX=str(compiler), **stores
        )
        with lame:
            wait_for("the worker that will lose its compiler", lambda: "lame" in online())
            compiler.unlink()
            asked = {"parameters": {"delivery": str(tmp_path / "small")}}
            deployment = client.read_deployment_by_name(RELEASE).id
            run = client.create_flow_run_from_deployment(deployment, parameters=asked)
            (absence,) = wait_for("that it leaves", lambda: read_absences(client))
            assert (absence.pool, absence.worker) == (_POOL, "lame")
            assert "there is no C++ compiler" in absence.why
            assert "lame" not in online()
            assert now().is_scheduled()
            states = client.read_flow_run_states(run.id)
            (gone,) = [state.message or "" for state in states if state.name == "AwaitingRetry"]
            assert gone.startswith("the machine ")
            assert "compiler" in gone
            with working(api, tmp_path / "sound", tmp_path / "sound.log", "sound", **stores):
                wait_for("an end", lambda: now().is_final())
            assert now().is_completed(), now().message
            # As soon as there is a compiler again, it is back.
            compiler.write_text(_COMPILER)
            compiler.chmod(0o755)
            wait_for("that it is back", lambda: "lame" in online())
            assert read_absences(client) == []
    log = (tmp_path / "lame.log").read_text()
    assert "takes no job" in log
    assert "is back" in log
