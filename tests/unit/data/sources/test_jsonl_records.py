"""Records as they are handed in: the specification's own, and ``images`` with ``bbox_2d``."""

import json

import pytest

from coordexp.coord_tokens.validator import annotate_coord_tokens
from coordexp.errors import DataError
from tests.support.samples import content, pairs_of, read_jsonl


def write(coco, *records):
    path = coco.root / "data.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def read(coco, *records, **options):
    return read_jsonl(write(coco, *records), coco.images, accept_prequantised=True, **options).samples


def test_the_record_of_the_specification(coco):
    """Section 3.1 of phase1_ablations.md: image and objects, nothing else."""
    first, second = read(
        coco,
        {"image": "b.png", "objects": []},
        {"image": "a.jpg", "objects": [{"desc": "description of object i", "bbox": [0.1, 0.2, 0.3, 0.4]}]},
    )
    assert content(first) == (coco.images / "b.png", 64, 64, 1, [])
    assert content(second) == (coco.images / "a.jpg", 100, 50, 2, [("description of object i", (0.1, 0.2, 0.3, 0.4))])


def test_the_number_of_the_line_is_the_id_also_behind_blank_lines(coco):
    path = write(coco, {"image": "a.jpg", "objects": []})
    path.write_text("\n\n" + path.read_text())
    assert [sample.image_id for sample in read_jsonl(path, coco.images).samples] == [3]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"image": "c.jpg", "objects": []}, r"c\.jpg"),
        ({"image": "broken.jpg", "objects": []}, r"broken\.jpg"),
        ({"image": "a.jpg", "width": 100, "objects": []}, "height"),
        ({"objects": []}, "image"),
        ({"images": ["a.jpg", "b.png"], "objects": []}, "images"),
        ({"image": "a.jpg", "images": ["a.jpg"], "objects": []}, "image and images"),
    ],
)
def test_what_is_missing_is_named_by_line(coco, record, reason):
    (coco.images / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=rf"line 1: .*({reason})"):
        read(coco, record)


WIDE = {"images": ["a.jpg"], "width": 100, "height": 50}  # a.jpg has 100 x 50 pixels


def with_boxes(*boxes, **fields):
    return {**WIDE, **fields, "objects": [{"desc": "cat", "bbox_2d": list(box)} for box in boxes]}


@pytest.mark.parametrize(
    ("record", "box"),
    [
        (with_boxes((100, 200, 500, 1000), bbox_format="norm1000"), (0.1, 0.2, 0.5, 1.0)),
        (with_boxes((10, 10, 50, 50), bbox_format="pixels"), (0.1, 0.2, 0.5, 1.0)),
        (with_boxes((10.5, 10, 50, 25.5), bbox_format="pixels"), (0.105, 0.2, 0.5, 0.51)),
        (with_boxes((0.1, 0.2, 0.5, 1)), (0.1, 0.2, 0.5, 1.0)),
        (with_boxes((100, 200, 500, 1000)), (0.1, 0.2, 0.5, 1.0)),  # 500 is outside an image 100 wide
        (with_boxes((10.5, 10, 50, 25.5)), (0.105, 0.2, 0.5, 0.51)),  # thousandths are integers
        (with_boxes(("<|coord_100|>", "<|coord_200|>", "<|coord_500|>", "<|coord_999|>")), (0.1, 0.2, 0.5, 0.999)),
    ],
)
def test_bbox_2d_in_each_of_its_forms(coco, record, box):
    [sample] = read(coco, record)
    assert pairs_of(sample.objects) == [("cat", pytest.approx(box, abs=1e-12))]


def swift(refs, boxes, *, text="", **fields):
    objects = {"ref": refs, "bbox": boxes, **fields}
    return {**WIDE, "objects": objects, "messages": [{"role": "user", "content": text}]}


def chat(answer):
    return {**WIDE, "conversations": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": answer}]}


CAT, DOG = ("cat", (0.1, 0.2, 0.5, 1.0)), ("dog", (0.2, 0.4, 0.5, 1.0))
PX, NAMED = [[10, 10, 50, 50], [20, 20, 50, 50]], "<ref-object><bbox><bbox>"
ANSWER = '[{"bbox_2d": [100, 200, 500, 1000], "label": "cat"}]'


@pytest.mark.parametrize(
    ("record", "pairs"),
    [
        (swift(["cat", "dog"], PX), [CAT, DOG]),
        (swift(["cat"], PX), [CAT, ("cat", DOG[1])]),
        (swift(["cat", "unseen", "dog"], PX, text="<ref-object><bbox><ref-object>, <ref-object><bbox>"), [CAT, DOG]),
        (swift(["cat"], [[0.1, 0.2, 0.5, 1]], bbox_type="norm1"), [CAT]),
        (swift(["cat"], [[100, 200, 500, 1000]], bbox_type="norm1000"), [CAT]),
        (chat(f"Here: ```json {ANSWER}```"), [CAT]),
        (chat(ANSWER[1:-1]), [CAT]),
        (chat("[]"), []),
        ({**WIDE, "bbox": [0.1, 0.2, 0.5, 1], "label": "cat"}, [CAT]),
    ],
)
def test_records_of_other_trainers(coco, record, pairs):
    [sample] = read(coco, record)
    assert pairs_of(sample.objects) == [(name, pytest.approx(box, abs=1e-12)) for name, box in pairs]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (swift(["a", "b"], PX, text=NAMED, bbox_type="px"), "bbox_type.*'px'.*real, norm1 or norm1000"),
        (swift(["a", "b", "c"], PX, text="<bbox>"), "0 names for 2 boxes"),
        (swift("cat", PX), "ref, bbox"),
        (chat("I see a cat."), "bbox_2d and label.*'I see a cat.'"),
        (chat("[{,}]"), r"JSON.*'\[\{,\}\]'"),
        ({**WIDE, "messages": []}, "assistant or gpt"),
    ],
)
def test_a_record_of_another_trainer_that_says_too_little_is_one_sentence(coco, record, reason):
    with pytest.raises(DataError, match=rf"line 1: .*{reason}"):
        read(coco, record)


def test_a_number_above_a_thousand_proves_pixels(coco):
    record = with_boxes((10, 20, 900, 950), (100, 200, 1500, 400), width=2000, height=1000)
    [sample] = read(coco, record)
    assert [pair[1] for pair in pairs_of(sample.objects)] == [(0.005, 0.02, 0.45, 0.95), (0.05, 0.2, 0.75, 0.4)]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            with_boxes((10, 10, 50, 50)),
            r"100 x 50.*\"bbox_format\"",
        ),
        (with_boxes((10, 10, 1500, 50)), r"100 x 50.*0\.\.1000"),
        (with_boxes((110, 10, 120, 50), bbox_format="pixels"), r"objects\[0\].*1\.1"),
        (with_boxes((10, 10, 1001, 50), bbox_format="norm1000"), r"1001.*0\.\.1000"),
        (with_boxes((0.1, 0.1, 0.2, 0.3), bbox_format="xywh"), "'xywh'.*'normalised', 'norm1000', 'pixels'"),
        (
            {**WIDE, "objects": [{"desc": "cat", "bbox": [0, 0, 1, 1], "bbox_2d": [0, 0, 1, 1]}]},
            "bbox and bbox_2d",
        ),
        ({**WIDE, "objects": [{"desc": "cat", "bbox": [10, 10, 50, 50]}]}, r"\[0, 1\]"),
    ],
)
def test_an_ambiguous_or_wrong_box_is_refused_in_a_sentence(coco, record, reason):
    with pytest.raises(DataError, match=rf"line 1: .*{reason}"):
        read(coco, record)


def test_a_missing_switch_is_one_sentence_whatever_share_of_bad_records_is_accepted(coco):
    with pytest.raises(DataError, match=r"^[^;]*data\.jsonl: line 1: bbox_2d [^;]*;[^;]*bbox_format[^;]*$"):
        read(coco, *[with_boxes((10, 10, 50, 50))] * 9, max_bad_fraction=1.0)


def test_the_configuration_says_it_for_all_records(coco):
    record = with_boxes((10, 10, 50, 50))
    assert pairs_of(read(coco, record, bbox_format="pixels")[0].objects)[0][1] == (0.1, 0.2, 0.5, 1.0)
    assert pairs_of(read(coco, record, bbox_format="norm1000")[0].objects)[0][1] == (0.01, 0.01, 0.05, 0.05)
    says_so = {**record, "bbox_format": "norm1000"}  # the record knows better
    assert pairs_of(read(coco, says_so, bbox_format="pixels")[0].objects)[0][1] == (0.01, 0.01, 0.05, 0.05)


def test_annotation_knows_pixels_and_the_border():
    record = with_boxes((10, 10, 100, 50), bbox_format="pixels")
    assert annotate_coord_tokens(record) is False
    assert record["objects"][0]["bbox_coord_ints"] == [100, 200, 999, 999]
    record = with_boxes((10, 10, 1000, 50), bbox_format="norm1000")
    assert annotate_coord_tokens(record) is True
    assert record["objects"][0]["bbox_coord_ints"] == [10, 10, 999, 50]
    with pytest.raises(DataError, match="width and height"):
        annotate_coord_tokens({"objects": record["objects"], "bbox_format": "pixels"})
