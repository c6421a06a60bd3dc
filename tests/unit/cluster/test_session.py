"""What a Ray session refuses before Ray is asked, and what it adds to the environment of processes."""

import json

import pytest
from ray.exceptions import AuthenticationError

from coordexp.cluster import session
from coordexp.cluster.shared_storage import input_paths, unseen_of
from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ResourceError
from coordexp.runs.stop import SUBMITTED_ENV


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "no Ray answers at RAY_ADDRESS 127.0.0.1:1"),
        ("http://127.0.0.1:8265", "not an address for submitting jobs"),
        ("somewhere", "expected host:port"),
        ("ray://127.0.0.1:1", "no Ray answers at RAY_ADDRESS ray://127.0.0.1:1"),
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


def test_a_run_s_inputs_are_named_by_their_keys(tmp_path):
    images, annotations = tmp_path / "images", tmp_path / "instances.json"
    images.mkdir()
    annotations.write_text("{}")
    config = ExperimentConfig.model_validate(
        {
            "experiment": {"name": "x", "runs_dir": str(tmp_path)},
            "data": {
                "format": "coco",
                "train_annotations": str(annotations),
                "train_images": str(images),
                "val_annotations": str(annotations),
                "val_images": str(tmp_path / "not-here"),  # reported by the driver itself
            },
        }
    )
    assert set(input_paths(config)) == {"data.train_annotations", "data.train_images", "data.val_annotations"}
    assert input_paths(config)["data.train_images"] == str(images)
    assert unseen_of([str(images), str(tmp_path / "a"), str(tmp_path / "b")], seconds=0.0) == [
        str(tmp_path / "a"),
        str(tmp_path / "b"),
    ]


def test_a_head_that_was_replaced_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(session, "start_session", lambda threads, *, debug: None)
    expected = r"the Ray cluster at auto was lost or replaced \(AuthenticationError\); .* the same command continues"
    with pytest.raises(ResourceError, match=expected), session.ray_session(threads=1):
        raise AuthenticationError("RPC error: WrongClusterID: Perhaps the client is accessing GCS after a restart.")
