"""What makes a listed release a model of MLflow's: the file MLmodel, its signature, an example.

`mlflow.pyfunc.load_model` and `mlflow models serve` read it, and call `infra.flavor`, which
verifies the release before it opens a package. MLmodel itself is signed by nobody: who may change
it may name another loader. Whoever can't trust MLflow's store pulls from the object store instead.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.artifacts.delivery.contract import EXAMPLES_FILE
from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.artifacts.digest import Digest
from handoff.artifacts.release.manifest import Manifest, PackageFile, TargetRecord
from handoff.artifacts.serve.extern_kernels import EXTERN_KERNELS_FILE

if TYPE_CHECKING:
    from mlflow.models import ModelSignature as MlflowSignature

MLMODEL_FILE = "MLmodel"
LOADER_MODULE = "handoff.infra.flavor"
_EXAMPLE_FILE, _SERVING_FILE = "input_example.json", "serving_input_example.json"
# MLflow's page shows the example as text.
_EXAMPLE_LIMIT_ELEMENTS = 20_000


def listed_packages(manifest: Manifest) -> tuple[PackageFile, ...]:
    """Return the one form of each target's package that MLflow keeps: what the loader opens.

    With a `.so` goes the JSON of the operators that it has called, if any.
    """
    return tuple(
        file for target in manifest.targets for file in target.files if file.path in _opened(target)
    )


def _opened(target: TargetRecord) -> tuple[str, ...]:
    form = loaded_form(target)
    names = (form, EXTERN_KERNELS_FILE) if form.endswith(".so") else (form,)
    return tuple(f"{target.slug}/{name}" for name in names)


def loaded_form(target: TargetRecord) -> str:
    """Return the file that is opened on a target: the `.so` on a CPU, the `.pt2` on a GPU."""
    is_gpu = target.fit is not None and target.fit.gpu_capability
    return "model.pt2" if is_gpu else "model.so"


def write_mlmodel(
    manifest: Manifest,
    version: int,
    release: Digest,
    folder: Path,
    to: Path,
    *,
    run_id: str,
    model_id: str,
) -> None:
    """Write MLmodel, and an example where one is small enough, to the folder `to`.

    `version` is the release's, `release` the digest of its signed statement, and `folder` where it
    lies, whose examples are read.
    """
    from mlflow.models import Model

    example = input_example(manifest.signature, folder / EXAMPLES_FILE)
    model = Model(
        run_id=run_id,
        model_id=model_id,
        signature=mlflow_signature(manifest.signature),
        saved_input_example_info=_write_example(example, to) if example else None,
        model_size_bytes=sum(file.size_bytes for file in listed_packages(manifest)),
    )
    # MLflow hands a caller's settings to the loader only where their names stand here.
    settings = {"keys": "", "name": manifest.model, "version": version, "target": "auto"}
    model.add_flavor(
        "python_function",
        loader_module=LOADER_MODULE,
        python_version=platform.python_version(),
        config=settings,
    )
    packages = {file.path: str(file.digest) for file in listed_packages(manifest)}
    model.add_flavor(
        "handoff", model=manifest.model, version=version, manifest=str(manifest.digest),
        release=str(release), targets=[t.slug for t in manifest.targets], packages=packages,
    )  # fmt: skip
    model.save(str(to / MLMODEL_FILE))


def mlflow_signature(signature: ModelSignature) -> MlflowSignature | None:
    """Return the signature as MLflow's, -1 for a dynamic size; None where numpy lacks a dtype.

    bfloat16 is the one that it lacks.
    """
    from mlflow.models import ModelSignature as MlflowSignature
    from mlflow.types import Schema
    from mlflow.types import TensorSpec as MlflowTensor

    if any(spec.dtype == "bfloat16" for spec in (*signature.inputs, *signature.outputs)):
        return None

    def described(spec: TensorSpec) -> MlflowTensor:
        import numpy as np

        shape = tuple(axis if isinstance(axis, int) else -1 for axis in spec.shape)
        return MlflowTensor(np.dtype(spec.dtype), shape, spec.name)

    inputs, outputs = (
        Schema([described(spec) for spec in specs])
        for specs in (signature.inputs, signature.outputs)
    )
    return MlflowSignature(inputs, outputs if signature.outputs else None)


def input_example(signature: ModelSignature, examples: Path) -> dict[str, Any] | None:
    """Return the first example's inputs as nested lists, each dynamic size the least there may be.

    None where there is no example, or none that is small.
    """
    from safetensors import SafetensorError, safe_open

    found = {}
    try:
        with safe_open(examples, framework="np") as tensors:
            for spec in signature.inputs:
                part = tensors.get_slice(f"0/inputs/{spec.name}")
                cut = tuple(slice(size) for size in _least_sizes(spec, signature))
                found[spec.name] = part[cut] if cut else tensors.get_tensor(f"0/inputs/{spec.name}")
                if sum(array.size for array in found.values()) > _EXAMPLE_LIMIT_ELEMENTS:
                    return None
    except (OSError, SafetensorError, TypeError):
        # TypeError: numpy has no bfloat16.
        return None
    return {name: array.tolist() for name, array in found.items()}


def _least_sizes(spec: TensorSpec, signature: ModelSignature) -> Iterator[int]:
    for axis in spec.shape:
        yield axis if isinstance(axis, int) else max(1, signature.dimensions[axis].min)


def _write_example(example: dict[str, Any], to: Path) -> dict[str, str]:
    """Write the example the way that MLflow reads one, and say so in its words."""
    (to / _EXAMPLE_FILE).write_text(json.dumps(example), encoding="utf-8")
    (to / _SERVING_FILE).write_text(json.dumps({"inputs": example}), encoding="utf-8")
    return {
        "artifact_path": _EXAMPLE_FILE, "serving_input_path": _SERVING_FILE, "type": "ndarray",
    }  # fmt: skip
