"""Sign a conformance table. It runs in the process that alone reads the key."""

from __future__ import annotations

from handoff.artifacts.conformance.keeping import conformance_statement
from handoff.artifacts.release.signing import open_signer, sign_statement
from handoff.tasks.conformance.messages import SignedTable, SignTableJob


def run(job: SignTableJob) -> SignedTable:
    """Return the envelope over the table's digest, toolchain and counts."""
    signer = open_signer(job.key.uri, job.key.public)
    return SignedTable(sign_statement(conformance_statement(job.table), signer).decode())
