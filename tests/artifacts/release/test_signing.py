"""Signed statements: those of schema 1 stay readable, and nothing else is ever taken for one."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from handoff.artifacts.digest import digest_bytes
from handoff.artifacts.errors import EnvironmentLacking, PackageRefused, UsageProblem
from handoff.artifacts.files.strict_parsing import parse_json
from handoff.artifacts.release.ledger import open_entry
from handoff.artifacts.release.manifest import parse_manifest
from handoff.artifacts.release.signing import (
    STATEMENT_TYPE,
    make_key,
    open_envelope,
    open_signer,
    public_key_of,
    read_trust,
    sign_statement,
)
from handoff.artifacts.release.statement import match_manifest, open_release, require_same_files
from tests.artifacts.samples import sample_key

# Signed once, with a private key that nobody has kept.
GOLDEN = Path(__file__).parents[2] / "golden"
RELEASE = (GOLDEN / "release-1.dsse.json").read_bytes()
LEDGER = (GOLDEN / "ledger-1.dsse.json").read_bytes()
TRUST = read_trust([GOLDEN / "golden.pub"])


def test_a_signed_release_of_schema_1_is_still_read() -> None:
    claim = open_release(RELEASE, TRUST, "the golden release")
    data = (GOLDEN / "manifest-1.json").read_bytes()
    match_manifest(claim, data, "manifest.json")
    manifest = parse_manifest(data)
    require_same_files(claim, manifest)
    assert (claim.model, claim.version) == (manifest.model, 7)
    assert set(claim.evidence) == {"report.md"}
    assert claim.delivery is None, "it was released before deliveries were kept"


def test_a_signed_release_that_keeps_its_delivery_is_still_read() -> None:
    trust = read_trust([GOLDEN / "golden-delivery.pub"])
    data = (GOLDEN / "release-1-delivery.dsse.json").read_bytes()
    claim = open_release(data, trust, "the golden release")
    manifest = parse_manifest((GOLDEN / "manifest-1.json").read_bytes())
    require_same_files(claim, manifest)
    assert (claim.version, claim.manifest) == (8, manifest.digest)
    assert claim.parts == digest_bytes(b"parts")
    assert claim.delivery == digest_bytes(b"delivery's parts")
    assert claim.evidence == {"report.md": digest_bytes(b"report")}


def test_an_entry_of_the_ledger_of_schema_1_is_still_read() -> None:
    model = open_release(RELEASE, TRUST, "the golden release").model
    entry = open_entry(LEDGER, TRUST, model, 8)
    assert (entry.action, entry.alias, entry.version, entry.replaced) == (
        "promote", "production", 7, 6,
    )  # fmt: skip
    assert entry.aliases["candidate"].entry == 7
    assert entry.retired == (1, 2)
    with pytest.raises(PackageRefused, match=r"expected other's entry 8, got \S+ entry 8"):
        open_entry(LEDGER, TRUST, "other", 8)
    with pytest.raises(PackageRefused, match=r"entry 9, got .* entry 8"):
        open_entry(LEDGER, TRUST, model, 9)


@pytest.mark.parametrize("signed", [RELEASE, LEDGER], ids=["release", "entry"])
def test_openssl_alone_verifies_one(signed: bytes, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    plain = json.loads(signed)
    payload, kind = base64.b64decode(plain["payload"]), plain["payloadType"].encode()
    message = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    (tmp_path / "signature").write_bytes(base64.b64decode(plain["signatures"][0]["sig"]))
    command = [
        openssl, "dgst", "-sha256", "-verify", str(GOLDEN / "golden.pub"),
        "-signature", str(tmp_path / "signature"),
    ]  # fmt: skip
    for given_message, status in ((message, 0), (message + b" ", 1)):
        ended = subprocess.run(command, input=given_message, capture_output=True, check=False)
        assert ended.returncode == status, ended


READERS: dict[str, Callable[[bytes], object]] = {
    "an envelope": lambda data: open_envelope(data, TRUST, "it"),
    "a release": lambda data: open_release(data, TRUST, "it"),
    "an entry": lambda data: open_entry(data, TRUST, "toy"),
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)
PLACES = ("payload", "payloadType", "signatures", "keyid", "sig")


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_envelope_is_refused(reader: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(PackageRefused, match="is not verified"):
        reader(data)


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_an_envelope_with_one_other_value_is_refused(place: str, value: object) -> None:
    plain = json.loads(RELEASE)
    (plain["signatures"][0] if place in ("keyid", "sig") else plain)[place] = value
    with pytest.raises(PackageRefused, match="is not verified"):
        open_release(json.dumps(plain).encode(), TRUST, "it")


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, len(RELEASE) - 2), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(place: int, byte: int) -> None:
    data = RELEASE[:place] + bytes((byte,)) + RELEASE[place + 1 :]
    try:
        claim = open_release(data, TRUST, "it")
    except PackageRefused:
        return
    assert claim == open_release(RELEASE, TRUST, "it")


def _paths(value: object, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the place of every value in a statement."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [at, *(path for key, one in items for path in _paths(one, (*at, key)))]


@pytest.mark.parametrize("signed", [RELEASE, LEDGER], ids=["release", "entry"])
@settings(max_examples=300, deadline=None)
@given(data=st.data(), value=JSON)
def test_a_signed_statement_with_one_other_value_is_read_or_refused(
    signed: bytes, data: st.DataObject, value: object
) -> None:
    statement = json.loads(base64.b64decode(json.loads(signed)["payload"]))
    *way, last = data.draw(st.sampled_from(_paths(statement)[1:]))
    inner = statement
    for key in way:
        inner = inner[key]
    inner[last] = value
    key = sample_key()
    envelope = sign_statement(statement, key.signer)
    for reader in (open_release, open_entry):
        try:
            found = reader(envelope, key.trust, "toy")
        except PackageRefused:
            continue
        assert found.model


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 1}', "keys that differ"),
        ('{"a": {"b": 1, "b": 2}}', "keys that differ"),
        ("[" * 100_000, "levels"),
        ("[" * 66 + "]" * 66, "levels"),
        ("NaN", "expected a number, got NaN"),
        ("-Infinity", "expected a number"),
        ('"\\ud800"', "surrogates not allowed"),
        ('{"\\udfff": 1}', "surrogates not allowed"),
        ("\ufeff1", "BOM"),
        ("1 2", "Extra data"),
    ],
)
def test_json_that_two_readers_may_read_differently_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text.encode())


def test_json_in_other_encodings_is_refused() -> None:
    with pytest.raises(ValueError, match="decode"):
        parse_json('{"a": "é"}'.encode("utf-16"))
    assert parse_json(b"[" * 65 + b"]" * 65) is not None


@pytest.mark.parametrize(
    "command",
    [
        "openssl ecparam -genkey -noout -name secp384r1 | openssl ec -pubout",
        "openssl ecparam -genkey -noout -name secp256k1 -param_enc explicit | openssl ec -pubout",
        "openssl genpkey -algorithm ED25519 | openssl pkey -pubout",
        "echo nothing",
    ],
)
def test_a_key_of_another_kind_is_told(command: str) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    pem = subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout
    with pytest.raises(UsageProblem, match="an EC key on P-256 in PEM"):
        public_key_of(pem, "some.pub")


def test_a_public_key_in_the_place_of_the_one_that_signs_is_told(tmp_path: Path) -> None:
    make_key(tmp_path / "release.pem", tmp_path / "release.pub")
    (tmp_path / "release.pub").chmod(0o600)
    with pytest.raises(UsageProblem, match=r"holds no key to sign with: .* EC key on P-256"):
        open_signer(str(tmp_path / "release.pub"))
    assert open_signer(str(tmp_path / "release.pem")).public_key.keyid


@pytest.mark.server
def test_a_key_service_signs_and_nothing_of_its_key_is_here(
    s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    import boto3

    service = boto3.client("kms")
    made = service.create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")["KeyMetadata"]
    public: Any = load_der_public_key(service.get_public_key(KeyId=made["KeyId"])["PublicKey"])
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "release.pub").write_bytes(pem)
    uri = f"awskms:{made['KeyId']}"
    with pytest.raises(UsageProblem, match="expected its public key in a file, got none"):
        open_signer(uri)
    signer = open_signer(uri, tmp_path / "release.pub")
    envelope = json.loads(sign_statement({"_type": STATEMENT_TYPE}, signer))
    payload = base64.b64decode(envelope["payload"])
    signed = b"DSSEv1 28 application/vnd.in-toto+json %d %b" % (len(payload), payload)
    (signature,) = envelope["signatures"]
    # moto 5.2 signs the digest as if it were the message, for MessageType is nothing to it. When
    # this fails, it does what AWS does: then the envelope can be opened like any other.
    public.verify(base64.b64decode(signature["sig"]), sha256(signed).digest(), ECDSA(SHA256()))
    assert signature["keyid"] == public_key_of(pem, "release.pub").keyid
    # A wrong key, then no region: in the service's words, with what to look at.
    wrong = open_signer("awskms:none", tmp_path / "release.pub")
    with pytest.raises(EnvironmentLacking, match=r"can't be used: .*NotFound.*AWS_REGION"):
        sign_statement({"_type": STATEMENT_TYPE}, wrong)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvironmentLacking, match=r"signing key can't be used: .*NoRegionError"):
        open_signer(uri, tmp_path / "release.pub")
