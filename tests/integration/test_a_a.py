"""One group under two names, really trained, evaluated and compared: the report must find no difference."""

import json
import re
from pathlib import Path

import pytest
import yaml

from coordexp.cli.main import main
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_TIMES = re.compile("second|throughput|memory")

OVERRIDES = [
    "ablation.groups=[A, A_again]", "training.max_steps=4", "training.checkpoint_steps=2", "data.shapes.num_train=64",
    "data.shapes.num_val=16", "cluster.executor=inline", "evaluation.every_steps=2", "evaluation.subset_images=8",
    "evaluation.loss_images=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a_a")
    assert main(["ablation", *OVERRIDES, f"experiment.runs_dir={folder}"]) == 0
    return folder


def test_a_group_under_two_names_does_not_differ(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "tiny", "--runs-dir", str(runs_dir), "--format", "json", "--resamples", "200"]) == 0
    said = json.loads(capsys.readouterr().out)
    # Four steps teach nothing, and of nothing there is no winner; that the pair does not differ stands below.
    assert "The highest AP is 0.0" in said["verdict"]
    (pair,) = [line for line in said["statistics"] if line["kind"] == "pair"]
    assert (pair["value"], pair["low"], pair["high"]) == (0, 0, 0)
    assert (pair["p_swap"], pair["p_bootstrap"], pair["p_holm"]) == (1, 1, 1)
    assert said["fairness"]["comparable"]
    assert said["fairness"]["differences"] == []
    # Not for want of detections: each wrote some, and the same to the byte.
    folder = runs_dir / "tiny"
    truth = read_ground_truth(folder / "data" / "instances_val.json")
    final = "eval/final/constrained/detections.expected.json"
    ours, theirs = (folder / f"{group}-s0" / final for group in ("A", "A_again"))
    assert read_detections(ours, truth)
    assert ours.read_bytes() == theirs.read_bytes()
    means = [{k: v for k, v in g["mean"].items() if not _TIMES.search(k)} for g in said["groups"].values()]
    assert len(means[0]) > 100
    assert means[0] == means[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.prompt", "List the objects."),
        ("training.per_device_batch_size", 16),
        ("data.ordering", "random"),
        ("data.max_pixels", 4096),
        ("evaluation.score", "coord"),
    ],
)
def test_a_planted_difference_is_refused_by_the_report(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    """The fingerprint of one run as that difference would have written it."""
    path = runs_dir / "tiny" / "A_again-s0" / "fingerprint.json"
    kept = path.read_text()
    stored = json.loads(kept)
    section, name = key.split(".")
    assert stored["config"][section][name] != value
    stored["config"][section][name] = value
    arguments = ["tiny", "--runs-dir", str(runs_dir), "--resamples", "50", "--output", str(tmp_path)]
    try:
        path.write_text(json.dumps(stored))
        assert main(["report", *arguments]) == 2
        said = capsys.readouterr().err
        assert "more than the declared factor" in said
        assert key in said
        assert main(["report", *arguments, "--allow-differences", "--format", "md"]) == 0
    finally:
        path.write_text(kept)
    text = capsys.readouterr().out
    head, _, _ = text.partition("## AP, each group by its own reading")
    assert f"differ in more than the declared factor ({key})" in head
    assert yaml.safe_dump(value).splitlines()[0].strip("'") in head
