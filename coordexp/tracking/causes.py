"""The cause of an error of MLflow, its database or its HTTP client, in a few words, and how to cure it.

MLflow turns most errors into text, also those of requests and urllib3, so causes are recognised by their words.
"""

import os
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from coordexp.errors import masked, shortened
from coordexp.tracking.address import is_http, without_secrets


@dataclass(frozen=True)
class Cause:
    """Why something failed.

    Attributes:
        reason: a clause such as "connection refused".
        cure: what a person does about it; "" if that follows from the reason.
    """

    reason: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.reason}; {self.cure}" if self.cure else self.reason


class _KnownCause(NamedTuple):
    """A pattern in an error's text, with its cause.

    In reason and cure ``{host}`` stands for the server, and ``{0}`` for the group of the pattern.
    """

    pattern: re.Pattern[str]
    reason: str
    cure: str = ""


class EnvironmentProxy(NamedTuple):
    """A proxy that the environment sends requests through."""

    variable: str
    address: str  # without user and password


TOO_LARGE = re.compile(r"error code 413|413 Client Error")
_LIMIT = "raise its limit (nginx: client_max_body_size)"

# The first pattern that matches is the cause. The text of an error of TLS or of a proxy also has the words of a refused
# connection, so these come first.
_CAUSES = (
    _KnownCause(
        re.compile(r"certificate verify failed: (?:Hostname|IP address) mismatch"),
        "its certificate is for another name than {host}",
        "use the name of the certificate in tracking.uri",
    ),
    _KnownCause(
        re.compile("certificate verify failed: certificate (has expired|is not yet valid)"),
        "its certificate {0}",
        "renew it there, or correct this machine's clock",
    ),
    _KnownCause(
        re.compile(r"certificate verify failed(?:: ([\w -]+))?"),
        "its certificate is not trusted here: {0}",
        "set MLFLOW_TRACKING_SERVER_CERT_PATH to the certificate of the server, or of who signed it "
        "(MLFLOW_TRACKING_INSECURE_TLS=true trusts any)",
    ),
    _KnownCause(
        re.compile("WRONG_VERSION_NUMBER|record layer failure|packet length too long|HTTP_REQUEST"),
        "it speaks http, not https",
        "begin its address with http://",
    ),
    _KnownCause(
        re.compile("plain HTTP request was sent to HTTPS port"),
        "it speaks https, not http",
        "begin its address with https://",
    ),
    _KnownCause(
        re.compile("invalid path: ([^'\"]+)"),
        "there is no certificate file {0}",
        "correct MLFLOW_TRACKING_SERVER_CERT_PATH, MLFLOW_TRACKING_CLIENT_CERT_PATH or REQUESTS_CA_BUNDLE",
    ),
    _KnownCause(
        re.compile("Invalid Host header"),
        "it does not serve the name {host}",
        "start it with --allowed-hosts {host}",
    ),
    _KnownCause(TOO_LARGE, "it, or a proxy before it, refuses a request this large (status 413)", _LIMIT),
    _KnownCause(
        re.compile("must be in the 'active' state"),
        "it was deleted there meanwhile",
        "restore it with `mlflow experiments restore` or `mlflow runs restore`",
    ),
    _KnownCause(re.compile("RemoteDisconnected|Connection reset by peer|Broken pipe"), "the connection broke off"),
    _KnownCause(re.compile("Connection refused"), "connection refused"),
    _KnownCause(re.compile("NameResolutionError"), "no such host"),
    _KnownCause(re.compile("timed out"), "no answer in time"),
    _KnownCause(
        re.compile("not authenticated|error code 401"),
        "it wants another user name or password in MLFLOW_TRACKING_USERNAME and _PASSWORD",
    ),
    _KnownCause(re.compile("ReadOnlySqlTransaction"), "its database is read-only now"),
    _KnownCause(re.compile("DiskFull|database or disk is full"), "its database has no room left"),
    _KnownCause(re.compile("too many 500 error"), "it answers with status 500", "its own log says why"),
    _KnownCause(re.compile("too many (50[234]) error"), "it, or its database, is down for now (status {0})"),
    _KnownCause(
        re.compile("out-of-date database schema"),
        "another version of MLflow made it: install that one, or back it up and run `mlflow db upgrade`",
    ),
)
# Only for the very first request to a server: later the same words mean that a run or a file is missing.
_CAUSES_AT_FIRST = (
    _KnownCause(
        re.compile("error code 40[45]"),
        "something answers, but there is no MLflow at this address",
        "give its whole address, with the path under which it is served, as in https://host/mlflow",
    ),
    _KnownCause(
        re.compile("not in a valid JSON format|not a valid JSON"),
        "it answers with a page",
        "give the address of MLflow itself, without what a browser shows after #; behind a sign-in page, set "
        "MLFLOW_TRACKING_TOKEN",
    ),
    _KnownCause(
        re.compile("RemoteDisconnected|Connection reset by peer"),
        "it hangs up without an answer",
        "if it speaks https, begin its address with https://",
    ),
)


def cause_of(error: BaseException, uri: str) -> Cause:
    """Return why MLflow at ``uri`` could not do something, in one line and without a password."""
    return _known_cause(error, uri, _CAUSES) or Cause(_first_line(error))


def cause_at_first(error: BaseException, uri: str) -> Cause:
    """Return why the very first request to a server failed; it may not be a server of MLflow at all."""
    cause = _known_cause(error, uri, (*_CAUSES_AT_FIRST, *_CAUSES)) or Cause(_first_line(error))
    proxy = proxy_for(uri)
    if proxy is None or "NO_PROXY" in cause.cure:
        return cause
    # It may have been the proxy that answered, or did not.
    host = urlsplit(uri).hostname
    cure_of_server = cause.cure or "start it"
    return Cause(
        f"{cause.reason}, through the proxy that {proxy.variable} names, {proxy.address}",
        f"{cure_of_server}, or add {host} to NO_PROXY if it is reached without a proxy",
    )


def proxy_for(uri: str) -> EnvironmentProxy | None:
    """Return the proxy through which the environment sends requests to a server; None if there is none."""
    from requests.utils import should_bypass_proxies  # takes a moment, and most commands have no server

    if not is_http(uri) or should_bypass_proxies(uri, no_proxy=None):
        return None
    scheme = urlsplit(uri).scheme
    for name in (f"{scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):  # in the order in which Python reads them
            address = os.environ.get(variable)
            if address:
                return EnvironmentProxy(variable, masked(address))
    return None


def _known_cause(error: BaseException, uri: str, causes: tuple[_KnownCause, ...]) -> Cause | None:
    text = _text_of(error)
    host = urlsplit(uri).hostname or uri
    proxy = proxy_for(uri)
    if "ProxyError" in text and proxy is not None:
        return Cause(
            f"the proxy that {proxy.variable} names, {proxy.address}, does not pass the request on",
            f"correct {proxy.variable}, or add {host} to NO_PROXY if the server is reached without a proxy",
        )
    for cause in causes:
        match = cause.pattern.search(text)
        if match is not None:
            details = [(detail or "").strip() for detail in match.groups()]
            return Cause(cause.reason.format(*details, host=host), cause.cure.format(*details, host=host))
    return None


def _text_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip()


def _first_line(error: BaseException) -> str:
    lines = _text_of(error).splitlines() or [type(error).__name__]
    return shortened(without_secrets(lines[0]))
