"""Keep a conformance table in the store, once its signature was verified."""

from __future__ import annotations

from artifacts.conformance import KeepTableJob, KeptTable
from artifacts.conformance_tables import keep_table, read_table
from artifacts.signing import read_trust
from artifacts.stores.opening import open_store


def run(job: KeepTableJob) -> KeptTable:
    """Write the table and its signature, and read them back as everybody does.

    Raises `PackageRefused` for a signature that isn't trusted here, and `StoreFailed`.
    """
    store = open_store(job.stores.objects)
    key = keep_table(store, job.table, job.envelope.encode())
    read_table(store, read_trust(job.stores.trusted, may_lack=True), job.table.digest)
    return KeptTable(key)
