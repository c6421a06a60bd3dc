import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordexp.coord_tokens.grammar.parse import ParsedObject, ParsedSequence
from coordexp.data.images.patches import read_image, to_patches
from coordexp.data.sources.shapes import CATEGORIES, ShapesSpec, write_shapes
from coordexp.detection.coco_eval import evaluate_detections
from coordexp.errors import DataError
from coordexp.evaluate.analysis import analyse
from coordexp.evaluate.analysis_file import Analysis
from coordexp.evaluate.distributions import Distributions
from coordexp.evaluate.generate.decode import EvaluationSpec
from coordexp.evaluate.loop import evaluate_split
from coordexp.evaluate.records import ImageRecord
from coordexp.metrics import unregistered

NUM_IMAGES = 6


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes") / "data", ShapesSpec(num_train=1, num_val=NUM_IMAGES))


def inputs(base, shapes: Path, output: Path) -> dict:
    """The split as the readers give it: sizes from the file, encoded images."""
    annotations = shapes / "instances_val.json"
    images = json.loads(annotations.read_text())["images"]
    samples = []
    for image in images:
        patches, grid = to_patches(read_image(shapes / "val" / image["file_name"]), base.image_spec)
        tokens = base.image_spec.num_tokens(width=image["width"], height=image["height"])
        template = base.sample(1)
        pad = base.model.config.image_token_id
        text = [i for i in template.prompt_ids if i != pad]
        at = template.prompt_ids.index(pad)
        prompt = [*text[:at], *[pad] * tokens, *text[at:]]
        samples.append(replace(template, prompt_ids=prompt, patches=patches, grid=grid, image_id=image["id"]))
    return {
        "tokenizer": base.tokenizer,
        "vocab": base.vocab,
        "samples": samples,
        "sizes": {image["id"]: (image["width"], image["height"]) for image in images},
        "annotations": annotations,
        "image_spec": base.image_spec,
        "spec": EvaluationSpec(batch_size=4, max_new_tokens=48),
        "output": output,
    }


def without_time(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith("/seconds")}


def test_end_to_end(base, shapes: Path, tmp_path: Path) -> None:
    given = inputs(base, shapes, tmp_path)
    progress: list[tuple[int, int]] = []
    base.model.train()
    metrics = evaluate_split(base.model, **given, on_progress=lambda done, total: progress.append((done, total)))
    assert base.model.training
    base.model.eval()
    assert progress == [(4, 12), (6, 12), (10, 12), (12, 12)]
    for decoding in ("constrained", "free"):
        folder = tmp_path / decoding
        names = {"detections.argmax.json", "detections.expected.json", "objects.jsonl", "unknown.json"}
        assert {path.name for path in folder.iterdir()} == names
        lines = [json.loads(line) for line in (folder / "objects.jsonl").read_text().splitlines()]
        assert [line["image_id"] for line in lines] == sorted(given["sizes"])
        assert metrics[f"{decoding}/num_objects"] == sum(len(line["objects"]) for line in lines)
        assert metrics[f"{decoding}/malformed"] == sum(len(line["failures"]) for line in lines)
        assert metrics[f"{decoding}/seconds"] > 0
        for box in ("argmax", "expected"):
            ap = evaluate_detections(given["annotations"], folder / f"detections.{box}.json").AP
            assert metrics[f"{decoding}/{box}/AP"] == ap == 0.0
            # No shape is smaller than 32 x 32 px: an undefined AP is absent, not -1.
            assert metrics.get(f"{decoding}/{box}/AP_small", 0.0) >= 0.0
    assert metrics["constrained/malformed/unclosed"] == metrics["constrained/malformed"]
    assert metrics["constrained/num_objects"] > 0
    assert metrics["free/malformed"] > 0
    assert metrics["constrained/unknown_category"] == metrics["constrained/num_objects"], "random text names no shape"
    unknown = json.loads((tmp_path / "constrained" / "unknown.json").read_text())
    assert sum(unknown.values()) == metrics["constrained/unknown_category"]
    assert unregistered(metrics) == []
    json.dumps(metrics, allow_nan=False)


def test_ranks_share_the_work_and_change_nothing(native, shapes: Path, tmp_path: Path) -> None:
    # Batches are the same for any number of ranks: other neighbours would round other digits.
    given = inputs(native, shapes, tmp_path / "one")
    given |= {"spec": EvaluationSpec(batch_size=2, max_new_tokens=32), "details": True}
    alone = evaluate_split(native.model, **given)
    parts: list[list[ImageRecord]] = []

    def send(part: list[ImageRecord]) -> None:
        parts.append(pickle.loads(pickle.dumps(part)))

    decodings = given["spec"].decoding
    given["output"] = tmp_path / "two"
    assert evaluate_split(native.model, **given, rank=1, world_size=2, gather=send) == {}
    assert not (tmp_path / "two").exists()
    others = iter(parts)
    found = evaluate_split(native.model, **given, rank=0, world_size=2, gather=lambda part: [part, next(others)])
    assert without_time(found) == without_time(alone)
    for decoding in decodings:
        assert len(list((tmp_path / "one" / decoding).iterdir())) == 6
        for path in (tmp_path / "one" / decoding).iterdir():
            assert path.read_text() == (tmp_path / "two" / decoding / path.name).read_text()
    with pytest.raises(ValueError, match="gather"):
        evaluate_split(native.model, **given, rank=0, world_size=2)


def parsed(desc: str, bins=(1, 2, 3, 4), expected=(0.1, 0.2, 0.3, 0.4), log_probs=(-1.0,) * 4) -> ParsedObject:
    return ParsedObject(
        desc=desc,
        bins=bins,
        expected=expected,
        width=(5.0, 6.0, 7.0, 8.0),
        coord_log_probs=log_probs,
        desc_log_probs=log_probs[:1],
        position=3,
    )


def perfect_answers(given: dict) -> list[ImageRecord]:
    """What a perfect model would have parsed; the corners of every other box are swapped."""
    data = json.loads(given["annotations"].read_text())
    records = []
    for image_id, (width, height) in given["sizes"].items():
        objects = []
        for a in (a for a in data["annotations"] if a["image_id"] == image_id):
            x, y, w, h = a["bbox"]
            norm = (x / width, y / height, (x + w) / width, (y + h) / height)
            norm = norm if len(objects) % 2 else (norm[2], norm[3], norm[0], norm[1])
            bins = tuple(min(999, round(1000 * c)) for c in norm)
            probs = (-0.1 * len(objects),) * 4
            name = f" {CATEGORIES[a['category_id'] - 1].upper()}"
            objects.append(parsed(name, bins, norm, probs))
        records.append(ImageRecord(image_id, ParsedSequence(tuple(objects), ()), truncated=False))
    return records


def test_perfect_answers_score_one_and_missing_images_cost(native, shapes: Path, tmp_path: Path) -> None:
    given = inputs(native, shapes, tmp_path) | {"spec": EvaluationSpec(max_new_tokens=1, decoding=("constrained",))}
    records = perfect_answers(given)
    metrics = evaluate_split(native.model, **given, gather=lambda part: [records])
    assert metrics["constrained/expected/AP"] == pytest.approx(1.0)
    assert 0.9 < metrics["constrained/argmax/AP"] <= 1.0
    assert metrics["constrained/empty_images"] == metrics["constrained/unknown_category"] == 0
    argmax, expected = (
        json.loads((tmp_path / "constrained" / f"detections.{kind}.json").read_text())
        for kind in ("argmax", "expected")
    )
    assert [d["score"] for d in argmax] == [d["score"] for d in expected]
    assert all(d["bbox"][2] > 0 and d["bbox"][3] > 0 for d in argmax)

    # Only the first two samples are given: on the whole split the other images count as empty.
    few = given | {"samples": given["samples"][:2]}
    partial = evaluate_split(native.model, **few, gather=lambda part: [records[:2]])
    subset = evaluate_split(native.model, **few, gather=lambda part: [records[:2]], subset=True)
    assert subset["constrained/expected/AP"] == pytest.approx(1.0)
    assert partial["constrained/expected/AP"] < 0.7


def test_details_are_written_where_they_are_asked_for(native, shapes: Path, tmp_path: Path) -> None:
    given = inputs(native, shapes, tmp_path) | {"details": True}
    evaluate_split(native.model, **given)
    for decoding in ("constrained", "free"):
        folder = tmp_path / decoding
        assert analyse(given["annotations"], folder) == Analysis.read(folder / "analysis.json")
        curves = Distributions.read(folder / "distributions.json")
        lines = {
            row["image_id"]: row["objects"]
            for row in map(json.loads, (folder / "objects.jsonl").read_text().splitlines())
        }
        assert [image.image_id for image in curves.images] == sorted(given["sizes"])
        num_objects = 0
        for image in curves.images:
            assert len(image.objects) == min(4, len(lines[image.image_id]))
            for found, row in zip(image.objects, lines[image.image_id], strict=False):
                assert (list(found.bins), list(found.expected)) == (row["bins"], row["expected"])
                for curve, mean, width in zip(found.curves, row["expected"], row["width"], strict=True):
                    p, k = np.array(curve.units) / 1e5, np.arange(len(curve.units)) + curve.start
                    assert p.sum() == pytest.approx(1, abs=5e-3)
                    assert (p @ k) / p.sum() / 1000 == pytest.approx(mean, abs=2e-3)
                    assert (p @ (k - p @ k / p.sum()) ** 2 / p.sum()) ** 0.5 == pytest.approx(width, rel=2e-2)
                num_objects += 1
        assert num_objects > 0 or decoding == "free"


def test_unknown_descriptions_are_counted_and_aliases_help(native, shapes: Path, tmp_path: Path) -> None:
    given = inputs(native, shapes, tmp_path)
    item = parsed("crimson disc")
    records = [ImageRecord(i, ParsedSequence((item, item), ("stray_tokens",)), truncated=True) for i in given["sizes"]]
    plain = EvaluationSpec(max_new_tokens=1, decoding=("free",))
    metrics = evaluate_split(native.model, **given | {"spec": plain}, gather=lambda part: [records])
    assert metrics["free/unknown_category"] == metrics["free/num_objects"] == 2 * NUM_IMAGES
    assert metrics["free/malformed/stray_tokens"] == metrics["free/truncated_images"] == NUM_IMAGES
    assert metrics["free/malformed_fraction"] == pytest.approx(1 / 3)
    assert json.loads((tmp_path / "free" / "detections.argmax.json").read_text()) == []
    alias = EvaluationSpec(max_new_tokens=1, decoding=("free",), aliases={"Crimson disc": "red circle"})
    metrics = evaluate_split(native.model, **given | {"spec": alias}, gather=lambda part: [records])
    assert metrics["free/unknown_category"] == 0
    assert len(json.loads((tmp_path / "free" / "detections.argmax.json").read_text())) == 2 * NUM_IMAGES


def test_what_does_not_fit_together_is_refused(native, shapes: Path, tmp_path: Path) -> None:
    given = inputs(native, shapes, tmp_path) | {"spec": EvaluationSpec(max_new_tokens=1, decoding=("free",))}
    with pytest.raises(DataError, match="no image to evaluate"):
        evaluate_split(native.model, **given | {"samples": []})
    with pytest.raises(DataError, match="image 1 is evaluated twice"):
        evaluate_split(native.model, **given | {"samples": [given["samples"][0]] * 2})
    with pytest.raises(DataError, match="returned 1 of 6 images"):
        evaluate_split(native.model, **given, gather=lambda part: [part[:1]])
    stranger = [ImageRecord(77, ParsedSequence((), ()), truncated=False)]
    with pytest.raises(DataError, match="no image has id 77"):
        evaluate_split(native.model, **given | {"samples": given["samples"][:1]}, gather=lambda part: [stranger])
    item = parsed("red circle")
    records = [ImageRecord(i, ParsedSequence((item,), ()), truncated=False) for i in given["sizes"]]
    with pytest.raises(DataError, match="image 1: its width and height"):
        evaluate_split(native.model, **given | {"sizes": {}}, gather=lambda part: [records])
    assert not list(tmp_path.glob("free/detections*"))
