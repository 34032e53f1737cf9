"""Commit: a signed entry becomes the ledger's next one, and what it says is so from then on."""

from __future__ import annotations

from handoff.artifacts.digest import Digest, digest_bytes
from handoff.artifacts.errors import StoreFailed
from handoff.artifacts.release.releases import Releases, open_releases
from handoff.artifacts.release.statement import open_release
from handoff.tasks.registry.changes import CommitJob, CommitResult


def run(job: CommitJob) -> CommitResult:
    """Append the entry; where another writer was quicker, nothing is done and the result says so.

    Raises `StoreFailed` where an object of the release isn't there: nothing points to it then.
    """
    stores, entry = job.stores, job.signed.entry
    releases = open_releases(stores.objects, stores.trusted, stores.seen)
    if job.signed.release_envelope:
        _store_release(releases, job.signed.release_envelope.encode(), entry.release)
    envelope = job.signed.entry_envelope.encode()
    return CommitResult(releases.commit(envelope, entry.model, entry.sequence))


def _store_release(releases: Releases, envelope: bytes, digest: Digest) -> None:
    claim = open_release(envelope, releases.trust, "the release that was just signed")
    for digest_of_object in releases.objects_of(claim):
        if not releases.objects.has(digest_of_object):
            raise StoreFailed(
                "an object of the release is not in the store any more",
                expected=f"the object {digest_of_object.short}", got="none",
                remedy="Run the release again; was it removed by a garbage collector whose grace "
                "is shorter than a release?",
            )  # fmt: skip
    if releases.objects.put_bytes(envelope) != digest or digest_bytes(envelope) != digest:
        raise AssertionError("the signer returns the digest of what it signed")
