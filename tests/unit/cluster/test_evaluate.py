"""How many workers of an evaluation fit on a node, and jobs that travel."""

import pickle
from pathlib import Path

import pytest

from coordexp.cluster.capacity import workers_on
from coordexp.cluster.evaluate import Workers, absolute
from coordexp.evaluate.settings import EvaluationSettings


@pytest.mark.parametrize(
    ("node", "workers", "expected"),
    [
        ({"CPU": 8}, Workers(1), 8),
        ({"CPU": 8}, Workers(1, cpus=3), 2),
        ({"CPU": 8}, Workers(1, gpus=1), 0),
        ({"CPU": 8, "GPU": 2}, Workers(1, gpus=1), 2),
        ({"CPU": 8, "GPU": 2}, Workers(1, cpus=8, gpus=1), 1),
        ({"CPU": 64, "GPU": 2}, Workers(1, gpus=0.5), 4),
        ({"CPU": 64, "GPU": 3}, Workers(1, gpus=2), 1),
        ({}, Workers(1), 0),
    ],
)
def test_workers_on_a_node(node: dict[str, float], workers: Workers, expected: int) -> None:
    assert workers_on(node, cpus=workers.cpus, gpus=workers.gpus) == expected


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
