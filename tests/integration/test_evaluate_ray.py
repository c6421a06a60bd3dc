"""An evaluation on a real local Ray with two workers."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from coordexp.cluster import evaluate
from coordexp.cluster.evaluate import EvaluationWorker, Workers, evaluate_on_ray
from coordexp.errors import DataError, ResourceError
from coordexp.evaluate.checkpoint import open_data
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.runs.folder import EvaluationFolder
from tests.support.evaluate_command import arguments

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, checkpoint, shapes) -> Path:
    """The result of one process, with one thread."""
    output = tmp_path_factory.mktemp("alone")
    command = [sys.executable, "-m", "coordexp", "evaluate", *arguments(checkpoint, shapes), "--output", str(output)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    return output


def settings_of(checkpoint: Path, shapes: Path, *, images: Path | None = None) -> EvaluationSettings:
    files = {"annotations": shapes / "instances_val.json", "images": images or shapes / "val"}
    return EvaluationSettings(model=str(checkpoint), **files, batch_size=2, max_new_tokens=40)


def evaluate_settings(
    settings: EvaluationSettings, workers: Workers, output: Path, on_images=lambda number: None
) -> dict[str, float]:
    data = open_data(settings)
    return evaluate_on_ray(settings, data, workers, output=EvaluationFolder(output), on_images=on_images)


def assert_same_files(a: Path, b: Path) -> None:
    files, others = (
        sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file() and "data" not in path.parts)
        for root in (a, b)
    )  # the set of the data is the command's own matter
    assert files == others
    assert len(files) == 18
    for path in files:
        if path.name == "metrics.json":
            metrics = [json.loads((root / path).read_text()) for root in (a, b)]
            assert all(found[f"{way}/images_per_second"] > 0 for found in metrics for way in ("constrained", "free"))
            first, second = ({name: found[name] for name in found if "second" not in name} for found in metrics)
            assert first == second
        elif path.name == "generated_by.json":
            records = [json.loads((root / path).read_text()) for root in (a, b)]
            assert [record.pop("device").partition(" x ")[0] for record in records] == ["1", "2"]
            assert records[0] == records[1]
        elif path.name == "hardware.json":
            texts = [json.loads((root / path).read_text())["hardware"] for root in (a, b)]
            assert [text.partition(" x ")[0] for text in texts] == ["1", "2"]
            assert texts[0].partition(" x ")[2].split(", ")[0] == texts[1].partition(" x ")[2].split(", ")[0]
        else:
            assert (a / path).read_bytes() == (b / path).read_bytes()


def test_the_job_script_gives_the_bytes_of_one_process(ray_environment, checkpoint, shapes, alone, tmp_path):
    command = [sys.executable, ROOT / "ray_jobs" / "evaluate.py", *arguments(checkpoint, shapes)]
    command += ["--num-workers", "2", "--output", tmp_path / "out"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "ideal scores" in " ".join(done.stdout.split())
    assert_same_files(alone, tmp_path / "out")


class Mortal(EvaluationWorker):
    """Kills its own process, as the kernel would, in the first queue, or in every one."""

    def __init__(self, settings: EvaluationSettings, *, marks: Path, for_good: bool) -> None:
        super().__init__(settings)
        self._marks = marks
        self._for_good = for_good

    def answer(self, decoding, queue):
        mark = self._marks / "-".join(map(str, [decoding, *queue]))
        if 0 in queue and (self._for_good or not mark.exists()):
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().answer(decoding, queue)


def with_mortal_workers(monkeypatch: pytest.MonkeyPatch, marks: Path, *, for_good: bool) -> None:
    class Worker(Mortal):
        def __init__(self, settings):
            super().__init__(settings, marks=marks, for_good=for_good)

    monkeypatch.setattr(evaluate, "EvaluationWorker", Worker)


def test_a_killed_worker_is_replaced(ray_on_two_cpus, checkpoint, shapes, alone, tmp_path, monkeypatch):
    marks = tmp_path / "marks"
    marks.mkdir()
    with_mortal_workers(monkeypatch, marks, for_good=False)
    seen: list[int] = []
    output = tmp_path / "out"
    metrics = evaluate_settings(settings_of(checkpoint, shapes), Workers(2), output, seen.append)
    assert len(list(marks.iterdir())) == 2, "one kill in each decoding"
    assert sum(seen) == 20
    (output / "metrics.json").write_text(json.dumps(metrics))
    assert_same_files(alone, output)


def test_a_worker_that_dies_again_and_again_is_told(ray_on_two_cpus, checkpoint, shapes, tmp_path, monkeypatch):
    with_mortal_workers(monkeypatch, tmp_path, for_good=True)
    with pytest.raises(ResourceError, match="3 times"):
        evaluate_settings(settings_of(checkpoint, shapes), Workers(2), tmp_path / "out")


def test_what_a_worker_finds_wrong_comes_out_as_it_is(ray_on_two_cpus, checkpoint, shapes, tmp_path):
    broken = tmp_path / "val"
    shutil.copytree(shapes / "val", broken)
    next(iter(sorted(broken.iterdir()))).write_bytes(b"no image")
    settings = settings_of(checkpoint, shapes, images=broken)
    with pytest.raises(DataError, match="000001.jpg") as caught:
        evaluate_settings(settings, Workers(2), tmp_path / "out")
    assert "\n" not in str(caught.value)


@pytest.mark.timeout(120)  # Ray itself would wait for ever
def test_more_than_the_cluster_has_is_refused(ray_on_two_cpus, checkpoint, shapes, tmp_path):
    with pytest.raises(ResourceError, match=r"1000 x \(1 CPU, 0 GPUs\)"):
        evaluate_settings(settings_of(checkpoint, shapes), Workers(1000), tmp_path)
