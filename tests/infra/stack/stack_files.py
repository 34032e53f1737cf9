"""The stack's files as tests read them: services of compose.yaml, containers of the manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[3]
STACK = REPOSITORY / "infra" / "containers"
MANIFESTS = STACK / "kubernetes"
# Made by `make stack-ready`: what the servers' image holds, and the tools that check files.
TOOLS = REPOSITORY / ".venv-stack" / "bin"
NO_TOOLS = "make stack-ready makes .venv-stack, with the servers' packages and the tools"

_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)(?::?([-?])([^}]*))?\}")


def compose() -> dict[str, Any]:
    """Return compose.yaml, its anchors and merges resolved and its variables left as they are."""
    content: dict[str, Any] = yaml.safe_load((STACK / "compose.yaml").read_text("utf-8"))
    return content


def services() -> dict[str, dict[str, Any]]:
    """Return the services of compose.yaml by name."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """Return `text` as compose would with these values; `KeyError` for one that it requires."""

    def value(match: re.Match[str]) -> str:
        name, kind, default = match[1], match[2], match[3]
        return values.get(name, default) if kind == "-" else values[name]

    return _VARIABLE.sub(value, text)


def variables(text: str) -> set[str]:
    """Return the names that `text` takes from `.env`."""
    return {match[1] for match in _VARIABLE.finditer(text)}


def example_commands() -> str:
    """Return the commands in the comments of `.env.example`, as a script for bash."""
    example = (STACK / ".env.example").read_text("utf-8")
    return "\n".join(["set -e", *re.findall(r"(?m)^#   (.*)$", example), ""])


@dataclass(frozen=True)
class Container:
    """A container of a manifest, and the pod that it is in."""

    place: str
    kind: str
    is_init: bool
    spec: Mapping[str, Any]
    pod: Mapping[str, Any]
    labels: Mapping[str, str]

    @property
    def environment(self) -> dict[str, Any]:
        """What `env` says of each variable: its value, or where that comes from."""
        return {
            entry["name"]: entry.get("value", entry.get("valueFrom"))
            for entry in self.spec.get("env", ())
        }


def manifests() -> list[tuple[Path, dict[str, Any]]]:
    """Return every object of the bases, components and overlays, with its file."""
    found = []
    for path in sorted(MANIFESTS.rglob("*.yaml")):
        for content in yaml.safe_load_all(path.read_text("utf-8")):
            assert isinstance(content, dict), f"{path} holds no object"
            found.append((path, content))
    return found


def containers() -> Iterator[Container]:
    """Give the containers of the bases and components; patches are only parts."""
    for path, content in manifests():
        about = content.get("template") or content.get("spec", {}).get("template", {})
        pod = about.get("spec")
        if pod is None or {"overlays", "changes"} & set(path.parts):
            continue
        name, kind = content["metadata"]["name"], content["kind"]
        for key in ("initContainers", "containers"):
            for spec in pod.get(key, ()):
                place = f"{kind}/{name}/{spec['name']}"
                labels = content["metadata"].get("labels", {})
                yield Container(place, kind, key == "initContainers", spec, pod, labels)


def pod_templates() -> dict[str, dict[str, Any]]:
    """Return the PodTemplates by name, as a cluster lists them: in the namespace of the stack."""
    return {
        str(content["metadata"]["name"]): {
            **content, "metadata": {"namespace": "handoff", **content["metadata"]}
        }
        for path, content in manifests()
        if content["kind"] == "PodTemplate" and "overlays" not in path.parts
    }  # fmt: skip
