"""Open the signing key before a release is built that it would have to sign, or make it."""

from __future__ import annotations

from pathlib import Path

from handoff.artifacts.errors import UsageProblem
from handoff.artifacts.release.key_pair import make_key
from handoff.artifacts.release.signing import open_signer, read_trust
from handoff.tasks.registry.messages import KeyJob, KeyResult


def run(job: KeyJob) -> KeyResult:
    """Return the id of the key that is going to sign; make the key where that is wanted.

    Raises `UsageProblem` for a key that can't be used, or that isn't trusted where it signs, and
    `EnvironmentLacking` where none can be made.
    """
    key = job.key
    if key.make_missing and not Path(key.uri).exists():
        make_key(Path(key.uri), key.public)
    public = open_signer(key.uri, key.public).public_key
    key_id: str = public.keyid
    trust = read_trust(job.trusted or (), may_lack=True)
    if job.trusted is not None and key_id not in {known.keyid for known in trust.keys}:
        raise UsageProblem(
            "what is signed here would be refused here",
            expected=f"the signing key's public key, {key_id[:12]}, among the trusted ones",
            got=", ".join(trust.ids) or "none",
            remedy="Trust it: 'handoff keys show > FILE', then 'handoff keys trust FILE'",
        )
    return KeyResult(key_id, public.keyval["public"])
