"""``coordexp evaluate`` on its own, and what others make of its files."""

import contextlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from coordexp.cli.main import main
from coordexp.evaluate.analysis import Analysis
from coordexp.model.loading import load
from tests.support.evaluate_command import NUM_IMAGES, arguments
from tests.support.evaluation import analyse
from tests.support.metrics import unregistered

pytestmark = pytest.mark.timeout(240)


@dataclass(frozen=True)
class Answered:
    """A data set on which random weights are good: its truth is near what they say."""

    annotations: Path
    aliases: Path


def boxes_beside(detections: list[tuple], images: dict[int, dict]) -> list[dict]:
    """Ground truth with an IoU of 1, .9, .8 and .7 with these boxes, in turn."""
    truth = []
    for number, (image_id, category_id, (x1, y1, x2, y2)) in enumerate(detections, start=1):
        width, height = images[image_id]["width"], images[image_id]["height"]
        w, h = max(1.0, abs(x2 - x1) * width * (1 - 0.1 * (number % 4))), max(1.0, abs(y2 - y1) * height)
        box = {"bbox": [min(x1, x2) * width, min(y1, y2) * height, w, h], "area": w * h, "iscrowd": 0}
        truth.append({"id": number, "image_id": image_id, "category_id": category_id, **box})
    return truth


@pytest.fixture(scope="module")
def answered(tmp_path_factory, checkpoint, shapes) -> Answered:
    """Find out what the model writes; let its words stand for categories, and boxes beside its own be the truth."""
    output = tmp_path_factory.mktemp("first")
    assert main(["evaluate", *arguments(checkpoint, shapes), "--output", str(output)]) == 0
    rows = [json.loads(line) for line in (output / "constrained" / "objects.jsonl").read_text().splitlines()]
    document = json.loads((shapes / "instances_val.json").read_text())
    names = [category["name"] for category in document["categories"]]
    words = sorted({thing["desc"] for row in rows for thing in row["objects"] if thing["desc"].strip()})
    aliases = {word: names[at % len(names)] for at, word in enumerate(words)}
    ids = {category["name"]: category["id"] for category in document["categories"]}
    detections = [
        (row["image_id"], ids[aliases[thing["desc"]]], thing["expected"])
        for row in rows
        for thing in row["objects"]
        if thing["desc"] in aliases
    ]
    document["annotations"] = boxes_beside(detections, {image["id"]: image for image in document["images"]})
    (output / "aliases.json").write_text(json.dumps(aliases))
    (output / "own.json").write_text(json.dumps(document))
    return Answered(output / "own.json", output / "aliases.json")


def plain_pycocotools(annotations: Path, detections: Path) -> float:
    """Score a results file as anybody would."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(annotations))
        evaluation = COCOeval(truth, truth.loadRes(str(detections)), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def bins_of(path: Path) -> list[list[list[int]]]:
    return [[thing["bins"] for thing in json.loads(row)["objects"]] for row in path.read_text().splitlines()]


def test_a_merged_checkpoint(checkpoint, shapes, answered, capsys):
    capsys.readouterr()
    command = [*arguments(checkpoint, shapes), "--annotations", str(answered.annotations)]
    assert main(["evaluate", *command, "--aliases", str(answered.aliases)]) == 0
    text = capsys.readouterr().out
    output = checkpoint.parent / "eval" / "merged-own"  # the default, beside the checkpoint
    assert str(output) in text
    for word in (
        f"{NUM_IMAGES} images",
        "ideal",
        "equal",
        "F1 .75",
        "calibration",
        "repeated objects",
        "probability of coord",
    ):
        assert word in text
    metrics = json.loads((output / "metrics.json").read_text())
    assert unregistered(metrics) == []
    for decoding in ("constrained", "free"):
        names = {path.name for path in (output / decoding).iterdir()}
        assert names == {
            "detections.argmax.json",
            "detections.expected.json",
            "objects.jsonl",
            "answers.jsonl",
            "unknown.json",
            "analysis.json",
            "generated_by.json",
            "distributions.json",
        }
        assert analyse(answered.annotations, output / decoding) == Analysis.read(output / decoding / "analysis.json")
        assert 0 < metrics[f"{decoding}/coord_mass"] <= 1
        for box in ("argmax", "expected"):
            assert metrics[f"{decoding}/{box}/AP_constant_score"] <= metrics[f"{decoding}/{box}/AP_oracle_score"]
    for box in ("argmax", "expected"):
        again = plain_pycocotools(answered.annotations, output / "constrained" / f"detections.{box}.json")
        assert again == metrics[f"constrained/{box}/AP"]
    assert 0.2 < again < 0.98
    assert metrics["constrained/expected/F1_50"] > metrics["constrained/expected/F1_75"] > 0.2
    assert metrics["free/malformed"] > 0
    speed = metrics["free/boxes_per_second"] / metrics["free/images_per_second"]
    assert speed == pytest.approx(metrics["free/num_objects"] / NUM_IMAGES)
    (processor, *_) = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE) or [""]
    assert json.loads((output / "hardware.json").read_text())["hardware"].startswith(f"1 x {processor.strip()}")
    assert "malformed, free: " in text


def test_a_base_with_an_adapter_equals_the_same_merged(shapes, tmp_path, checkpoint, capsys):
    """An adapter that changes nothing: the files are those of the base, which it names itself."""
    from peft import LoraConfig, get_peft_model

    from coordexp.model.checkpoint.adapter import save_adapter

    model = get_peft_model(load(checkpoint).model, LoraConfig(r=2, target_modules=["q_proj"]))
    save_adapter(model, tmp_path / "adapter")
    command = [*arguments(checkpoint, shapes), "--decoding", "constrained", "--num-images", "3"]
    assert main(["evaluate", *command, "--output", str(tmp_path / "plain")]) == 0
    assert re.search(r"of \d+ written objects", " ".join(capsys.readouterr().out.split()))
    assert command[:2] == ["--model", str(checkpoint)]
    assert main(["evaluate", *command[2:], "--adapter", str(tmp_path / "adapter")]) == 0
    output = tmp_path / "eval" / "adapter-instances_val-3"
    emitted = [bins_of(path / "constrained" / "objects.jsonl") for path in (output, tmp_path / "plain")]
    assert emitted[0] == emitted[1]
    assert any(emitted[0])


@pytest.mark.parametrize("way", ["constrained", "free"])
def test_given_answers_give_the_numbers_of_generating_them(checkpoint, shapes, answered, tmp_path, way):
    document = json.loads(answered.annotations.read_text())
    for box in document["annotations"]:  # at an IoU of .7, .8 or .9 exactly, rounding would decide
        box["bbox"][2] *= 0.96
    (tmp_path / "truth.json").write_text(json.dumps(document))
    command = [*arguments(checkpoint, shapes), "--annotations", str(tmp_path / "truth.json")]
    command += ["--aliases", str(answered.aliases), "--decoding", way]
    assert main(["evaluate", *command, "--output", str(tmp_path / "first")]) == 0
    given = ["--generations", str(tmp_path / "first" / way / "answers.jsonl"), "--batch-size", "4"]
    assert main(["evaluate", *command, *given, "--output", str(tmp_path / "again")]) == 0
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("first", "again")]
    first, again = ({k: v for k, v in found.items() if "second" not in k} for found in metrics)
    assert again == pytest.approx(first, abs=2e-3)
    assert f"{way}/images_per_second" not in metrics[1]  # nothing was generated
    found, generated = (bins_of(tmp_path / name / way / "objects.jsonl") for name in ("again", "first"))
    assert found == generated


def test_given_answers_that_do_not_fit_are_refused(checkpoint, shapes, tmp_path, capsys):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"image_id": 1, "text": ""}')
    command = [*arguments(checkpoint, shapes), "--generations", str(path)]
    assert main(["evaluate", *command, "--output", str(tmp_path)]) == 2
    assert f"{NUM_IMAGES - 1} of {NUM_IMAGES} images" in capsys.readouterr().err
    assert main(["evaluate", *command, "--decoding", "free", "constrained"]) == 2
    assert "--decoding" in capsys.readouterr().err


def test_an_engine_is_checked_against_our_own_answers(checkpoint, shapes, answered, tmp_path, capsys):
    """Our own answers are all ours; with one coordinate moved by nine bins, that is what differs."""
    command = [*arguments(checkpoint, shapes), "--annotations", str(answered.annotations)]
    command += ["--aliases", str(answered.aliases), "--decoding", "constrained"]
    assert main(["evaluate", *command, "--output", str(tmp_path / "ours")]) == 0
    record = json.loads((tmp_path / "ours" / "constrained" / "generated_by.json").read_text())
    assert (record["engine"], record["precision"], record["decoding"]) == ("coordexp", "float32", "constrained")

    path = tmp_path / "ours" / "constrained" / "answers.jsonl"
    check = ["evaluate", *command, "--num-images", str(NUM_IMAGES), "--check-engine"]
    capsys.readouterr()
    assert main([*check, str(path)]) == 0
    same = capsys.readouterr().out
    assert "100.0%" in same
    assert "at most 0 bins" in same

    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first_coord = load(checkpoint).vocab.coord_ids.start
    moved = next(line["token_ids"] for line in lines if any(token >= first_coord for token in line["token_ids"]))
    place = next(at for at, token in enumerate(moved) if first_coord <= token < first_coord + 1000)
    moved[place] += 9 if moved[place] < first_coord + 900 else -9
    (tmp_path / "moved.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([*check, str(tmp_path / "moved.jsonl")]) == 0
    differs = capsys.readouterr().out
    assert "100.0%" not in differs
    assert "at most 9 bins" in differs
