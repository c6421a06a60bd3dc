"""What a run says of its data: every box that is lost is in a count, and every bad record has its place."""

from coordexp.data.batches.dataset import DetectionDataset
from coordexp.data.sources.coco import read_coco
from coordexp.data.summary import data_lines


def test_clean_data_take_one_line(coco):
    assert data_lines("train", read_coco(coco.annotations, coco.images)) == [
        "train: 2 images; 2 boxes; 1 images without objects"
    ]


def test_what_is_lost_is_said(coco, native, prompt, image_spec):
    coco.document["annotations"] += [
        {"id": i, "image_id": 7, "category_id": 1, "bbox": [1, 1, 0, 1], "iscrowd": 0} for i in range(3, 10)
    ]
    coco.document["annotations"].append({"id": 99, "image_id": 3, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 1})
    data = read_coco(coco.save().annotations, coco.images, max_bad_fraction=0.7)
    dataset = DetectionDataset(
        samples=data.samples, tokenizer=native[0], vocab=native[1], prompt=prompt, image_spec=image_spec,
        max_objects=1, max_length=4096, seed=0,
    )  # fmt: skip
    lines = data_lines("train", data, dataset)
    assert lines[0] == (
        "train: 2 images; 2 boxes; 1 images without objects; 1 crowd boxes are no targets; "
        "1 objects over data.max_objects are left out, the smallest"
    )
    assert lines[1] == "train: 7 records are left out:"
    assert lines[2].startswith(f"  {coco.annotations}: annotations[2] (id 3): bbox [1, 1, 0, 1]")
    assert len(lines) == 2 + 5 + 1
    assert lines[-1] == "  and 2 more"
