"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.shared_tools import share_built

if TYPE_CHECKING:
    from tests.tasks.built_release import BuiltRelease

BUCKET = "models"

if "PYTEST_XDIST_WORKER" in os.environ:
    # Threads of numerics that spin while they wait take the cores from those of the other tests:
    # two processes did two fifths of the work of one, and do as much when they sleep (libgomp).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What the markers of pyproject.toml cost, the dearest last.
_COSTS = ("compile", "server", "demo")


def pytest_configure() -> None:
    """Let Python look for no garbage while it imports: there is none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let Python look for garbage, but not among what was imported, which stays to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the dearest files first, each whole: of two that test at once, none is left alone."""
    dearest: dict[Path, int] = {}
    for item in items:
        costs = [_COSTS.index(mark.name) for mark in item.iter_markers() if mark.name in _COSTS]
        dearest[item.path] = max([dearest.get(item.path, -1), *costs])
    items.sort(key=lambda item: -dearest[item.path])


@pytest.fixture
def s3_environment() -> Iterator[dict[str, str]]:
    """An S3 endpoint over HTTP with the bucket `models`; yield its settings.

    It is moto's server, or the one that `HANDOFF_TEST_S3` names: `http://KEY:SECRET@HOST:PORT`.
    """
    with served_s3(os.environ.get("HANDOFF_TEST_S3", "")) as settings:
        yield settings


@contextmanager
def served_s3(address: str) -> Iterator[dict[str, str]]:
    """Give the settings of the S3 endpoint at `address`, or of a new one of moto's."""
    import boto3

    with ExitStack() as stack:
        if not address:
            from moto.server import ThreadedMotoServer

            server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
            server.start()
            stack.callback(server.stop)
            host, port = server.get_host_and_port()
            address = f"http://test:test@{host}:{port}"
        parts = urlsplit(address)
        settings = {
            "AWS_ENDPOINT_URL": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
            "AWS_ACCESS_KEY_ID": parts.username or "",
            "AWS_SECRET_ACCESS_KEY": parts.password or "",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        # Where the bucket is there already, this server answers as if it had just been made.
        boto3.client(
            "s3",
            endpoint_url=settings["AWS_ENDPOINT_URL"],
            aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        ).create_bucket(Bucket=BUCKET)
        yield settings


@pytest.fixture(scope="session")
def built_release(tmp_path_factory: pytest.TempPathFactory) -> BuiltRelease:
    """A recommender that was compiled the way a release does it; once for all processes."""
    from tests.tasks.built_release import shared_release

    return shared_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ runner, as releases build it; once for all tests, and for their releases, too."""
    from handoff.tasks.probe.build import build_runner

    builds = tmp_path_factory.mktemp("runner")
    share_built(builds)
    source = Path(__file__).parents[1] / "infra" / "runner"
    return build_runner(source, builds / "programs")[0]
