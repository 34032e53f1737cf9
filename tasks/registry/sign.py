"""Sign: the one step that reads the key. It runs in a process that nothing of a delivery reaches.

It is given digests and typed results, and looks at them before it signs: a release whose packages
were refused gets no signature, whoever asks.
"""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import BlessingRefused, BuildCrashed, KeyUnusable, UsageProblem
from handoff.artifacts.release.ledger import entry_statement
from handoff.artifacts.release.manifest import Manifest, TargetRecord
from handoff.artifacts.release.remedy import next_step
from handoff.artifacts.release.signing import make_key, open_signer, read_trust, sign_statement
from handoff.artifacts.release.statement import release_statement
from handoff.artifacts.version import own_version
from handoff.tasks.registry.changes import SignJob, SignResult
from handoff.tasks.registry.messages import KeyJob, KeyResult

_REASONS_SHOWN = 3


def refused_targets(manifest: Manifest) -> list[TargetRecord]:
    """Return the targets that can't be vouched for."""
    return [target for target in manifest.targets if target.verdict == "refused"]


def require_accepted(manifest: Manifest) -> None:
    """Raise `BlessingRefused` unless every target was accepted: a release is all or nothing.

    It is `BuildCrashed` where no target was found to be wrong.
    """
    refused = refused_targets(manifest)
    if not refused:
        return
    reasons = [f"{target.slug}: {reason}" for target in refused for reason in target.reason_lines]
    shown = reasons[:_REASONS_SHOWN]
    if more := len(reasons) - len(shown):
        shown.append(f"and {more} more, in the report")
    kind = BuildCrashed if all(target.crashed for target in refused) else BlessingRefused
    raise kind(
        f"{manifest.model} is not released, because its package was refused",
        expected="every target within the agreed tolerance",
        got="\n".join(shown),
        remedy=f"Nothing was registered. {next_step(manifest)}",
    )


def open_key(job: KeyJob) -> KeyResult:
    """Return the id of the key that is going to sign; make the key where that is wanted.

    Raises `KeyUnusable` for a key that can't be used, or that isn't trusted where it signs, and
    `EnvironmentLacking` where none can be made.
    """
    key = job.key
    if key.make_missing and not Path(key.uri).exists():
        make_key(Path(key.uri), key.public)
    public = open_signer(key.uri, key.public).public_key
    key_id: str = public.keyid
    trust = read_trust(job.trusted or (), may_lack=True)
    if job.trusted is not None and key_id not in {known.keyid for known in trust.keys}:
        raise KeyUnusable(
            "what is signed here would be refused here",
            expected=f"the signing key's public key, {key_id[:12]}, among the trusted ones",
            got=", ".join(trust.ids) or "none",
            remedy="Trust it: 'handoff keys show > FILE', then 'handoff keys trust FILE'",
        )
    return KeyResult(key_id, public.keyval["public"])


def run(job: SignJob) -> SignResult:
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
    return SignResult(entry, envelope.decode(), release.decode())
