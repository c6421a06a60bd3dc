"""The settings of an evaluation travel to workers."""

import pickle
from pathlib import Path

import pytest

from coordexp.cluster.evaluate import absolute
from coordexp.evaluate.settings import EvaluationSettings


def test_paths_of_a_job_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "merged").mkdir()
    settings = EvaluationSettings(
        model="merged", annotations=Path("gt.json"), images=Path("val"), adapter=Path("adapter")
    )
    there = pickle.loads(pickle.dumps(absolute(settings)))
    assert there.model == str(tmp_path / "merged")
    paths = (there.annotations, there.images, there.adapter)
    assert paths == tuple(tmp_path / name for name in ("gt.json", "val", "adapter"))
    assert absolute(EvaluationSettings(model="org/model")).model == "org/model"
