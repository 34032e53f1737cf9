"""What is tried of the manifests, in order: each a row of what was seen."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.infra.stack.stack_files import MANIFESTS, TOOLS
from tests.infra.stack.stack_processes import status_of
from tests.studies.containers.cluster.node import NAMESPACE, Node
from tests.studies.containers.seen import ResultLog, Row, TrialFailed
from tests.studies.containers.stack import PREFECT, Stack
from tests.studies.containers.trying import went_well

PORTS = {"prefect": 4200, "mlflow": 5000, "minio": 9000}
COMMITS = ["1" * 40, "2" * 40, "3" * 40, "4" * 40, "5" * 40, "6" * 40, "7" * 40]
_POOL = "handoff-build"
_OF_RUNS = "prefect.io/flow-run-id"
_NODE = "a node"
_UP = "`overlays/minio` applied"
_CHANGED = "changed to `overlays/pods`, as the README says"
# Without these there is nothing to try.
_NEEDED = frozenset({_NODE, _UP, _CHANGED})
# A node of two cores has room for this; what pods may use stays theirs. Kubernetes 1.20 has no
# disruption budgets of the version that the manifests name.
_FITTED = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: handoff
resources: [../OVERLAY]
patches:
  - target: {kind: PodDisruptionBudget}
    patch: |
      {apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: any}, $patch: delete}
  - target: {kind: Deployment|StatefulSet}
    patch: |
      - {op: replace, path: /spec/template/spec/containers/0/resources/requests,
         value: {cpu: 50m, memory: 64Mi}}
  - target: {kind: PodTemplate}
    patch: |
      - {op: replace, path: /template/spec/containers/0/resources,
         value: {requests: {cpu: 250m, memory: 1Gi}, limits: {cpu: "2", memory: 8Gi}}}
"""


@dataclass(frozen=True)
class Cluster:
    """The stack in the cluster, and the node that it is on."""

    stack: Stack
    node: Node

    def pods_of_runs(self) -> list[dict[str, Any]]:
        """Return the pods that were made for flow runs, those that ended, too."""
        return self.node.items("pods", _OF_RUNS)

    def running(self) -> list[str]:
        """Return the names of those that run."""
        return [
            one["metadata"]["name"] for one in self.pods_of_runs()
            if one["status"]["phase"] == "Running"
        ]  # fmt: skip

    def until(self, what: str, holds: Callable[[], bool], limit_s: float) -> float:
        """Wait until it holds; return the seconds. Raises `TrialFailed` at the limit."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > limit_s:
                raise TrialFailed(f"not within {limit_s:.0f} s: {what}")
            time.sleep(1)
        return time.monotonic() - began

    def notify(self, source: str, commit: str) -> None:
        """Ask for a release, and don't wait."""
        self.stack.handoff("notify", "--delivery", source, "--commit", commit)

    def newest(self) -> dict[str, Any]:
        """Return the newest flow run of a release."""
        runs = self.stack.release_runs()
        return max(runs, key=lambda run: str(run["created"]))


def try_all(cluster: Cluster, seen: ResultLog) -> None:
    """Bring the stack up in the cluster, and try everything."""
    for what, attempt in _steps(cluster).items():
        if not went_well(seen, what, attempt) and what in _NEEDED:
            break
    went_well(seen, "what the pods have said is kept", partial(_keep_logs, cluster))


def _steps(cluster: Cluster) -> dict[str, Callable[[Row], None]]:
    return {
        _NODE: lambda row: row.note(cluster.node.wait_ready()),
        _UP: partial(_up, cluster),
        "a release by a worker": partial(_by_a_worker, cluster),
        _CHANGED: partial(_change, cluster),
        "pools and their workers": partial(_pools, cluster),
        "a release in a pod of its own": partial(_in_a_pod, cluster),
        "what a Job says": partial(_jobs, cluster),
        "two releases at once": partial(_two, cluster),
        "`dispatch` killed during a release": partial(_dispatch_killed, cluster),
        "the pod of a release deleted": partial(_pod_deleted, cluster),
        "a release cancelled": partial(_cancelled, cluster),
    }


def _apply(cluster: Cluster, overlay: str) -> float:
    """Apply an overlay, fitted to this node; return the seconds until all of it was ready."""
    node = cluster.node
    manifests = node.folder / "manifests"
    if not manifests.exists():
        shutil.copytree(MANIFESTS, manifests)
    fitted = manifests / "overlays" / f"{overlay}-here"
    fitted.mkdir()
    (fitted / "kustomization.yaml").write_text(_FITTED.replace("OVERLAY", overlay), "utf-8")
    rendered = node.folder / f"{overlay}.yaml"
    command = [str(TOOLS / "kubectl"), "kustomize", str(fitted), f"--output={rendered}"]
    node.engine.log.run(command)
    node.kubectl("apply", f"--filename={rendered}")
    node.name_services()
    return cluster.until("everything is ready", partial(_is_ready, node), 900)


def _count_objects(node: Node) -> str:
    counts = Counter(
        kind for kind in ("deployments", "statefulsets", "jobs") for _ in node.items(kind)
    )
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def _up(cluster: Cluster, row: Row) -> None:
    node, made = cluster.node, cluster.stack.folder
    node.make_volumes()
    node.kubectl("create", "namespace", NAMESPACE)
    # As the README says.
    create = ["create", "secret", "generic"]
    node.kubectl(*create, "handoff-secrets", f"--from-env-file={made}/.env")
    node.kubectl(*create, "handoff-signing-key", f"--from-file={made}/secrets/signing.pem")
    node.kubectl("create", "configmap", "handoff-trusted", f"--from-file={made}/secrets/trusted")
    node.kubectl("create", "configmap", "handoff-recipes", f"--from-file={made}/recipes")
    took = _apply(cluster, "minio")
    row.note(f"{_count_objects(node)}, ready after {took:.0f} s")
    address = f"{PREFECT}/api/health"
    cluster.until("ports are forwarded", lambda: status_of(address)[0] in (200, 401), 60)


def _by_a_worker(cluster: Cluster, row: Row) -> None:
    source = cluster.stack.deliver("worker", seed=9, width=32)
    took = cluster.stack.release(source, COMMITS[6])
    row.require(cluster.stack.versions() == 1, f"{cluster.stack.versions()} versions")
    row.require(not cluster.pods_of_runs(), "it got a pod of its own")
    row.note(f"released in {took:.0f} s, version 1")


def _change(cluster: Cluster, row: Row) -> None:
    node = cluster.node
    in_control = ["exec", "control-0", "--", "prefect", "--no-prompt", "work-pool"]
    node.kubectl(*in_control, "pause", _POOL)
    node.kubectl("delete", "statefulset,service", "build", limit_s=300)
    node.kubectl("wait", "--for=delete", "pod/build-0", "--timeout=300s", limit_s=320)
    node.kubectl(*in_control, "delete", _POOL)
    node.kubectl("delete", "job", "deploy")
    took = _apply(cluster, "pods")
    row.note(f"{_count_objects(node)}, ready after {took:.0f} s; no build worker is left")


def _is_ready(node: Node) -> bool:
    sets = [*node.items("deployments"), *node.items("statefulsets")]
    jobs = node.items("jobs")
    return (
        all(one["status"].get("readyReplicas", 0) == one["spec"]["replicas"] for one in sets)
        and all(one["status"].get("succeeded", 0) == 1 for one in jobs)
        and bool(sets and jobs)
    )


def _pools(cluster: Cluster, row: Row) -> None:
    pool = cluster.stack.ask_prefect(f"work_pools/{_POOL}")
    row.require(pool["type"] == "kubernetes", f"{_POOL} is of the type {pool['type']}")

    def online() -> list[str]:
        found = cluster.stack.ask_prefect(f"work_pools/{_POOL}/workers/filter", {})
        return [one["name"] for one in found if one["status"] == "ONLINE"]

    cluster.until("a worker is online", lambda: bool(online()), 120)
    row.note(f"{_POOL} is of the type kubernetes, its worker is {', '.join(online())}")
    row.require(not cluster.pods_of_runs(), "there are pods of runs already")
    row.note("no pod waits for a release")


def _in_a_pod(cluster: Cluster, row: Row) -> None:
    source = cluster.stack.deliver("first", seed=0, width=32)
    took = cluster.stack.release(source, COMMITS[0])
    row.require(cluster.stack.versions() == 2, f"{cluster.stack.versions()} versions")
    (pod,) = cluster.pods_of_runs()
    began, ended = (pod["status"]["containerStatuses"][0]["state"]["terminated"][key]
                    for key in ("startedAt", "finishedAt"))  # fmt: skip
    row.note(f"released in {took:.0f} s, version 2; its pod ran from {began[11:19]} to "
             f"{ended[11:19]}")  # fmt: skip
    cluster.until("its Job has ended", lambda: not cluster.running(), 60)
    row.note("and no pod of a run is left running")


def _jobs(cluster: Cluster, row: Row) -> None:
    jobs = cluster.node.items("jobs", _OF_RUNS)
    text = json.dumps([jobs, cluster.pods_of_runs()])
    found = [name for name, value in cluster.stack.values.items()
             if ("PASSWORD" in name or "KEY" in name) and value in text]  # fmt: skip
    row.require(not found, f"secrets are in it: {found}")
    (job,) = jobs
    row.require(job["spec"]["ttlSecondsAfterFinished"] == 86400, "it is kept for ever")
    row.note("no secret is in its text, nor in its pod's; it is removed a day after its end")


def _two(cluster: Cluster, row: Row) -> None:
    sources = [cluster.stack.deliver(name, seed=seed, width=32, name=name)
               for seed, name in enumerate(("one", "other"))]  # fmt: skip
    for source, commit in zip(sources, COMMITS[1:3], strict=True):
        cluster.notify(source, commit)
    most = [0]

    def both_ended() -> bool:
        most.append(len(cluster.running()))
        return [cluster.stack.versions(name) for name in ("one", "other")] == [1, 1]

    took = cluster.until("both are released", both_ended, 900)
    row.require(max(most) == 2, f"at most {max(most)} pods ran at once")
    row.note(f"two pods at once, both released in {took:.0f} s")
    cluster.until("their pods have ended", lambda: not cluster.running(), 60)


def _begin_release(cluster: Cluster, prefix: str, seed: int, commit: str) -> str:
    """Have a release begin; return the name of its pod."""
    source = cluster.stack.deliver(prefix, seed=seed, width=40)
    cluster.notify(source, commit)
    cluster.until("its pod runs", lambda: bool(cluster.running()), 180)
    cluster.until("its run has begun", lambda: cluster.newest()["state"]["type"] == "RUNNING", 120)
    return cluster.running()[0]


def _dispatch_killed(cluster: Cluster, row: Row) -> None:
    _begin_release(cluster, "third", 3, COMMITS[3])
    begun = cluster.newest()["id"]
    chosen = "--selector=app.kubernetes.io/name=dispatch"
    cluster.node.kubectl("delete", "pod", chosen, "--grace-period=0", "--force")
    cluster.until("the release ends", lambda: cluster.newest()["state"]["type"] == "COMPLETED", 600)
    row.require(cluster.newest()["id"] == begun, "it was begun anew")
    row.require(cluster.stack.versions() == 3, f"{cluster.stack.versions()} versions")
    row.note("its pod went on, version 3")
    cluster.until("it is ready again", partial(_is_ready_now, cluster, "dispatch"), 240)
    row.note("another `dispatch` is ready")


def _is_ready_now(cluster: Cluster, name: str) -> bool:
    pods = cluster.node.items("pods", f"app.kubernetes.io/name={name}")
    return any(one["ready"] for pod in pods for one in pod["status"].get("containerStatuses", ()))


def _pod_deleted(cluster: Cluster, row: Row) -> None:
    pod = _begin_release(cluster, "fourth", 4, COMMITS[4])
    first = cluster.newest()["id"]
    began = time.monotonic()
    cluster.node.kubectl("delete", "pod", pod, "--wait=false")
    cluster.until("another run is begun", lambda: cluster.newest()["id"] != first, 420)
    row.note(f"its run crashed, and was begun again after {time.monotonic() - began:.0f} s")
    cluster.until("that one ends", lambda: cluster.newest()["state"]["type"] == "COMPLETED", 600)
    row.require(cluster.stack.versions() == 4, f"{cluster.stack.versions()} versions")
    row.note("and released it, version 4")
    cluster.until("no pod runs", lambda: not cluster.running(), 120)


def _cancelled(cluster: Cluster, row: Row) -> None:
    pod = _begin_release(cluster, "fifth", 5, COMMITS[5])
    run = cluster.newest()["id"]
    began = time.monotonic()
    state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    cluster.stack.ask_prefect(f"flow_runs/{run}/set_state", state)
    cluster.until("its pod is gone", lambda: pod not in cluster.running(), 240)
    row.note(f"its pod was gone after {time.monotonic() - began:.0f} s")
    cluster.until("it is cancelled", lambda: cluster.newest()["state"]["type"] == "CANCELLED", 420)
    row.require(cluster.stack.versions() == 4, f"{cluster.stack.versions()} versions")
    row.note("and the run is Cancelled; nothing was released")


def _keep_logs(cluster: Cluster, row: Row) -> None:
    file = cluster.node.engine.folder / "cluster.log"
    with file.open("w", encoding="utf-8") as stream:
        for pod in cluster.node.items("pods"):
            name = pod["metadata"]["name"]
            stream.write(f"== {name}\n")
            stream.write(
                cluster.node.kubectl("logs", name, "--all-containers", "--prefix", quietly=True)
            )
    row.note(f"in {file.name}")
