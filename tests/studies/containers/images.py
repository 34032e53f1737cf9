"""The images: a base of Debian's packages, stand-ins for those of others, and ours on the base.

An image of another's is pulled where its registry can be reached. Elsewhere Debian's packages stand
in for it under its name, so that `compose.yaml` and the Dockerfiles are used as they are.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.infra.stack.stack_files import REPOSITORY, STACK, services
from tests.studies.containers.engine import Engine
from tests.studies.containers.seen import Row, TrialFailed

STANDINS = Path(__file__).parent / "standins"
# The last part of an image's name, and what stands in for it.
_STANDINS = {"postgres": "postgres", "minio": "s3", "caddy": "caddy"}
# The machine's own settings of indexes and authorities, pip's too.
_NETWORK_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def base_image() -> str:
    """Return the image that both Dockerfiles begin from."""
    text = (STACK / "images" / "worker.Dockerfile").read_text("utf-8")
    found = re.search(r"(?m)^ARG BASE=(\S+)$", text)
    assert found
    return found[1]


def foreign_images() -> list[str]:
    """Return the images of compose.yaml that are not ours."""
    named = {str(service["image"]) for service in services().values()}
    return sorted(image for image in named if "/" in image)


def own_images() -> dict[str, str]:
    """Return our images of compose.yaml, and the Dockerfile of each."""
    found = {}
    for service in services().values():
        if "build" in service:
            found[str(service["image"])] = str(service["build"]["dockerfile"])
    return dict(sorted(found.items()))


def prepare_base(engine: Engine, row: Row) -> None:
    """Have the base: the registry's, or Debian 12 with the Python that it has."""
    image = base_image()
    if not _is_had(engine, image, row):
        archive = engine.folder / "base.tar"
        copies = [
            f"--customize-hook=copy-in {path} {Path(path).parent}"
            for path in _NETWORK_FILES if Path(path).exists()
        ]  # fmt: skip
        packages = "ca-certificates,python3,python3-venv,python3-pip"
        words = ["mmdebstrap", "--variant=minbase", f"--include={packages}", *copies]
        engine.log.run([*words, "bookworm", str(archive)], limit_s=1200)
        # Of an environment of its own pip believes in no authority but those it brings.
        changes = [
            "--change",
            f"ENV PIP_CERT={_NETWORK_FILES[0]}",
            "--change",
            "LABEL standin=debian",
        ]
        engine.docker("import", *changes, str(archive), image, limit_s=300)
        archive.unlink()
        row.note("Debian 12 by mmdebstrap in its place")


def prepare_foreign(engine: Engine, image: str, row: Row) -> None:
    """Have an image of another's: the registry's, or its stand-in."""
    if not _is_had(engine, image, row):
        name = _STANDINS[image.rpartition("/")[2].partition(":")[0]]
        build = [f"--build-arg=BASE={base_image()}", f"--file={STANDINS}/{name}.Dockerfile"]
        engine.docker("build", *_network(), *build, f"--tag={image}", str(STANDINS), limit_s=900)
        row.note("Debian's packages in its place")


def build_own(engine: Engine, image: str, row: Row) -> None:
    """Build an image of ours, as its Dockerfile says; what hasn't changed is taken from before."""
    words = [f"--file={REPOSITORY / own_images()[image]}", f"--tag={image}"]
    engine.docker("build", *_network(), *words, str(REPOSITORY), limit_s=5400)
    size = int(engine.docker("image", "inspect", "--format", "{{.Size}}", image))
    row.note(f"{size / 1e9:.1f} GB")


def _is_had(engine: Engine, image: str, row: Row) -> bool:
    """Return whether it is there, or can be pulled; an earlier run's stand-in is there, too."""
    if engine.knows(image):
        inspected = engine.docker("image", "inspect", "--format", "{{.Config.Labels}}", image)
        row.note("a stand-in of an earlier run" if "standin" in inspected else "pulled earlier")
        return True
    try:
        engine.docker("pull", "--quiet", image, limit_s=1800)
    except TrialFailed:
        row.note("its registry can't be reached")
        return False
    row.note("pulled")
    return True


def _network() -> list[str]:
    """Return what lets a build reach package indexes as this machine does."""
    proxies = [f"--build-arg={name}={os.environ[name]}" for name in _PROXIES if name in os.environ]
    return ["--network=host", *proxies]


def copy_files(to: Path) -> None:
    """Copy what compose reads beside the images; its `.env` and secrets are made there."""
    to.mkdir(parents=True)
    for name in ("compose.yaml", "Caddyfile"):
        shutil.copy(STACK / name, to / name)
    shutil.copytree(STACK / "recipes", to / "recipes")
