"""A new key pair in two files: both of them, or none that anybody would use."""

from __future__ import annotations

import os
from pathlib import Path

from handoff.artifacts.errors import EnvironmentLacking
from handoff.artifacts.files.locks import held
from handoff.artifacts.files.whole_file import write_whole
from handoff.artifacts.release.signing import public_pem


def make_key(private: Path, public: Path) -> None:
    """Make a key pair: the private key readable by its owner alone, and never written over.

    Two processes that do so at once end with one pair. Raises `EnvironmentLacking` where the
    files can't be written.
    """
    try:
        private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        public.parent.mkdir(parents=True, exist_ok=True)
        with held(private.parent) as folder:
            if not private.exists():
                secret = _new_secret()
                # The public key first: whoever is killed in between has made no key, and the next
                # one makes both.
                write_whole(public, public_pem(secret), mode=0o644, is_synced=True)
                write_whole(private, secret, is_synced=True)
                os.fsync(folder)
    except OSError as error:
        raise EnvironmentLacking(
            f"a signing key can't be made in {private.parent}",
            expected="a folder that this user may write to, with room in it",
            got=error.strerror or str(error),
            remedy="Mend the permissions or make room, or name a key of your own with "
            "HANDOFF_SIGNING_KEY",
        ) from error


def _new_secret() -> bytes:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    return generate_private_key(SECP256R1()).private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
