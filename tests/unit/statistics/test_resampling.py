"""What threads share out: the answers keep their order, and an interruption leaves the rest undone."""

import time
from pathlib import Path

import pytest

from coordexp.detection.detections import Detections, read_detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.statistics import bootstrap, compare, decomposition
from coordexp.statistics.convergence import convergence
from coordexp.statistics.decomposition import decompose
from coordexp.statistics.resampling import each_read
from tests.unit.detection.detection_support import crowded_scene, write_rows


class _InterruptedError(Exception):
    """Stands for Ctrl-C, which pytest would take for its own."""


def interrupt(done: int, total: int) -> None:
    del done, total
    raise _InterruptedError


def test_what_is_read_keeps_the_order_of_its_keys() -> None:
    def read(key: int) -> int:
        time.sleep(0.002 * (5 - key))  # the last is there first
        return key * key

    seen: list[tuple[int, int]] = []
    found = each_read(read, range(6), threads=3, on_progress=lambda done, of: seen.append((done, of)))
    assert list(found.items()) == [(key, key * key) for key in range(6)]
    assert seen == [(0, 1)] * 6


@pytest.mark.parametrize("statistic", ["comparison", "convergence", "decomposition"])
def test_an_interruption_while_files_are_read_leaves_the_rest_unread(tmp_path: Path, monkeypatch, statistic) -> None:
    given, rows = crowded_scene(3, num_images=30)
    truth = given.write(tmp_path / "truth.json")
    files = {number: write_rows(tmp_path / f"{number}.json", rows[number:]) for number in range(40)}
    images = sorted(given.truth.sizes_px)
    calls = {
        "comparison": lambda: compare(truth, {"A": files}, resamples=20, on_progress=interrupt),
        "convergence": lambda: convergence(
            truth,
            {"A": {0: files}},
            images,
            num_images={"A": dict.fromkeys(files, 1.0)},
            num_supervised_tokens={"A": dict.fromkeys(files, 1.0)},
            resamples=20,
            on_progress=interrupt,
        ),
        "decomposition": lambda: decompose(truth, {"A": files}, resamples=20, on_progress=interrupt),
    }
    read: list[Path] = []

    def slowly(path: Path, of: GroundTruth) -> Detections:
        read.append(path)
        time.sleep(0.01)
        return read_detections(path, of)

    for module in (bootstrap, decomposition):
        monkeypatch.setattr(module, "read_detections", slowly)
    with pytest.raises(_InterruptedError):
        calls[statistic]()
    assert 1 <= len(read) < 20
