"""An HTTPS server for tests, with a certificate of a CA that was made for it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

# What a path answers with: it is handed the request, and writes the answer.
Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class TlsServer:
    """The server's address, the file of its CA, what it answers, and what it was asked."""

    address: str
    authority: Path
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)


def body(data: bytes, status: int = 200, **headers: str) -> Answer:
    """Return an answer with a body."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Length": str(len(data)), **named}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    return answer


@contextmanager
def tls_server(folder: Path) -> Iterator[TlsServer]:
    """Serve on loopback; what `answers` doesn't name is not found."""
    certificate, authority = write_certificates(folder)
    server = TlsServer("", authority)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append((self.path, dict(self.headers.items())))
            server.answers.get(self.path, body(b"", 404))(self)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    server.address = f"https://127.0.0.1:{listening.server_address[1]}"
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()


def write_certificates(folder: Path) -> tuple[Path, Path]:
    """Write a certificate with its key for 127.0.0.1, and the CA that signed it."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
    ca = _builder(ca_name, ca_name, ca_key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    ).sign(ca_key, hashes.SHA256())  # fmt: skip
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    leaf = _builder(name, ca_name, key.public_key()).add_extension(
        x509.SubjectAlternativeName([address]), critical=False
    ).sign(ca_key, hashes.SHA256())  # fmt: skip
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    certificate, authority = folder / "server.pem", folder / "ca.pem"
    certificate.write_bytes(leaf.public_bytes(pem) + secret)
    authority.write_bytes(ca.public_bytes(pem))
    return certificate, authority


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(issuer).public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )  # fmt: skip
