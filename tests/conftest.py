"""Fixtures that several rooms' tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tasks.built_release import BuiltRelease

BUCKET = "models"


@pytest.fixture
def s3_environment() -> Iterator[dict[str, str]]:
    """An S3 endpoint over HTTP (moto's server) with the bucket `models`; yield its settings."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        settings = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        boto3.client(
            "s3",
            endpoint_url=settings["AWS_ENDPOINT_URL"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        ).create_bucket(Bucket=BUCKET)
        yield settings
    finally:
        server.stop()


@pytest.fixture(scope="session")
def built_release(tmp_path_factory: pytest.TempPathFactory) -> BuiltRelease:
    """A recommender that was compiled the way a release does it; once for all tests."""
    from tests.tasks.built_release import build_release

    return build_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ runner, built from the source with every warning an error; once for all tests."""
    from tasks.probing import build

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", (*build.FLAGS, "-Werror"))
        source = Path(__file__).parents[1] / "infra" / "runner"
        return build.build_runner(source, tmp_path_factory.mktemp("programs"))[0]
