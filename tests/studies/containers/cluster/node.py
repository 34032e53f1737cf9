"""A cluster of one node: etcd, Kubernetes' programs on Docker's engine, and names for services.

All of it listens within the network namespace of the run. Volumes are folders of the run's. No
network policy is enforced: a plugin that does was not to be had.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.studies.containers.engine import Engine
from tests.studies.containers.images import own_images
from tests.studies.containers.running import BESIDE
from tests.studies.containers.seen import TrialFailed

NAMESPACE = "handoff"
_API = "https://127.0.0.1:6443"
# Where pods reach the API server: an address of the loopback device in this namespace.
_ADDRESS, _SERVICES, _FIRST = BESIDE, "10.212.0.0/24", "10.212.0.1"
_BRIDGE = "10.210.0.1"
_START_LIMIT_S = 180.0
# The lowest score that the kernel lets this root set: it may lack the right to lower it.
_RUNTIME = """#!/usr/bin/python3 -I
import json, os, pathlib, sys

words = sys.argv[1:]
if "--bundle" in words:
    place = pathlib.Path(words[words.index("--bundle") + 1]) / "config.json"
    spec = json.loads(place.read_text())
    process = spec.get("process", {})
    process["oomScoreAdj"] = max(0, process.get("oomScoreAdj") or 0)
    place.write_text(json.dumps(spec))
os.execv("RUNC", ["runc", *words])
"""
# A pod's sandbox holds its network, and does nothing.
_PAUSE = 'ENTRYPOINT ["tini", "--", "sleep", "infinity"]\n'
_VOLUMES = 8
# That Jobs are removed some time after their end, every cluster does since 1.23.
_LATER = "--feature-gates=TTLAfterFinished=true"


def write_runtime(folder: Path) -> Path:
    """Write what the engine starts in runc's place, and return it."""
    place = folder / "runc-here"
    runc = shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert runc
    place.write_text(_RUNTIME.replace("RUNC", runc), "utf-8")
    place.chmod(0o755)
    return place


@dataclass
class Node:
    """The node, whose files and logs are in a folder; its programs are in another."""

    engine: Engine
    folder: Path
    programs: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have its programs run in the body, from nothing; the node is ready some time later."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        try:
            self._start()
            yield
        finally:
            for process in reversed(self._running.values()):
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()

    def wait_ready(self) -> str:
        """Wait until pods may be started; return in words what is there."""
        self._wait("the node", self._require_ready)
        version = self.ask("version", "--output=json")["serverVersion"]["gitVersion"]
        cores = self.ask("get", "node", "node", "--output=json")["status"]["capacity"]["cpu"]
        return f"Kubernetes {version}, one node, {cores} cores"

    def kubectl(self, *words: str, limit_s: float = 120, quietly: bool = False) -> str:
        """Run kubectl in the stack's namespace; return what it printed.

        `quietly` leaves it out of the log: it is asked each second, or its words are secret.
        Raises `TrialFailed` with what it said.
        """
        command = [
            str(self.programs / "kubectl"), f"--kubeconfig={self._config}",
            f"--namespace={NAMESPACE}", *words,
        ]  # fmt: skip
        if not quietly:
            return self.engine.log.run(command, limit_s=limit_s)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
        if done.returncode:
            raise TrialFailed(f"kubectl {words[0]}: {' '.join(done.stderr.split())[-300:]}")
        return done.stdout

    def ask(self, *words: str) -> Any:
        """Run kubectl without a word in the log; return its answer, read."""
        return json.loads(self.kubectl(*words, quietly=True))

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a kind in the stack's namespace."""
        words = ["get", kind, "--output=json", *([f"--selector={selector}"] if selector else [])]
        found: list[dict[str, Any]] = self.ask(*words)["items"]
        return found

    @property
    def _config(self) -> Path:
        return self.folder / "kubeconfig"

    def _start(self) -> None:
        self._make_keys()
        self._make_pause()
        self._spawn("etcd", "etcd", f"--data-dir={self.folder}/etcd")
        keys = self.folder / "keys"
        self._spawn(
            "kube-apiserver", self.programs / "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379", f"--service-cluster-ip-range={_SERVICES}",
            f"--advertise-address={_ADDRESS}", "--secure-port=6443", "--authorization-mode=RBAC",
            f"--tls-cert-file={keys}/api.crt", f"--tls-private-key-file={keys}/api.key",
            f"--client-ca-file={keys}/ca.crt", f"--token-auth-file={keys}/tokens.csv",
            "--kubelet-preferred-address-types=InternalIP", _LATER,
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={keys}/accounts.key",
            f"--service-account-key-file={keys}/accounts.pub",
        )  # fmt: skip
        self._wait("the API server", lambda: self.kubectl("get", "--raw=/readyz", quietly=True))
        named = f"--kubeconfig={self._config}"
        self._spawn(
            "kube-controller-manager", self.programs / "kube-controller-manager", named,
            f"--root-ca-file={keys}/ca.crt", "--use-service-account-credentials",
            f"--service-account-private-key-file={keys}/accounts.key", "--leader-elect=false",
            _LATER,
        )  # fmt: skip
        self._spawn("kube-scheduler", self.programs / "kube-scheduler", named,
                    "--leader-elect=false")  # fmt: skip
        # Answers go back by the way they came: the bridge would send them past the translation.
        self._spawn(
            "kube-proxy", self.programs / "kube-proxy", named, "--hostname-override=node",
            "--proxy-mode=iptables", "--masquerade-all", "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
        )  # fmt: skip
        self._hosts.touch()
        self._spawn(
            "dnsmasq", "dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts",
            "--user=root", "--conf-file=/dev/null", f"--addn-hosts={self._hosts}",
            "--bind-interfaces", f"--listen-address={_BRIDGE}", "--pid-file",
        )  # fmt: skip
        # Nothing of the images is cleared away, and no share of a disk is kept free.
        self._spawn(
            "kubelet", self.programs / "kubelet", named, "--hostname-override=node",
            f"--node-ip={_ADDRESS}", f"--root-dir={self.folder}/kubelet",
            f"--cert-dir={keys}/kubelet", "--container-runtime=docker",
            f"--docker-endpoint={self.engine.host}", "--network-plugin=",
            "--pod-infra-container-image=handoff-pause:1",
            f"--cluster-dns={_BRIDGE}", "--cluster-domain=cluster.local",
            "--cgroup-driver=cgroupfs", "--cgroups-per-qos=false", "--enforce-node-allocatable=",
            "--fail-swap-on=false", "--image-gc-high-threshold=100",
            "--eviction-hard=memory.available<100Mi", "--authorization-mode=AlwaysAllow",
            "--anonymous-auth=true", "--resolv-conf=",
        )  # fmt: skip

    def _make_keys(self) -> None:
        """Make an authority, the API server's certificate by it, a token, and accounts' key."""
        keys = self.folder / "keys"
        keys.mkdir(mode=0o700)
        names = (
            "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,"
            f"IP:127.0.0.1,IP:{_ADDRESS},IP:{_FIRST}"
        )
        key = ["-newkey", "rsa:2048", "-nodes", "-days", "2"]
        for command in (
            ["req", "-x509", *key, "-subj", "/CN=run", "-keyout", "ca.key", "-out", "ca.crt"],
            ["req", "-x509", *key, "-subj", "/CN=api", "-keyout", "api.key", "-out", "api.crt",
             "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", f"subjectAltName={names}",
             "-addext", "basicConstraints=critical,CA:FALSE"],
            ["genpkey", "-algorithm", "RSA", "-out", "accounts.key"],
            ["pkey", "-in", "accounts.key", "-pubout", "-out", "accounts.pub"],
        ):  # fmt: skip
            self.engine.log.run(["openssl", *command], folder=keys)
        token = secrets.token_hex(24)
        (keys / "tokens.csv").write_text(f'{token},run,run,"system:masters"\n', "ascii")
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "run",
            "contexts": [{"name": "run", "context": {"cluster": "run", "user": "run"}}],
            "clusters": [{"name": "run", "cluster": {
                "server": _API, "certificate-authority": f"{keys}/ca.crt"}}],
            "users": [{"name": "run", "user": {"token": token}}],
        }  # fmt: skip
        self._config.touch(mode=0o600)
        self._config.write_text(json.dumps(config), "utf-8")

    def _make_pause(self) -> None:
        place = self.folder / "pause"
        place.mkdir()
        server = next(image for image in own_images() if image.startswith("handoff-server:"))
        (place / "Dockerfile").write_text(f"FROM {server}\n{_PAUSE}", "utf-8")
        self.engine.docker("build", "--tag=handoff-pause:1", str(place))

    def make_volumes(self) -> None:
        """Make folders for the claims, which anybody may write to: their users are pods'."""
        volumes = []
        for index in range(_VOLUMES):
            place = self.folder / "volumes" / str(index)
            place.mkdir(parents=True)
            place.chmod(0o777)
            volumes.append({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": f"volume-{index}"},
                "spec": {
                    "capacity": {"storage": "1Ti"}, "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": str(place)},
                },
            })  # fmt: skip
        self.apply(volumes)

    def apply(self, objects: list[dict[str, Any]]) -> None:
        """Have the cluster hold the objects."""
        file = self.folder / "applied.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        self.kubectl("apply", f"--filename={file}")

    @property
    def _hosts(self) -> Path:
        return self.folder / "hosts"

    def name_services(self) -> None:
        """Let pods find the services by their names, as a cluster's DNS does."""
        lines = []
        for service in self.items("services"):
            name, address = service["metadata"]["name"], service["spec"]["clusterIP"]
            if address != "None":
                full = f"{name}.{NAMESPACE}.svc"
                lines.append(f"{address} {full}.cluster.local {full}")
        lines.append(f"{_FIRST} kubernetes.default.svc.cluster.local kubernetes.default.svc")
        self._hosts.write_text("\n".join([*lines, ""]), "ascii")
        self._running["dnsmasq"].send_signal(signal.SIGHUP)

    @contextmanager
    def forwarding(self, ports: Mapping[str, int]) -> Iterator[None]:
        """Forward ports of services to this machine's own, as a person does."""
        names = [f"forward-{service}" for service in ports]
        for name, (service, port) in zip(names, ports.items(), strict=True):
            self._spawn(
                name, "bash", "-c", 'while true; do "$@"; sleep 1; done', "bash",
                self.programs / "kubectl", f"--kubeconfig={self._config}",
                f"--namespace={NAMESPACE}", "port-forward", f"service/{service}", f"{port}:{port}",
            )  # fmt: skip
        try:
            yield
        finally:
            for name in names:
                os.killpg(self._running.pop(name).pid, signal.SIGTERM)

    def _spawn(self, name: str, *words: str | Path) -> None:
        environment = {"PATH": self.engine.path, "HOME": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as stream:
            self._running[name] = subprocess.Popen(
                list(map(str, words)), env=environment, stdin=subprocess.DEVNULL, stdout=stream,
                stderr=stream, start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def _require_ready(self) -> None:
        conditions = self.ask("get", "node", "node", "--output=json")["status"]["conditions"]
        ready = next(one for one in conditions if one["type"] == "Ready")
        if ready["status"] != "True":
            raise TrialFailed(f"the node isn't ready: {ready['message']}")
        self.kubectl("get", "serviceaccount", "default", "--namespace=default", quietly=True)

    def _wait(self, what: str, look: Callable[[], object]) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            for name, process in self._running.items():
                if process.poll() is not None:
                    said = (self.folder / f"{name}.log").read_bytes()[-400:]
                    raise TrialFailed(f"{name} ended: {said.decode('utf-8', 'replace')}")
            try:
                look()
            except TrialFailed as failure:
                if time.monotonic() > deadline:
                    raise TrialFailed(f"{what} was not there in time: {failure}") from None
                time.sleep(1)
            else:
                return
