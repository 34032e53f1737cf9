"""A release's run and logged model in MLflow: uploaded whole, found again, or taken away.

`mlflow.pyfunc.load_model` and `mlflow models serve` read MLmodel and call `infra.flavor`, which
verifies the release before it opens a package. MLmodel itself is signed by nobody: who may change
it may name another loader. Whoever can't trust MLflow's store pulls from the object store instead.

A logged model is READY when its last file is there, never before; a version is made of READY ones
only. What a registrar that was killed leaves behind carries its tag, by which the next one knows
that nobody is at work on it any more.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.artifacts.delivery.contract import EXAMPLES_FILE
from handoff.artifacts.delivery.signature import ModelSignature, TensorSpec
from handoff.artifacts.digest import Digest
from handoff.artifacts.mlflow.description import RunAddress
from handoff.artifacts.mlflow.session import Session
from handoff.artifacts.mlflow.tags import (
    RELEASE_TAG,
    TAG,
    run_metrics,
    run_parameters,
    run_title,
)
from handoff.artifacts.release.manifest import MANIFEST_FILE, Manifest, PackageFile, TargetRecord
from handoff.artifacts.release.statement import RELEASE_FILE
from handoff.artifacts.serve.archive import EXTERN_KERNELS_FILE

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
        file
        for target in manifest.targets
        for file in target.files
        if file.path in _loaded_paths(target)
    )


def _loaded_paths(target: TargetRecord) -> tuple[str, ...]:
    file = loaded_file(target)
    names = (file, EXTERN_KERNELS_FILE) if file.endswith(".so") else (file,)
    return tuple(f"{target.slug}/{name}" for name in names)


def loaded_file(target: TargetRecord) -> str:
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

    def to_mlflow_spec(spec: TensorSpec) -> MlflowTensor:
        import numpy as np

        shape = tuple(axis if isinstance(axis, int) else -1 for axis in spec.shape)
        return MlflowTensor(np.dtype(spec.dtype), shape, spec.name)

    inputs, outputs = (
        Schema([to_mlflow_spec(spec) for spec in specs])
        for specs in (signature.inputs, signature.outputs)
    )
    return MlflowSignature(inputs, outputs if signature.outputs else None)


def input_example(signature: ModelSignature, examples: Path) -> dict[str, Any] | None:
    """Return the first example's inputs as nested lists, each dynamic size the least there may be.

    None where there is no example, or none that is small.
    """
    from safetensors import SafetensorError, safe_open

    arrays = {}
    try:
        with safe_open(examples, framework="np") as tensors:
            for spec in signature.inputs:
                tensor = tensors.get_slice(f"0/inputs/{spec.name}")
                least_sizes = (
                    axis if isinstance(axis, int) else max(1, signature.dimensions[axis].min)
                    for axis in spec.shape
                )  # fmt: skip
                slices = tuple(map(slice, least_sizes))
                arrays[spec.name] = (
                    tensor[slices] if slices else tensors.get_tensor(f"0/inputs/{spec.name}")
                )
                if sum(array.size for array in arrays.values()) > _EXAMPLE_LIMIT_ELEMENTS:
                    return None
    except (OSError, SafetensorError, TypeError):
        # TypeError: numpy has no bfloat16.
        return None
    return {name: array.tolist() for name, array in arrays.items()}


def _write_example(example: dict[str, Any], to: Path) -> dict[str, str]:
    """Write the example the way that MLflow reads one, and say so in its words."""
    (to / _EXAMPLE_FILE).write_text(json.dumps(example), encoding="utf-8")
    (to / _SERVING_FILE).write_text(json.dumps({"inputs": example}), encoding="utf-8")
    return {
        "artifact_path": _EXAMPLE_FILE, "serving_input_path": _SERVING_FILE, "type": "ndarray",
    }  # fmt: skip


REGISTRAR_TAG = f"{TAG}registrar"
# Under these names MLflow keeps a run's or model's description, and a model's versions.
NOTE_TAG = "mlflow.note.content"
VERSIONS_TAG = "mlflow.modelVersions"
# Of a registrar on another machine nothing is known but when it began.
_LONGEST_UPLOAD_S = 3600.0
_ACTIVE_REGISTRARS: set[str] = set()


@dataclass(frozen=True)
class LoggedRelease:
    """The run, the logged model and the address of its files."""

    experiment: str
    run: str
    model: str
    source: str


@dataclass(frozen=True)
class Upload:
    """What is uploaded: the release in `folder`, and what else was written about it.

    `version` is the release's own, `release` the digest of its signed statement.

    `tags` are for the run and the model, `describe` gives the description for a run. `inputs` are
    logged models that this one was made from.
    """

    manifest: Manifest
    version: int
    folder: Path
    release: Digest
    evidence: Mapping[str, bytes]
    tags: Mapping[str, str]
    describe: Callable[[RunAddress], str]
    inputs: tuple[str, ...] = ()


class ReleaseLog:
    """The releases that are logged in one experiment."""

    def __init__(self, session: Session, experiment: str) -> None:
        """Work in the experiment with the id `experiment`."""
        self._session = session
        self._client = session.client
        self._call = session.call
        self.experiment = experiment

    def find(self, release: Digest) -> LoggedRelease | None:
        """Return the whole upload of a release, the oldest where there are several, or None."""
        ready = [model for model in self._find_models(release) if str(model.status) == "READY"]
        if not ready:
            return None
        oldest = min(ready, key=lambda model: (model.creation_timestamp, model.model_id))
        return LoggedRelease(
            self.experiment, oldest.source_run_id, oldest.model_id, oldest.artifact_location
        )

    def upload(self, job: Upload) -> LoggedRelease:
        """Upload the files and return where they are, whole; what fails is taken away again."""
        owner = (platform.node(), os.getpid(), _read_start_time(os.getpid()), uuid.uuid4().hex)
        # A run's own start is the release's: when its upload began stands here.
        registrar = " ".join(map(str, (*owner, round(time.time() * 1000))))
        _ACTIVE_REGISTRARS.add(registrar)
        try:
            return self._upload(job, {**job.tags, REGISTRAR_TAG: registrar})
        finally:
            _ACTIVE_REGISTRARS.discard(registrar)

    def upload_again(self, logged: LoggedRelease, job: Upload) -> None:
        """Upload the files of an upload that was whole once, over those that are left of it."""
        with tempfile.TemporaryDirectory() as name:
            self._log_evidence(job, logged.run, logged.model, Path(name))
        self._log_files(job, logged.model)

    def conclude(self, logged: LoggedRelease, model: str, version: int) -> None:
        """Say on the logged model's page which version was made of it; the work is done."""
        versions = json.dumps([{"name": model, "version": str(version)}])
        self._call(self._client.set_logged_model_tags, logged.model, {VERSIONS_TAG: versions})
        # Whose work it was is nothing that people look for.
        delete = self._session.delete_once
        delete(self._client.delete_logged_model_tag, logged.model, REGISTRAR_TAG)
        delete(self._client.delete_tag, logged.run, REGISTRAR_TAG)

    def sweep(self, release: Digest, keep_run: str) -> None:
        """Take away what killed registrars left of a release, but not the run that is listed."""
        for model in self._find_models(release):
            is_kept = model.source_run_id == keep_run and str(model.status) == "READY"
            if not is_kept and _is_abandoned(model.tags, model.creation_timestamp):
                self._delete_files(model.artifact_location)
                self._session.delete_once(self._client.delete_logged_model, model.model_id)
        for run in self._find_runs(release):
            is_kept = run.info.run_id == keep_run
            if not is_kept and _is_abandoned(run.data.tags, run.info.start_time):
                self._delete_files(run.info.artifact_uri)
                self._session.delete_once(self._client.delete_run, run.info.run_id)

    def _upload(self, job: Upload, tags: dict[str, str]) -> LoggedRelease:
        client, model = self._client, job.manifest.model
        title = run_title(f"{model}@{job.version}", job.manifest.lineage)
        began, ended = _span(job.manifest)
        run = self._call(client.create_run, self.experiment, began, tags, title)
        run_id: str = run.info.run_id
        note = job.describe(RunAddress(self.experiment, run_id))
        self._call(client.set_tag, run_id, NOTE_TAG, note)
        logged = self._call(
            # MLflow allows no dot in a logged model's name.
            client.create_logged_model, self.experiment, name=model.replace(".", "-"),
            source_run_id=run_id, tags={**tags, NOTE_TAG: note},
            params=run_parameters(job.manifest), model_type="aotinductor",
        )  # fmt: skip
        self._log_figures(job, run_id, logged.model_id)
        with tempfile.TemporaryDirectory() as name:
            self._log_evidence(job, run_id, logged.model_id, Path(name))
        self._log_files(job, logged.model_id)
        self._call(client.set_terminated, run_id, "FINISHED", ended)
        # Last: a model that is not ready is one whose files may be missing.
        self._call(client.finalize_logged_model, logged.model_id, "READY")
        return LoggedRelease(
            self.experiment, run_id, str(logged.model_id), str(logged.artifact_location)
        )

    def _log_figures(self, job: Upload, run_id: str, model_id: str) -> None:
        from mlflow.entities import LoggedModelInput, LoggedModelOutput, Metric, Param

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, number, now, 0, model_id=model_id)
            for name, number in run_metrics(job.manifest).items()
        ]
        parameters = [Param(*pair) for pair in run_parameters(job.manifest).items()]
        self._call(self._client.log_batch, run_id, metrics=metrics, params=parameters)
        self._call(self._client.log_outputs, run_id, [LoggedModelOutput(model_id, 0)])
        if job.inputs:
            made_from = [LoggedModelInput(one) for one in job.inputs]
            self._call(self._client.log_inputs, run_id, models=made_from)

    def _log_evidence(self, job: Upload, run_id: str, model_id: str, folder: Path) -> None:
        """Log the report and its pictures with the run, where a link leads, and with the model."""
        for name, data in job.evidence.items():
            path = folder / name
            path.write_bytes(data)
            self._call(self._client.log_artifact, run_id, str(path))
        write_mlmodel(
            job.manifest,
            job.version,
            job.release,
            job.folder,
            folder,
            run_id=run_id,
            model_id=model_id,
        )
        for path in sorted(folder.iterdir()):
            self._call(self._client.log_model_artifact, model_id, str(path))

    def _log_files(self, job: Upload, model_id: str) -> None:
        shared = [MANIFEST_FILE, RELEASE_FILE, *(file.path for file in job.manifest.files)]
        for name in (*shared, *(file.path for file in listed_packages(job.manifest))):
            below = name.rpartition("/")[0] or None
            path = str(job.folder / name)
            self._call(self._client.log_model_artifact, model_id, path, below)

    def _find_models(self, release: Digest) -> list[Any]:
        query = f"tags.`{RELEASE_TAG}` = '{release}'"
        search = self._client.search_logged_models
        models = self._session.pages(search, experiment_ids=[self.experiment], filter_string=query)
        return list(models)

    def _find_runs(self, release: Digest) -> list[Any]:
        query = f"tags.`{RELEASE_TAG}` = '{release}'"
        search = self._client.search_runs
        return list(self._session.pages(search, [self.experiment], filter_string=query))

    def _delete_files(self, address: str) -> None:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        repository = get_artifact_repository(address, tracking_uri=self._client.tracking_uri)
        # Another registrar may be taking the same away.
        with suppress(FileNotFoundError):
            self._call(repository.delete_artifacts)


def _span(manifest: Manifest) -> tuple[int | None, int | None]:
    """Return when a release was begun and made, in ms; nothing where its record doesn't say it.

    What MLflow shows as a run's duration is then the release's, and not the upload's.
    """
    if not (manifest.began and manifest.created):
        return None, None
    began, ended = (datetime.fromisoformat(one) for one in (manifest.began, manifest.created))
    return round(began.timestamp() * 1000), round(ended.timestamp() * 1000)


def _is_abandoned(tags: Mapping[str, str], begun_ms: int) -> bool:
    """Return whether nobody is at work any more on what a registrar began."""
    registrar = tags.get(REGISTRAR_TAG, "")
    words = registrar.split(" ")
    if len(words) == 5 and words[4].isdigit():
        begun_ms = int(words[4])
    if len(words) in (4, 5) and words[0] == platform.node():
        if registrar in _ACTIVE_REGISTRARS:
            return False
        is_own_process = words[1] == str(os.getpid())
        return (
            is_own_process or not words[1].isdigit() or _read_start_time(int(words[1])) != words[2]
        )
    return time.time() - begun_ms / 1000 > _LONGEST_UPLOAD_S


def _read_start_time(process: int) -> str:
    """Return when a process began, in ticks since the machine did; '' for one that has ended."""
    try:
        # The name in brackets may hold anything; the 22nd field is the 20th after it.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    # One that was killed stays in the table until its parent asks.
    return "" if fields[0] in "ZX" else fields[19]
