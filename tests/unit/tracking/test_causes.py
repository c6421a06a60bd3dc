"""What lies behind errors of a tracking server that cannot be used, from real refusals where they can be made here."""

import contextlib
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE, PERMISSION_DENIED

from coordexp.errors import TrackingError
from coordexp.tracking.causes import cause_of, proxy_for
from coordexp.tracking.connection import (
    ServerRefusesError,
    ServerUnreachableError,
    connect,
    takes_request_of,
    tracking_errors,
    way_on,
)
from tests.support.ports import free_port
from tests.support.tracking_proxy import self_signed_certificate, tracking_proxy

VARIABLES = (
    *("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"),
    *("MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_TRACKING_INSECURE_TLS", "REQUESTS_CA_BUNDLE"),
)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def served(handler: type[Quiet]) -> Iterator[str]:
    """Answer requests in a thread while the block lasts; yields the address."""
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def answers() -> Iterator[str]:
    """A server that gives MLflow's client the answer it waits for, whatever is asked."""

    class Answers(Quiet):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b'{"experiments": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

    with served(Answers) as address:
        yield address


def refusal(uri: str) -> str:
    with pytest.raises(TrackingError) as caught:
        connect(uri)
    return str(caught.value)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_dead_proxy_of_the_environment_is_named_and_not_the_server(
    answers: str, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    dead = free_port()
    monkeypatch.setenv(variable, f"http://me:s3cret@127.0.0.1:{dead}")
    sentence = refusal(answers)
    assert variable in sentence
    assert "NO_PROXY" in sentence
    assert f"127.0.0.1:{dead}" in sentence
    assert "s3cret" not in sentence
    assert "start it" not in sentence
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    connect(answers)


def test_a_proxy_that_answers_for_the_server_is_named(answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A company's proxy knows no host of the lab, and answers 404 or 403 with a page of its own."""
    with tracking_proxy(answers, path="/nothing") as company:
        monkeypatch.setenv("HTTP_PROXY", company.url.removesuffix("/nothing"))
        assert "NO_PROXY" in refusal("http://mlflow.lab:5000")


def test_a_proxy_is_known_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("http://host:5000") is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert proxy_for("http://host:5000") is None
    assert proxy_for("https://host") == ("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "localhost,.lab")
    assert proxy_for("https://mlflow.lab") is None
    assert proxy_for("sqlite:////a/b.db") is None


def test_a_certificate_that_nobody_signed(answers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = self_signed_certificate(tmp_path)
    with tracking_proxy(answers, certificate=certificate) as proxy:
        sentence = refusal(proxy.url)
        assert "MLFLOW_TRACKING_SERVER_CERT_PATH" in sentence
        assert "self-signed" in sentence
        assert "start it" not in sentence
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "none.pem"))
        assert str(tmp_path / "none.pem") in refusal(proxy.url)
        monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
        connect(proxy.url)
        sentence = refusal(proxy.url.replace("127.0.0.1", "localhost"))
        assert "another name than localhost" in sentence


def test_a_certificate_that_is_not_checked_is_said_once(
    answers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """urllib3 would warn at each request, and pytest makes a warning an error."""
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    certificate = self_signed_certificate(tmp_path)
    with tracking_proxy(answers, certificate=certificate) as proxy, warnings.catch_warnings(record=True) as caught:
        client = connect(proxy.url)
        for _ in range(3):
            client.search_experiments()
        connect(proxy.url)
    assert caught == []
    assert len([record for record in caplog.records if "MLFLOW_TRACKING_INSECURE_TLS" in record.getMessage()]) == 1


def test_http_and_https_taken_for_each_other(answers: str, tmp_path: Path) -> None:
    assert "http://" in refusal(answers.replace("http://", "https://"))
    with tracking_proxy(answers, certificate=self_signed_certificate(tmp_path)) as proxy:
        assert "https://" in refusal(proxy.url.replace("https://", "http://"))


def test_an_address_without_its_path(answers: str) -> None:
    with tracking_proxy(answers, path="/mlflow") as proxy:
        connect(proxy.url)
        assert "path under which it is served" in refusal(proxy.url.removesuffix("/mlflow"))
        with pytest.raises(TrackingError, match="#"):
            connect(f"{proxy.url}/#/experiments/1")


def test_a_sign_in_page_before_the_server_is_named() -> None:
    class SignIn(Quiet):
        def do_POST(self) -> None:
            self.send_response(302)
            self.send_header("Location", "/sign-in?from=mlflow")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "13")
            self.end_headers()
            self.wfile.write(b"<html></html>")

    with served(SignIn) as address:
        sentence = refusal(address)
    assert f"sends requests on to {address}/sign-in" in sentence
    assert "start it" not in sentence


def test_a_probe_has_short_timeouts_and_leaves_those_of_others_alone(
    answers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads ask the server: what one of them puts into the environment, and back, the others get."""
    connect(answers)
    before = dict(os.environ)
    during: list[dict[str, str]] = []
    real = requests.Session.request

    def look(*arguments: object, **names: object) -> requests.Response:
        during.append(dict(os.environ))
        return real(*arguments, **names)

    monkeypatch.setattr(requests.Session, "request", look)
    connect(answers)
    assert during
    assert all(environment == before for environment in during)
    assert dict(os.environ) == before


def test_a_server_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordexp.tracking.connection._PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        assert "no answer in time" in refusal(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - start < 5


def test_a_limit_on_bodies_is_seen_without_storing_anything(answers: str) -> None:
    with tracking_proxy(answers, max_body=2**20) as proxy:
        assert takes_request_of(proxy.url, 2**19)
        assert not takes_request_of(proxy.url, 2**21)
    assert takes_request_of(answers, 2**21)
    assert takes_request_of(f"http://127.0.0.1:{free_port()}", 2**21), "nobody is there, so no limit is known"


@pytest.mark.parametrize(
    ("text", "code", "kind", "end"),
    [
        ("API request failed with error code 413 != 200.", INTERNAL_ERROR, ServerRefusesError, "once that is mended"),
        (
            "The run a must be in the 'active' state",
            INVALID_PARAMETER_VALUE,
            ServerRefusesError,
            "once that",
        ),
        ("no permission", PERMISSION_DENIED, ServerRefusesError, "once that is mended"),
        ("too many 503 error responses", INTERNAL_ERROR, ServerUnreachableError, "; the same command"),
    ],
)
def test_what_the_same_command_can_send_says_so(text: str, code: int, kind: type[TrackingError], end: str) -> None:
    with pytest.raises(kind) as caught, tracking_errors("http://host", "log rows"):
        raise MlflowException(text, error_code=code)
    assert end in way_on(caught.value)


def test_what_no_command_can_send_promises_nothing() -> None:
    with pytest.raises(TrackingError) as caught, tracking_errors("http://host", "log rows"):
        raise MlflowException("a metric's name", error_code=INVALID_PARAMETER_VALUE)
    assert not isinstance(caught.value, ServerRefusesError | ServerUnreachableError)
    assert way_on(caught.value) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SSLError: certificate verify failed: certificate has expired (_ssl.c:1)", "has expired"),
        ("SSLError: certificate verify failed: unable to get local issuer certificate (_ssl.c)", "CERT_PATH"),
        ("failed with error code 403. Response body: 'Invalid Host header'", "--allowed-hosts host"),
        ("ProxyError('Unable to connect to proxy', ... Connection refused", "connection refused"),
    ],
)
def test_errors_that_are_known_by_their_words(text: str, words: str) -> None:
    assert words in str(cause_of(MlflowException(text), "https://host:5000"))
