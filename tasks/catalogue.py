"""Catalogue: what a model's ledger says, shown in MLflow and in the store's copies for people."""

from __future__ import annotations

from artifacts.registering import Catalogued, CatalogueJob
from artifacts.releases import open_releases


def run(job: CatalogueJob) -> Catalogued:
    """Write what is not shown yet. Raises `StoreFailed` and `RegistryFailed`."""
    stores = job.stores
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    releases.publish(job.model)
    return Catalogued()
