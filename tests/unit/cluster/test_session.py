"""What a Ray session refuses before Ray is asked, and what it adds to the environment of processes."""

import json
import os
import threading
import time

import pytest
from ray.exceptions import AuthenticationError

from coordexp.cluster import session
from coordexp.cluster.shared_storage import input_paths, unseen_of
from coordexp.config import load_config
from coordexp.errors import ResourceError, chain
from coordexp.runs.stop import SUBMITTED_ENV
from coordexp.train.setup.door import open_set_of
from tests.support.doctor import coco_overrides


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "RAY_ADDRESS 127.0.0.1:1"),
        ("http://127.0.0.1:8265", "http://127.0.0.1:8265.*submitting jobs"),
        ("somewhere", "somewhere.*host:port"),
        ("ray://127.0.0.1:1", "RAY_ADDRESS ray://127.0.0.1:1"),
    ],
)
def test_an_address_that_nobody_answers_is_refused_before_ray_starts(address, sentence, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.delenv(SUBMITTED_ENV, raising=False)
    with pytest.raises(ResourceError, match=sentence), session.ray_session(threads=1):
        pytest.fail("a session began")


def test_what_came_with_the_job_is_not_given_a_second_time(monkeypatch):
    monkeypatch.delenv(SUBMITTED_ENV, raising=False)
    assert session.submitted_env() == {}
    monkeypatch.setenv(SUBMITTED_ENV, json.dumps({"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "3"}}}))
    assert session.submitted_env() == {"OMP_NUM_THREADS": "3"}
    monkeypatch.setenv(SUBMITTED_ENV, json.dumps({"runtime_env": None, "metadata": {}}))
    assert session.submitted_env() == {}


def test_the_pictures_of_a_run_are_named_by_their_keys(tmp_path):
    config = load_config("experiments/tiny.yaml", [*coco_overrides(tmp_path), f"experiment.runs_dir={tmp_path}/runs"])
    open_set_of(config)
    expected = {f"data.{split}_images": str(tmp_path / split) for split in ("train", "val")}
    assert input_paths(config) == expected
    assert unseen_of([*expected.values(), str(tmp_path / "a"), str(tmp_path / "b")], seconds=0.0) == [
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    ]
    assert input_paths(load_config("experiments/tiny.yaml", [f"experiment.runs_dir={tmp_path}/none"])) == {}


@pytest.fixture
def private(monkeypatch):
    """No cluster, and an environment that is as it was afterwards."""
    for name in ("RAY_ADDRESS", SUBMITTED_ENV, "RAY_TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    for name in (*session.LAUNCHER_ENV, *session.LOOPBACK_ENV):
        monkeypatch.setenv(name, "0")


def test_a_ray_that_does_not_start_in_time_ends_the_wait_with_a_way_on(monkeypatch, private):
    is_over = threading.Event()
    monkeypatch.setattr(session, "start_session", lambda threads, *, debug: is_over.wait(60))
    monkeypatch.setattr(session, "_MORE_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(ResourceError, match=r"RAY_DASHBOARD_STARTUP_TIMEOUT_S.*cluster\.executor=inline"):  # noqa: SIM117
        with session.ray_session(threads=1) as ready:
            ready.result()
    assert time.monotonic() - began < 30
    is_over.set()


def test_whatever_ray_raises_at_its_start_is_said_with_its_reason(monkeypatch, private):
    def init(**options: object) -> None:
        error = Exception("\nThe last 20 lines of dashboard.log:\n  listener.bind(address)\nOSError: no socket\n")
        raise error from error  # as Ray does: the chain of errors is a circle

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ResourceError, match=r"OSError: no socket.*cluster\.executor=inline") as caught:
        session.start_session(1, debug=False)
    assert len(list(chain(caught.value))) == 2


def test_the_reason_is_looked_for_in_the_logs_of_this_process_s_session(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert session.session_folder() is None
    logs = tmp_path / "ray" / f"session_2026-11-28_08-25-26_701653_{os.getpid()}" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "ray" / "session_2026-11-28_08-25-26_701653_1").mkdir()
    (logs / "dashboard.log").write_text("INFO fine\nValueError: first\nOSError: no room\n")
    assert session.reason_in_logs() == "dashboard.log: OSError: no room"


@pytest.mark.parametrize(
    ("mode", "error", "named"),
    [
        (None, ConnectionError("Failed to connect"), "export RAY_AUTH_MODE=token"),
        ("token", ConnectionError("Failed to connect"), "RAY_AUTH_TOKEN_PATH"),
        ("token", AuthenticationError("no token was found"), "RAY_AUTH_TOKEN"),
        (None, RuntimeError("Version mismatch"), None),
    ],
)
def test_a_head_that_lets_nobody_join_may_ask_for_a_token(monkeypatch, mode, error, named):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)

    def init(**options: object) -> None:
        raise error

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(ResourceError) as caught:
        session.start_session(1, debug=False)
    assert "127.0.0.1:6379" in str(caught.value)
    assert ("RAY_AUTH_TOKEN" in str(caught.value)) == (named is not None)
    assert named is None or named in str(caught.value)


def test_a_head_that_was_replaced_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(session, "start_session", lambda threads, *, debug: None)
    facts = r"Ray cluster at auto .*AuthenticationError.*same command"
    with pytest.raises(ResourceError, match=facts), session.ray_session(threads=1):
        raise AuthenticationError("RPC error: WrongClusterID: Perhaps the client is accessing GCS after a restart.")
