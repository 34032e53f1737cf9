"""Signatures: in-toto statements in DSSE envelopes, and the keys that sign and verify them.

An envelope is what secure-systems-lab/dsse describes: the payload in base64, its type, and
signatures over `DSSEv1 <length> <type> <length> <payload>`. Keys are EC P-256 (ECDSA with SHA-256,
DER), so that `openssl dgst -sha256 -verify` and libcrypto alone can verify one. A key's id is the
SHA-256 of its DER SubjectPublicKeyInfo: `openssl pkey -pubin -outform DER | sha256sum`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from handoff.artifacts.errors import EnvironmentLacking, KeyUnusable, PackageRefused
from handoff.artifacts.files.locks import lock_folder
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.files.writing import write_atomically
from handoff.artifacts.printable import one_line

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import Signer, SSlibKey


PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
# A release's statement names some hundred files at most; a store that sends more sends another.
# What is read before anything is verified takes up to a hundred times its size in memory.
ENVELOPE_LIMIT_BYTES = 2 << 20
_PUBLIC_SUFFIX = ".pub"


@dataclass(frozen=True)
class Trust:
    """The public keys of which one has to have signed; none trusts nothing."""

    keys: tuple[SSlibKey, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The keys' ids, shortened for people."""
        return tuple(key.keyid[:12] for key in self.keys)


def read_trust(places: Iterable[str | Path], *, may_lack: bool = False) -> Trust:
    """Return the public keys in PEM files, and in the files `*.pub` of folders.

    With `may_lack` a place that isn't there adds none. Raises `KeyUnusable` for one otherwise, and
    for a file that holds no public key.
    """
    keys = {key.keyid: key for key in map(_read_public_key, key_files(places, may_lack=may_lack))}
    return Trust(tuple(keys.values()))


def key_files(places: Iterable[str | Path], *, may_lack: bool = False) -> Iterator[Path]:
    """Return the files that `places` name: themselves, and in folders those of public keys.

    With `may_lack` a place that isn't there adds none.
    """
    for place in map(Path, places):
        if place.is_dir():
            yield from sorted(place.glob(f"*{_PUBLIC_SUFFIX}"))
        elif place.exists() or not may_lack:
            yield place


def public_key_of(pem: bytes, name: str) -> SSlibKey:
    """Return the public key in `pem`; raise `KeyUnusable`, naming `name`, when there is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
    )
    from securesystemslib.signer import SSlibKey

    try:
        key: Any = load_pem_public_key(pem)
        der: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        public_key = SSlibKey.from_crypto(key, sha256(der).hexdigest())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_public_key(name, "something else") from error
    if public_key.scheme != "ecdsa-sha2-nistp256":
        raise _no_public_key(name, str(public_key.scheme))
    return public_key


def open_signer(uri: str, public: Path | None = None) -> Signer:
    """Return what signs with the key that `uri` names: a PEM file's path, or a KMS's address.

    A path may be written `file:PATH`. `awskms:`, `gcpkms:`, `azurekms:` and `hsm:` are
    securesystemslib's, and need the `public` key's file. Raises `KeyUnusable` for a key that isn't
    there, that isn't EC P-256, or that others than its owner may read.
    """
    from securesystemslib.signer import CryptoSigner
    from securesystemslib.signer import Signer as AnySigner

    scheme, separator, _ = uri.partition(":")
    if separator and scheme != "file":
        if public is None:
            raise KeyUnusable(
                f"the key at {scheme}: can't be used", expected="its public key in a file",
                got="none", remedy="Name it with HANDOFF_SIGNING_PUBLIC_KEY",
            )  # fmt: skip
        public_key = _read_public_key(public)
        try:
            return AnySigner.from_priv_key_uri(uri, public_key)
        # Each KMS has a library with errors of its own.
        except Exception as error:
            raise _signing_failure(error) from error
    secret = _read_private_key(Path(uri.removeprefix("file:")))
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    public_key = public_key_of(public_pem(secret), uri)
    key: Any = load_pem_private_key(secret, password=None)
    return CryptoSigner(key, public_key)


def _signing_failure(error: Exception) -> EnvironmentLacking:
    return EnvironmentLacking(
        "the signing key can't be used", expected="a key of that service, and its login",
        got=one_line(f"{type(error).__name__}: {error}")[:300],
        remedy="Check HANDOFF_SIGNING_KEY, and what the service's own library reads (AWS_REGION "
        "and a login for awskms:)",
    )  # fmt: skip


def sign_statement(statement: Mapping[str, Any], signer: Signer) -> bytes:
    """Return the envelope of an in-toto statement, as JSON with one final newline."""
    from securesystemslib.dsse import Envelope

    payload = json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    try:
        envelope.sign(signer)
    except Exception as error:
        raise _signing_failure(error) from error
    return json.dumps(envelope.to_dict(), sort_keys=True).encode() + b"\n"


def open_envelope(data: bytes, trust: Trust, what: str) -> dict[str, Any]:
    """Return the in-toto statement in an envelope that one of the trusted keys has signed.

    Raises `PackageRefused`, naming `what`, for anything else: nothing in the payload is looked at
    before its signature is verified.
    """
    from securesystemslib.exceptions import VerificationError

    if not trust.keys:
        raise _refusal(
            what, "a public key to verify it with", "none that is trusted here",
            "Get the public key from whoever releases ('handoff keys show' prints it there), and "
            "trust it with 'handoff keys trust FILE'",
        )  # fmt: skip
    if len(data) > ENVELOPE_LIMIT_BYTES:
        raise _refusal(what, f"at most {ENVELOPE_LIMIT_BYTES} bytes", str(len(data)), _PULL_AGAIN)
    try:
        envelope = _read_envelope(parse_json(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refusal(what, "a DSSE envelope", "something else", _PULL_AGAIN) from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise _refusal(what, PAYLOAD_TYPE, repr(envelope.payload_type[:60]), _PULL_AGAIN)
    try:
        envelope.verify(list(trust.keys), 1)
    except VerificationError as error:
        raise _verification_failure(what, trust, list(envelope.signatures)) from error
    try:
        statement = parse_json(envelope.payload)
    except ValueError as error:
        raise _refusal(what, "an in-toto statement", str(error)[:200], _PULL_AGAIN) from error
    if not isinstance(statement, dict) or statement.get("_type") != STATEMENT_TYPE:
        raise _refusal(what, "an in-toto statement", "something else", _PULL_AGAIN)
    return statement


def _read_envelope(plain: Any) -> Envelope:  # noqa: ANN401 - JSON has no narrower type
    from securesystemslib.dsse import Envelope

    # The library takes the names of keys and types as they come, and compares them later.
    names = [plain["payloadType"], *(signature["keyid"] for signature in plain["signatures"])]
    if not all(isinstance(name, str) for name in names):
        raise TypeError("expected names")
    return Envelope.from_dict(plain)


_PULL_AGAIN = "Don't use it: somebody has changed it, or it was never whole. Pull it again"


def _verification_failure(what: str, trust: Trust, signers: Sequence[str]) -> PackageRefused:
    known = ", ".join(trust.ids)
    if not signers:
        return _refusal(
            what, f"a signature by a trusted key ({known})", "no signature", _PULL_AGAIN
        )
    if not {key.keyid for key in trust.keys} & set(signers):
        return _refusal(
            what, f"a signature by a trusted key ({known})",
            f"one by {', '.join(repr(signer[:12]) for signer in signers[:3])}",
            "Don't use it, unless you know that key: 'handoff keys trust FILE' trusts it",
        )  # fmt: skip
    return _refusal(what, "a signature that matches", "one of other bytes", _PULL_AGAIN)


def _refusal(what: str, expected: str, got: str, remedy: str) -> PackageRefused:
    return PackageRefused(
        f"{what} is not verified", expected=expected, got=got, remedy=remedy
    )  # fmt: skip


def _read_public_key(file: Path) -> SSlibKey:
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise _no_public_key(str(file), error.strerror or str(error)) from error
    return public_key_of(pem, str(file))


def _read_private_key(file: Path) -> bytes:
    try:
        mode = file.stat().st_mode
        secret = file.read_bytes()
    except OSError as error:
        raise KeyUnusable(
            f"the signing key {file} can't be read", expected="a PEM file with a private key",
            got=error.strerror or str(error), remedy="Fix HANDOFF_SIGNING_KEY",
        ) from error  # fmt: skip
    # A group may read it: Kubernetes gives secrets to a pod that way (`fsGroup`).
    if stat.S_IMODE(mode) & 0o037:
        raise KeyUnusable(
            f"the signing key {file} is open to others", expected="a file of mode 600 or 640",
            got=f"{stat.S_IMODE(mode):o}", remedy="chmod 600 it, and find out who may have read it",
        )  # fmt: skip
    return secret


def public_pem(secret: bytes) -> bytes:
    """Return the public key of a private one, in PEM; raise `KeyUnusable` where there is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    try:
        key = load_pem_private_key(secret, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # What the file holds is never shown: it may be the key after all.
        raise KeyUnusable(
            "the signing key's file holds no key to sign with",
            expected="an EC key on P-256 in PEM, without a password", got="something else",
            remedy="Make one with openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256",
        ) from error  # fmt: skip
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _no_public_key(name: str, got: str) -> KeyUnusable:
    return KeyUnusable(
        f"{name} holds no public key to verify with", expected="an EC key on P-256 in PEM", got=got,
        remedy="Get the file from whoever releases: 'handoff keys show' prints the key there",
    )  # fmt: skip


def make_key(private: Path, public: Path) -> None:
    """Make a key pair: the private key readable by its owner alone, and never written over.

    Two processes that do so at once end with one pair. Raises `EnvironmentLacking` where the
    files can't be written.
    """
    try:
        private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        public.parent.mkdir(parents=True, exist_ok=True)
        with lock_folder(private.parent) as folder:
            if not private.exists():
                secret = _generate_private_key()
                # The public key first: whoever is killed in between has made no key, and the next
                # one makes both.
                write_atomically(public, public_pem(secret), mode=0o644, is_synced=True)
                write_atomically(private, secret, is_synced=True)
                os.fsync(folder)
    except OSError as error:
        raise EnvironmentLacking(
            f"a signing key can't be made in {private.parent}",
            expected="a folder that this user may write to, with room in it",
            got=error.strerror or str(error),
            remedy="Fix the permissions or make room, or name a key of your own with "
            "HANDOFF_SIGNING_KEY",
        ) from error


def _generate_private_key() -> bytes:
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    return generate_private_key(SECP256R1()).private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
