"""Secrets are masked in what is said about a tracking server."""

import pytest

from coordexp.tracking.address import without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:s3cret@host:1/x", "http://***@host:1/x"),
        ("https://user:s3@cret@host/x", "https://***@host/x"),
        ("https://s3cret@host", "https://***@host"),
        ("at http://h/x?access_token=s3cret&a=1: no", "at http://h/x?*** no"),
        ("postgresql+psycopg2://u:s3%40cret@h/db", "postgresql+psycopg2://***@h/db"),
        ("sqlite:////a/b@c.db", "sqlite:////a/b@c.db"),
        ("token=s3cret in no address", "token=*** in no address"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
    ],
)
def test_secrets_are_masked_in_text(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_secrets_of_the_environment_are_masked_wherever_they_appear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "abc%2Fdef")
    assert without_secrets("got abc%2Fdef, read abc/def") == "got ***, read ***"
