"""A reverse proxy before a tracking server, with the limits that such proxies have.

It is a small nginx in a thread: it serves a path, refuses long bodies, hides addresses that an older server does not
have, and speaks TLS with a certificate that nobody has signed.
"""

import contextlib
import datetime
import http.client
import ipaddress
import re
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOGGED_MODELS = r"/logged-models|/runs/outputs"
"""What MLflow 3 brought: an older server answers 404 there."""
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "accept-encoding"}


@dataclass
class TrackingProxy:
    """A running proxy.

    Attributes:
        target: the address of the server behind it.
        path: the path under which it serves that; the server does not see it.
        max_body: the longest body of a request in bytes, longer ones get 413; None: any.
        hidden: a pattern; a request whose path it matches gets ``hidden_status``.
        hidden_status: 404 as an older server; a gateway answers 405 or 501.
        hidden_body: what that answer holds.
        requests: method and path of every request so far.
    """

    target: str
    path: str = ""
    max_body: int | None = None
    hidden: str | None = None
    hidden_status: int = 404
    hidden_body: bytes = b"<!doctype html><title>404 Not Found</title><h1>Not Found</h1>"
    url: str = ""
    requests: list[str] = field(default_factory=list)


def self_signed_certificate(folder: Path) -> Path:
    """Write a certificate for 127.0.0.1 with its key, as a lab's own server has it; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mlflow.lab")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "self_signed.pem"
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(secret + certificate.public_bytes(pem))
    return path


@contextlib.contextmanager
def tracking_proxy(
    target: str,
    *,
    path: str = "",
    max_body: int | None = None,
    hidden: str | None = None,
    hidden_status: int = 404,
    certificate: Path | None = None,
) -> Iterator[TrackingProxy]:
    """Run a proxy before ``target`` while the block lasts; with a ``certificate`` it speaks TLS."""
    proxy = TrackingProxy(target, path, max_body, hidden, hidden_status)

    class Handler(_Forwards):
        pass

    Handler.proxy = proxy
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scheme = "http"
    if certificate is not None:
        scheme = "https"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda request, client_address: None  # a client that trusts nobody hangs up
    proxy.url = f"{scheme}://127.0.0.1:{server.server_port}{path}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Forwards(BaseHTTPRequestHandler):
    """Sends a request on to the server, and its answer back."""

    proxy: TrackingProxy
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        proxy = self.proxy
        proxy.requests.append(f"{self.command} {self.path}")
        length = int(self.headers.get("Content-Length", 0))
        if proxy.max_body is not None and length > proxy.max_body:
            # As nginx: the answer first, and the body is not read.
            self.close_connection = True
            self._answer(413, b"<html><title>413 Request Entity Too Large</title></html>", {})
            return

        body = self._chunks() if "chunked" in self.headers.get("Transfer-Encoding", "") else self.rfile.read(length)
        if not self.path.startswith(f"{proxy.path}/"):
            self._answer(404, b"<html><title>404 Not Found</title></html>", {})
            return
        if proxy.hidden is not None and re.search(proxy.hidden, self.path):
            self._answer(proxy.hidden_status, proxy.hidden_body, {"Content-Type": "text/html"})
            return

        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection = http.client.HTTPConnection(urlsplit(proxy.target).netloc, timeout=60)
        with contextlib.closing(connection):
            connection.request(self.command, self.path.removeprefix(proxy.path), body, headers)
            response = connection.getresponse()
            self._answer(response.status, response.read(), dict(response.getheaders()))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *args: object) -> None:
        """Say nothing."""
