"""Sign: the one step that reads the key. It runs in a process that nothing of a delivery reaches.

It is given digests and typed results, and looks at them before it signs: a release whose packages
were refused gets no signature, whoever asks.
"""

from __future__ import annotations

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.release.ledger import entry_statement
from handoff.artifacts.release.signing import open_signer, sign_statement
from handoff.artifacts.release.statement import release_statement
from handoff.artifacts.version import own_version
from handoff.tasks.registry.accepting import require_accepted
from handoff.tasks.registry.changes import Signed, SignJob


def run(job: SignJob) -> Signed:
    """Return the signed entry, and with it the signed release that it makes a version of.

    Raises `BlessingRefused` for a release with a refused target.
    """
    signer = open_signer(job.key.uri, job.key.public)
    entry = job.entry
    release = b""
    if job.manifest is not None and job.uploaded is not None:
        require_accepted(job.manifest)
        if (job.manifest.model, job.manifest.digest) != (entry.model, entry.manifest):
            raise UsageProblem(
                "the entry is not about this release", expected=job.manifest.digest.short,
                got=entry.manifest.short, remedy="Report it: that should not have happened",
            )  # fmt: skip
        statement = release_statement(
            job.manifest,
            entry.version,
            parts=job.uploaded.parts,
            evidence=job.uploaded.evidence,
            pipeline=own_version(),
            run=entry.run,
            delivery=job.uploaded.delivery,
        )
        release = sign_statement(statement, signer)
        entry = entry.with_release(digest_bytes(release))
    envelope = sign_statement(entry_statement(entry), signer)
    return Signed(entry, envelope.decode(), release.decode())
