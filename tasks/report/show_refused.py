"""Show a refused release in MLflow: its sentence, what was measured until then, and its report."""

from __future__ import annotations

from handoff.artifacts.mlflow.registry import Catalogue
from handoff.artifacts.release.layout import REPORT_FILE
from handoff.artifacts.release.manifest import MANIFEST_FILE, read_manifest
from handoff.tasks.report.messages import ShowRefusedJob, ShowRefusedResult


def run(job: ShowRefusedJob) -> ShowRefusedResult:
    """Log the refusal; once, however often it is asked. Raises `RegistryFailed`."""
    folder = job.folder
    manifest = read_manifest(folder) if (folder / MANIFEST_FILE).exists() else None
    # Not the packages: what was refused is nowhere to be fetched from.
    shown = [folder / name for name in (REPORT_FILE, MANIFEST_FILE)]
    evidence = {path.name: path.read_bytes() for path in shown if path.is_file()}
    catalogue = Catalogue(job.stores.tracking_uri, job.stores.artifact_root)
    return ShowRefusedResult(catalogue.log_refusal(job.refusal, manifest, evidence).link())
