"""Upload: every file of a release into the store, in parts, with its record and its evidence.

The delivery that it was made from is stored as well, so that it can be made again from the store.

Nothing refers to what is uploaded before the ledger does: an interrupted upload leaves objects that
nobody needs, which a second one finds again or the garbage collector removes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from handoff.artifacts.digest import Digest, digest_file, digest_tree
from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.release.layout import write_parts
from handoff.artifacts.release.statement import release_files
from handoff.artifacts.stores.objects import Objects
from handoff.artifacts.stores.store import open_store
from handoff.infra.engine.progress import counter
from handoff.tasks.compile.shared_weights import DeliveredTensors
from handoff.tasks.registry.messages import UploadJob, UploadResult
from handoff.tasks.registry.sign import require_accepted
from handoff.tasks.report.page import evidence


def run(job: UploadJob) -> UploadResult:
    """Keep everything; raise `BlessingRefused` for a refused target, `StoreFailed` for the store's.

    Parts that the store knows, such as weights that did not change, are not sent again, nor are
    those that the delivery has, too.
    """
    manifest = job.manifest
    require_accepted(manifest)
    objects = Objects(open_store(job.stores.objects))
    lacking = objects.store.check().lacking
    parts = {}
    files = release_files(manifest)
    staged = sorted(job.delivery.iterdir()) if job.delivery else None
    size = sum(file.size_bytes for file in files)
    count = counter(size + sum(path.stat().st_size for path in staged or ()))
    # Before anything is sent: what isn't the delivery of the record can't be its delivery.
    if staged is not None:
        _require_delivery(staged, manifest.delivery)
    delivered = {path: objects.put_parts(path, progress=count) for path in staged or ()}
    shared = DeliveredTensors(delivered)
    for file in files:
        path = job.folder / file.path
        found = digest_file(path)
        if found != file.digest:
            raise StoreFailed(
                f"{file.path} changed after it was verified", expected=file.digest.short,
                got=found[7:19], remedy="Run the release again, and find out what writes there",
            )  # fmt: skip
        parts[file.path] = objects.put_parts(path, also=shared.cuts(path), progress=count)
    delivery = None
    if staged is not None:
        delivery_parts = {path.name: file_parts for path, file_parts in delivered.items()}
        delivery = objects.put_bytes(write_parts(delivery_parts))
    objects.put_bytes(manifest.to_bytes())
    evidence_digests = {name: objects.put_bytes(data) for name, data in evidence(manifest).items()}
    return UploadResult(objects.put_bytes(write_parts(parts)), evidence_digests, lacking, delivery)


def _require_delivery(staged: Iterable[Path], expected: Digest) -> None:
    """Raise `StoreFailed` unless the files are those of the delivery `expected`."""
    found = digest_tree({path.name: digest_file(path) for path in staged})
    if found != expected:
        raise StoreFailed(
            "the copy of the delivery changed after it was taken in", expected=expected.short,
            got=found.short, remedy="Run the release again, and find out what writes there",
        )  # fmt: skip
