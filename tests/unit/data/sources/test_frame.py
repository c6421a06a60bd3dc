"""Files whose boxes stand in another frame are told from good ones, and stop before anything is trained."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coordexp.config.schema.data import Shapes
from coordexp.data.images.files import Header
from coordexp.data.sources.coco.source import CocoSource
from coordexp.data.sources.frame import frame_problem
from coordexp.data.sources.shapes import write_shapes
from coordexp.data.sources.turned import find_turned
from coordexp.errors import DataError

Box = list[float]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes") / "data", Shapes(num_train=1, num_val=150))


def changed(shapes: Path, folder: Path, change: Callable[[Box, float, float], Box], *, shift: int = 0) -> Path:
    document = json.loads((shapes / "instances_val.json").read_text(encoding="utf-8"))
    sizes = {image["id"]: (image["width"], image["height"]) for image in document["images"]}
    for one in document["annotations"]:
        one["bbox"] = change(one["bbox"], *sizes[one["image_id"]])
        one["category_id"] += shift
    path = folder / "changed.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "frame"),
    [
        (lambda b, w, h: [b[0] / w, b[1] / h, b[2] / w, b[3] / h], "fractions"),
        (lambda b, w, h: [b[0], b[1], b[0] + b[2], b[1] + b[3]], "left, top, right, bottom"),
        (lambda b, w, h: [2 * side for side in b], "larger copies"),
        (lambda b, w, h: [b[0] + w / 2, b[1] + h / 2, b[2], b[3]], "larger copies"),
        (lambda b, w, h: [side / 2 for side in b], "smaller copies"),
    ],
    ids=["fractions", "corners", "larger", "shifted", "smaller"],
)
def test_another_frame_is_named_and_can_be_taken_as_it_is(shapes: Path, tmp_path: Path, change, frame: str) -> None:
    path = changed(shapes, tmp_path, change)
    with pytest.raises(DataError, match=f"changed.json: .*{frame}.*data.max_bad_fraction"):
        CocoSource(path, shapes / "val").read()
    assert CocoSource(path, shapes / "val").read(max_bad_fraction=1.0).samples


def test_good_files_are_not_mistaken(shapes: Path) -> None:
    assert CocoSource(shapes / "instances_val.json", shapes / "val").read().counts["boxes"] > 200


@pytest.mark.parametrize("seed", range(20))
def test_real_looking_boxes_are_not_mistaken(seed: int) -> None:
    """Sizes and places as in photographs, a few boxes a little beyond the border."""
    draw = np.random.default_rng(seed)
    sizes = draw.choice([[640, 480], [480, 640], [500, 375]], size=400).astype(np.float64)
    wide = np.clip(np.exp(draw.normal(-1.5, 0.9, (400, 2))), 0.01, 1.0)
    left = draw.random((400, 2)) * (1 - wide)
    boxes = np.concatenate([left * sizes, wide * sizes * 1.005], axis=1)
    assert frame_problem(boxes, sizes) is None
    assert frame_problem(boxes[:19] * 3, sizes[:19]) is None, "too few to tell"


def test_what_was_accepted_is_still_said(shapes: Path, tmp_path: Path) -> None:
    path = changed(shapes, tmp_path, lambda b, w, h: [b[0] / w, b[1] / h, b[2] / w, b[3] / h])
    (found,) = CocoSource(path, shapes / "val").read(max_bad_fraction=1.0).warnings
    assert "fractions" in found


@pytest.mark.parametrize(("shift", "cure"), [(-1, "add 1 to"), (1, "subtract 1 from")])
def test_ids_of_categories_that_are_off_by_one_are_said_once(
    shapes: Path, tmp_path: Path, shift: int, cure: str
) -> None:
    path = changed(shapes, tmp_path, lambda box, width, height: box, shift=shift)
    with pytest.raises(DataError) as caught:
        CocoSource(path, shapes / "val").read()
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert f"{cure} each category_id" in said
    assert said.count("categories[") + said.count("annotations[") == 1, "one record stands for all"
    assert len(said.replace(str(path), "")) < 360
    taken = CocoSource(path, shapes / "val").read(max_bad_fraction=1.0)
    assert [f"{cure} each category_id" in warning for warning in taken.warnings] == [True]
    assert 0 < len(taken.rejected) < taken.counts["annotations"]


def test_ids_of_images_that_are_off_by_one_are_said_once(shapes: Path, tmp_path: Path) -> None:
    document = json.loads((shapes / "instances_val.json").read_text(encoding="utf-8"))
    for one in document["annotations"]:
        one["image_id"] -= 1
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DataError, match=r"changed\.json: .*add 1 to each image_id") as caught:
        CocoSource(path, shapes / "val").read()
    assert str(caught.value).count("annotations[") == 1, "one record stands for all"


@pytest.mark.parametrize(
    ("recorded", "reach", "key", "stored", "sure"),
    [
        ((40, 20), (19, 19), "auto", True, False),  # the size of the stored picture; boxes fit both frames
        ((20, 40), (19, 19), "auto", False, True),
        ((40, 20), (19, 39), "auto", False, True),  # boxes that only the shown picture holds
        ((20, 40), (39, 19), "auto", True, True),
        (None, (19, 19), "auto", False, False),
        (None, (39, 19), "auto", True, True),
        ((40, 20), (19, 39), "stored", True, True),
        ((20, 40), (39, 19), "shown", False, True),
    ],
)
def test_the_frame_of_pictures_that_exif_turns(recorded, reach, key, stored, sure):
    found = find_turned({5: Header(40, 20, 6)}, {5: recorded}, {5: reach}, key)
    assert (5 in found.stored) == stored
    warnings, notes = found.sentences(9)
    assert (len(warnings), len(notes)) == ((0, 1) if sure else (1, 0))
    assert "1 of 9 " in (*warnings, *notes)[0]


def test_pictures_that_say_nothing_go_with_the_others():
    headers = {0: Header(40, 20, 6), 1: Header(30, 30, 6), 2: Header(40, 20, 3)}
    sizes = {0: (40, 20), 1: (30, 30), 2: (40, 20)}
    assert find_turned(headers, sizes, {}, "auto").stored == {0, 1, 2}
    assert find_turned(headers, sizes | {0: (20, 40)}, {}, "auto").stored == set()
    assert find_turned({}, {}, {}, "auto").sentences(3) == ([], [])
