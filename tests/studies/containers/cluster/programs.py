"""Kubernetes' programs, built of the source that Debian 12 has of them, which brings all it needs.

No package of Debian's holds a control plane, and no newer source of Debian's has one in it: so it
is Kubernetes 1.20, built once into the run's folder, in a quarter of an hour on two cores.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.studies.containers.engine import apt_apart
from tests.studies.containers.seen import Log, Row

VERSION = "v1.20.2"
NAMES = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet",
    "kubectl",
)  # fmt: skip
# Debian's package of each program that is used beside them.
PACKAGES = {
    "go": "golang-go", "make": "make", "rsync": "rsync", "dpkg-source": "dpkg-dev",
    "etcd": "etcd-server", "dnsmasq": "dnsmasq-base", "socat": "socat", "conntrack": "conntrack",
    "ip": "iproute2",
}  # fmt: skip
_VERSION_VARIABLES = (
    "KUBE_GIT_COMMIT=debian", "KUBE_GIT_TREE_STATE=clean", f"KUBE_GIT_VERSION={VERSION}",
    "KUBE_GIT_MAJOR=1", "KUBE_GIT_MINOR=20",
)  # fmt: skip


def programs_of(folder: Path) -> Path:
    """Return where the programs of a run's folder are."""
    return folder / "kubernetes" / "bin"


def prepare_programs(folder: Path, log: Log, row: Row) -> None:
    """Have the programs, built where they aren't."""
    programs = programs_of(folder)
    if all((programs / name).is_file() for name in NAMES):
        row.note(f"{VERSION}, built by an earlier run")
        return
    source = _fetch_sources(folder / "kubernetes", log)
    _build(source, log)
    programs.mkdir(exist_ok=True)
    for name in NAMES:
        shutil.copy2(source / "_output" / "bin" / name, programs / name)
    shutil.rmtree(folder / "kubernetes" / "go")
    row.note(f"{VERSION} of Debian 12's source, built")


def _fetch_sources(folder: Path, log: Log) -> Path:
    """Fetch the source, its signature checked by apt, into the place that Go builds it in."""
    shutil.rmtree(folder, ignore_errors=True)
    apt = folder / "apt"
    get = apt_apart(apt, "deb-src", "bookworm", log)
    log.run([*get, "source", "--download-only", "kubernetes"], folder=apt / "got", limit_s=600)
    (description,) = (apt / "got").glob("*.dsc")
    source = folder / "go" / "src" / "k8s.io" / "kubernetes"
    source.parent.mkdir(parents=True)
    log.run(["dpkg-source", "--extract", str(description), str(source)], limit_s=300)
    shutil.rmtree(apt)
    return source


def _build(source: Path, log: Log) -> None:
    """Generate what is generated, and compile, as Debian's own rules do."""
    version_file = source / "version"
    version_file.write_text("\n".join([*_VERSION_VARIABLES, ""]), "ascii")
    # Its makefiles look for the tree by its name below the first of Go's folders.
    inner = source / ".go" / "src" / "k8s.io"
    inner.mkdir(parents=True)
    (inner / "kubernetes").symlink_to("../../..")
    home = source.parents[2] / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "GOPATH": str(source / ".go"),
        "GOCACHE": str(home / "cache"), "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION_FILE": str(version_file),
    }  # fmt: skip
    wanted = " ".join(f"cmd/{name}" for name in NAMES)
    log.run(["make", f"WHAT={wanted}"], environment=environment, folder=source, limit_s=7200)
