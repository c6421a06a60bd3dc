"""Counts of generated text, and the files of one decoding: duplicates, coord mass, malformed pieces."""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS
from coordexp.detection import evaluate_detections
from coordexp.evaluate.answers import Objects, unknown_sentence
from coordexp.evaluate.results import counts, cut_at_repeat, detections_before_repeat, repeats
from coordexp.metrics import BOX_KINDS
from coordexp.runs.folder import DecodingFolder
from tests.support.detections import crowded_scene, scene
from tests.support.evaluation import Item, answers_of, evaluated, objects_of, read_objects

BOX = (100, 100, 200, 200)


@pytest.mark.parametrize(
    ("objects", "expected"),
    [
        ([], []),
        ([Item(), Item(), Item()], [False, True, True]),
        ([Item("a cat"), Item("  A  Cat ")], [False, True]),  # the same after folding
        ([Item("cat"), Item("dog")], [False, False]),
        ([Item(), Item(bins=(100, 100, 200, 201))], [False, False]),
        ([Item(), Item("dog"), Item()], [False, False, True]),  # any earlier one, not just the last
    ],
)
def test_repeats_by_hand(objects: list[Item], expected: list[bool]) -> None:
    found = objects_of({1: objects, 2: objects[:1]})  # an answer repeats nothing of another one
    marked = repeats(found)
    assert marked.tolist() == [*expected, *[False] * len(objects[:1])]
    left = cut_at_repeat(found, marked)
    num_left = expected.index(True) if True in expected else len(objects)
    assert left.image_ids.tolist() == [1] * num_left + [2] * len(objects[:1])


def test_counts_by_hand() -> None:
    images = {1: [Item(), Item(), Item("dog", category_id=None)], 2: [Item()], 3: []}
    answers = answers_of(
        images,
        failures={1: ["unclosed"], 2: ["unclosed", "stray_tokens"]},
        truncated=[1],
        coord_mass={1: [0.5] * 12, 2: [1.0] * 4},
        num_tokens={1: 60, 2: 20, 3: 1},
    )
    kinds = {f"malformed/{kind}": 0.0 for kind in FAILURE_KINDS}
    assert counts(answers, repeats(Objects.joined([answer.objects for answer in answers])), FAILURE_KINDS) == kinds | {
        "num_objects": 4,
        "malformed": 3,
        "malformed/unclosed": 2,
        "malformed/stray_tokens": 1,
        "malformed_fraction": pytest.approx(3 / 7),
        "unknown_category": 1,
        "duplicate_rate": 1 / 4,  # within an image: the one of image 2 is new there
        "longest_repeat": 1,
        "empty_images": 1,
        "truncated_images": 1,
        "truncated_fraction": 1 / 3,
        "tokens_per_object": 81 / 4,
        "coord_mass": pytest.approx((12 * 0.5 + 4) / 16),
    }
    assert "coord_mass" not in counts(answers_of({1: []}), repeats(objects_of({})), FAILURE_KINDS)


def test_an_answer_cut_at_its_first_repeat_has_an_ap_beside_the_plain_one(tmp_path: Path) -> None:
    given = scene((1, 1, [20, 10, 20, 10]), (1, 2, [60, 10, 20, 10]), num_images=1)
    first = Item(bins=BOX)
    width, height = given.sizes_px[1]
    later = Item(
        "thing 2", (60 * 1000 // width, 10 * 1000 // height, 80 * 1000 // width, 20 * 1000 // height), category_id=2
    )
    metrics = evaluated(tmp_path, given, {1: [first, first, first, later]})
    assert (metrics["duplicate_rate"], metrics["longest_repeat"]) == (0.5, 2)
    assert metrics["argmax/AP50"] > metrics["argmax/AP50_cut"] == pytest.approx(0.5)
    # What the files say of it, once the run is finished: an unknown category is no detection, and may end an answer.
    rows = detections_before_repeat(tmp_path / "free" / "objects.jsonl")
    assert rows.tolist() == [True, False, False, False]
    wolf = Item("wolf", category_id=None)
    evaluated(tmp_path / "wolves", given, {1: [wolf, first, wolf, later]})
    assert detections_before_repeat(tmp_path / "wolves" / "free" / "objects.jsonl").tolist() == [True, False]
    plain = evaluated(tmp_path / "plain", given, {1: [first, later]})
    assert plain["duplicate_rate"] == 0
    assert plain["argmax/AP_cut"] == plain["argmax/AP"]


def test_detections_and_objects_go_together() -> None:
    images = {1: [Item("dog", category_id=None), Item(bins=BOX, score=0.25)], 2: [Item(bins=(300, 2, 1, 4))]}
    table = objects_of(images)
    found = table.detections("argmax", {1: (200, 100), 2: (1000, 1000)})
    assert found.image_ids.tolist() == [1, 2]
    assert found.boxes_px_xywh == pytest.approx(np.array([[20, 10, 20, 10], [1, 2, 299, 2]]))  # corners in order
    assert found.scores.tolist() == [0.25, 0.5]
    assert table.ordered_width("argmax")[1:].tolist() == [[1, 2, 3, 4], [3, 2, 1, 4]]


def test_the_files_of_a_decoding(tmp_path: Path) -> None:
    given = scene((1, 1, [20, 10, 20, 10]), num_images=2)
    objects = {1: [Item(bins=BOX), Item("wolf", category_id=None)], 2: [Item("wolf", category_id=None)]}
    metrics = evaluated(tmp_path, given, objects)
    folder = tmp_path / "free"
    names = {"detections.argmax.json", "detections.expected.json", "objects.jsonl", "answers.jsonl", "unknown.json"}
    assert {path.name for path in folder.iterdir()} == names | {"analysis.json", "distributions.json"}
    assert json.loads((folder / "unknown.json").read_text()) == {"wolf": 2}
    entry = {"image_id": 1, "category_id": 1, "bbox": [20.0, 10.0, 20.0, 10.0], "score": 0.5}
    assert json.loads((folder / "detections.argmax.json").read_text()) == [entry]
    first = json.loads((folder / "objects.jsonl").read_text().splitlines()[0])
    assert first == {
        "image_id": 1,
        "objects": [
            {
                "desc": "thing 1",
                "category_id": 1,
                "bins": [100, 100, 200, 200],
                "expected": [0.1, 0.1, 0.2, 0.2],
                "width": [1.0, 2.0, 3.0, 4.0],
                "score": 0.5,
            },
            {
                "desc": "wolf",
                "category_id": None,
                "bins": [100, 100, 200, 200],
                "expected": [0.1, 0.1, 0.2, 0.2],
                "width": [1.0, 2.0, 3.0, 4.0],
                "score": 0.5,
            },
        ],
        "failures": [],
        "truncated": False,
    }
    assert metrics["argmax/AP"] == metrics["expected/AP"] == pytest.approx(1.0)
    assert metrics["unknown_category"] == 2


def test_names_that_are_no_category_are_listed_if_ap_is_low(tmp_path: Path) -> None:
    truth = scene((1, 1, [20, 10, 20, 10]), num_images=1)

    def sentence_of(*objects: Item) -> str | None:
        metrics = evaluated(tmp_path, truth, {1: objects})
        metrics_of_free = {f"free/{name}": value for name, value in metrics.items()}
        return unknown_sentence(DecodingFolder(tmp_path / "free"), "free", metrics_of_free)

    wolf = Item("wolf", category_id=None)
    fox = Item("fox", category_id=None)
    far = Item(bins=(900, 900, 950, 950))
    none_known = sentence_of(fox, wolf, wolf)
    for fact in ("free", "none of 3", "'wolf', 'fox'"):
        assert fact in none_known
    one_known = sentence_of(fox, far)
    assert "1 of 2" in one_known
    assert "'fox'" in one_known
    assert sentence_of(fox, far, far) is None
    assert sentence_of(fox, Item(bins=BOX)) is None, "AP is high"
    assert sentence_of() is None


def test_objects_are_read_as_they_were_written(tmp_path: Path) -> None:
    exotic = Item("a\u2028b\x85c \U0001f600\0")  # line ends of other alphabets are no line ends
    images = {1: [exotic, Item(category_id=None, expected=(1 / 3, 0.1, 0.2, 0.9))]}
    evaluated(tmp_path, scene((1, 1, [1, 2, 3, 4])), images)
    found, wanted = read_objects(tmp_path / "free" / "objects.jsonl"), objects_of(images)
    for name, column in vars(wanted).items():
        assert vars(found)[name].tolist() == column.tolist(), name


@pytest.mark.parametrize("seed", range(2))
def test_ap_is_what_pycocotools_says_of_the_files(tmp_path: Path, seed: int) -> None:
    given, rows = crowded_scene(seed)
    objects: dict[int, list[Item]] = {}
    for row in rows:
        x, y, w, h = row.box
        norm = [min(c, 0.999) for c in (x / 200, y / 100, (x + w) / 200, (y + h) / 100)]
        bins = tuple(10 * int(100 * c) for c in norm)
        named = {"desc": f"thing {row.category_id}", "category_id": row.category_id, "score": row.score}
        found = Item(bins=bins, expected=tuple(norm), **named)
        objects.setdefault(row.image_id, []).append(found)
    metrics = evaluated(tmp_path, given, objects)
    annotations = given.write(tmp_path / "gt.json")
    for kind in BOX_KINDS:
        theirs = asdict(evaluate_detections(annotations, tmp_path / "free" / f"detections.{kind}.json"))
        for name in ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AR100"):
            assert metrics.get(f"{kind}/{name}") == theirs[name]
    assert metrics["argmax/AP"] != metrics["expected/AP"]
