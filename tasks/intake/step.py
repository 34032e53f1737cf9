"""The step itself: stage a delivery, read it, say what it is."""

from __future__ import annotations

import shutil

import torch

from handoff.artifacts.digest import digest_tree
from handoff.artifacts.errors import DeliveryUnreadable, error_from_record
from handoff.tasks.intake.files.stage import stage
from handoff.tasks.intake.loading import read_delivery
from handoff.tasks.intake.messages import IntakeJob, IntakeResult
from handoff.tasks.verify.mha_fastpath import by_definition


@by_definition()
def run(job: IntakeJob) -> IntakeResult:
    """Copy the delivery into its staging folder, read it there, and say what it is.

    Nothing that the delivery brings is executed or unpickled. Raises `DeliveryUnreadable` with
    the file, the line and what to do.
    """
    is_new = not job.staging.exists()
    files = stage(job.delivery, job.staging)
    try:
        loaded = read_delivery(job.staging)
    except DeliveryUnreadable as error:
        if is_new:
            # So that the same staging folder can take the delivery once it is fixed.
            shutil.rmtree(job.staging)
        # It names the delivery's folder, which people know, for our copy of it.
        record = {key: text.replace(str(job.staging), str(job.delivery)) for key, text in
                error.as_record().items()}  # fmt: skip
        raise error_from_record(record) from error
    # Each storage is counted once.
    tensors: list[torch.Tensor] = [*loaded.module.parameters(), *loaded.module.buffers()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return IntakeResult(
        contract=loaded.contract,
        staging=job.staging,
        digest=digest_tree(files),
        files=files,
        nodes=len(loaded.module.graph.nodes),
        weights_bytes=sum(storages.values()),
        findings=loaded.findings,
    )
