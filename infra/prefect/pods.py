"""Pools whose runs get a pod each: Prefect's pools of the type kubernetes, from PodTemplates.

What a run's pod is, is an object of the cluster's like all others, which `kustomize` sees: image,
resources, volumes and secrets are said in one place. `kubectl get podtemplates -o json` prints
what is read here. Which pool one is for, its label `stack/pool` says. Prefect's own Kubernetes
worker makes a Job of it for each run; nothing of Kubernetes is imported here.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from handoff.artifacts.errors import UsageProblem, first_line
from handoff.artifacts.printable import one_line
from handoff.infra.prefect.deployments import POOLS

_POOL_LABEL = "stack/pool"
# What Prefect's worker insists on (prefect-kubernetes 0.8, `_get_base_job_manifest`).
_CONTAINER = "prefect-job"
# Prefect's worker writes its own login into each Job, where whoever may list Jobs reads it, and its
# own home: a pod has both as its PodTemplate says. (To be null there is to be left out.)
_REMOVED_VARIABLES = dict.fromkeys(("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY", "PREFECT_HOME"))
_KINDS = ("PodTemplate", "PodTemplateList", "List")
# A Job that ended is there for a day, with its pod's log.
_JOB_KEPT_S = 86400
_RESOURCES = {
    f"{what}_{kind}": (f"{kind}s", what)
    for what in ("cpu", "memory")
    for kind in ("request", "limit")
}
_EXPECTED = "what 'kubectl get podtemplates -o json' prints"


def read_pod_pools(path: Path) -> dict[str, dict[str, Any]]:
    """Return the base job template of each pool for which a file holds a PodTemplate.

    Raises `UsageProblem` for a file that holds none, and for a template that Prefect's worker or a
    run of ours couldn't be started from.
    """
    pools: dict[str, dict[str, Any]] = {}
    for template in _templates(path):
        pool = _pool_of(template)
        if pool in pools:
            raise _refusal(template, f"one for {pool}", "two", "Let one of them be for another")
        pools[pool] = base_job_template(template)
    if not pools:
        raise UsageProblem(
            "there is no PodTemplate", expected=_EXPECTED, got=f"none in {path}",
            remedy="Apply components/pods first, and look in its namespace",
        )  # fmt: skip
    return pools


def base_job_template(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return Prefect's base job template of a PodTemplate: each run is a Job with such a pod.

    Its image and resources are variables, with the template's own as defaults, so that a
    deployment of a larger model's may have more. A run that ends is Prefect's to repeat, not the
    Job's.
    """
    pod = copy.deepcopy(dict(template["template"]))
    spec = pod["spec"]
    container = spec["containers"][0]
    variables = {"image": container.get("image", "")}
    container["image"] = "{{ image }}"
    resources = container.setdefault("resources", {})
    for name, (kind, resource) in _RESOURCES.items():
        if resource in resources.get(kind, {}):
            variables[name] = str(resources[kind][resource])
            resources[kind][resource] = f"{{{{ {name} }}}}"
    # In the pod, where Kubernetes has no such fields and leaves them out: Prefect looks there.
    spec |= {"restartPolicy": "Never", "parallelism": 1, "completions": 1}
    metadata = pod.get("metadata", {})
    labels = dict(metadata.get("labels", {}))
    namespace = str(template["metadata"].get("namespace", "default"))
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "labels": "{{ labels }}", "annotations": {}, "namespace": namespace,
            "generateName": "{{ name }}-",
        },
        "spec": {
            "backoffLimit": 0,
            # Never two pods for one run, also while one of them takes its time to end.
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": "{{ finished_job_ttl }}",
            "template": {
                "metadata": {
                    "labels": labels, "annotations": dict(metadata.get("annotations", {})),
                },
                "spec": spec,
            },
        },
    }  # fmt: skip
    return {
        "job_configuration": {
            "name": "{{ name }}", "env": _REMOVED_VARIABLES, "labels": "{{ labels }}",
            "namespace": namespace, "stream_output": False, "job_manifest": job,
        },
        "variables": {"type": "object", "properties": _variable_schemas(variables)},
    }  # fmt: skip


def _variable_schemas(defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return what a deployment may change, as a JSON schema: Prefect's own names where it has."""
    schemas = {
        name: {"type": "string", "title": name.replace("_", " ").capitalize(), "default": value}
        for name, value in defaults.items()
    }
    return {
        "name": {"type": "string", "title": "Name", "description": "The Job's, before its number."},
        "labels": {
            "type": "object", "title": "Labels", "additionalProperties": {"type": "string"},
        },
        "finished_job_ttl": {
            "type": "integer", "title": "Seconds for which a Job that ended is kept",
            "default": _JOB_KEPT_S,
        },
        **schemas,
    }  # fmt: skip


def _templates(path: Path) -> list[dict[str, Any]]:
    """Return the PodTemplates of a file, which are JSON objects of the form that we read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageProblem(
            "the file of PodTemplates can't be read", expected=_EXPECTED,
            got=f"{path}: {first_line(error, 200)}", remedy="Write it again, and name it in --pods",
        ) from error  # fmt: skip
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind not in _KINDS:
        raise UsageProblem(
            "that is no PodTemplate", expected=_EXPECTED,
            got=f"{one_line(str(kind))[:60]} in {path}", remedy="Name another file in --pods",
        )  # fmt: skip
    entries = content.get("items") if kind != "PodTemplate" else [content]
    # The API's own lists leave the kind of their items out; kubectl's may hold others.
    items = [
        item for item in entries or ()
        if isinstance(item, dict) and item.get("kind", "PodTemplate") == "PodTemplate"
    ]  # fmt: skip
    for item in items:
        _require_form(item)
    return items


def _require_form(template: dict[str, Any]) -> None:
    try:
        containers = template["template"]["spec"]["containers"]
        names = [container["name"] for container in containers]
        well_formed = isinstance(template["metadata"].get("labels", {}), dict)
    except (KeyError, TypeError, AttributeError):
        names, well_formed = [], False
    if not well_formed:
        raise _refusal(template, "metadata, and template.spec.containers", "less", "Write it so")
    if names != [_CONTAINER]:
        raise _refusal(
            template, f"one container, named {_CONTAINER}, which Prefect's worker asks for",
            ", ".join(map(str, names))[:200] or "none", "Name it so; others may be initContainers",
        )  # fmt: skip


def _pool_of(template: dict[str, Any]) -> str:
    labels = template["metadata"].get("labels", {})
    pool = str(labels.get(_POOL_LABEL, ""))
    if pool not in POOLS:
        raise _refusal(
            template, f"a label {_POOL_LABEL} with one of Handoff's pools, such as handoff-build",
            pool[:60] or "none", "Add it",
        )  # fmt: skip
    return pool


def _refusal(template: dict[str, Any], expected: str, got: str, remedy: str) -> UsageProblem:
    metadata = template.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return UsageProblem(
        f"runs can't be started from the PodTemplate {one_line(str(name))[:60]}",
        expected=expected, got=one_line(got), remedy=remedy,
    )  # fmt: skip
