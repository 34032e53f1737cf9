"""Send: a folder becomes objects in the store, for another machine of the stack to fetch."""

from __future__ import annotations

from handoff.artifacts.release.part_list import write_parts
from handoff.artifacts.stores.objects import Objects
from handoff.artifacts.stores.opening import open_store
from handoff.infra.engine.progress import counter
from handoff.tasks.compile.shared_weights import DeliveredTensors, delivered_parts
from handoff.tasks.fetch.messages import SendJob, Sent


def run(job: SendJob) -> Sent:
    """Keep every file; raise `StoreFailed`. What the store knows already isn't sent again."""
    objects = Objects(open_store(job.stores.objects))
    paths = sorted(path for path in job.folder.rglob("*") if path.is_file())
    count = counter(sum(path.stat().st_size for path in paths))
    shared = DeliveredTensors(delivered_parts(job.delivery) if job.delivery else {})
    parts = {
        path.relative_to(job.folder).as_posix(): objects.put_parts(
            path, also=shared.cuts(path), progress=count
        )
        for path in paths
    }
    return Sent(objects.put_bytes(write_parts(parts)))
