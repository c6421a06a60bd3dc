"""LVIS: images by address, verified absence and frequency, each checked and kept."""

import json

import pytest

from coordexp.data.sources.prepare import PrepareSpec
from coordexp.errors import DataError
from tests.support.samples import prepare

URL = "http://images.cocodataset.org/train2017/000000000007.jpg"


@pytest.fixture
def lvis(tmp_path):
    """The keys and order of LVIS v1; one image of two has no object, but a verified absence."""
    document = {
        "info": {"version": "v1.0"},
        "annotations": [
            {"area": 600.0, "id": 1, "segmentation": [[10, 20, 40, 20, 40, 40]], "image_id": 7,
             "bbox": [10.0, 20.0, 30.0, 20.0], "category_id": 2}
        ],
        "images": [
            {"date_captured": "2013", "neg_category_ids": [1], "id": 7, "license": 4, "height": 50, "width": 100,
             "flickr_url": "", "coco_url": URL, "not_exhaustive_category_ids": []},
            {"date_captured": "2013", "neg_category_ids": [], "id": 3, "license": 4, "height": 64, "width": 64,
             "flickr_url": "", "coco_url": URL.replace("train2017", "val2017"), "not_exhaustive_category_ids": [1, 2]},
        ],
        "licenses": [],
        "categories": [
            {"image_count": 1, "synonyms": ["can"], "def": "a can", "id": 1, "synset": "can.n.01",
             "name": "aerosol_can", "frequency": "c", "instance_count": 9},
            {"image_count": 1, "synonyms": ["bow"], "def": "a bow", "id": 2, "synset": "bow.n.01",
             "name": "bow_(weapon)", "frequency": "r", "instance_count": 2},
        ],
    }  # fmt: skip
    for split in ("train2017", "val2017"):
        (tmp_path / "images" / split).mkdir(parents=True)
        (tmp_path / "images" / split / "000000000007.jpg").touch()

    def run(images="images", change=None, **options):
        if change is not None:
            change(document)
        path = tmp_path / "lvis_v1_train.json"
        path.write_text(json.dumps(document))
        output = tmp_path / "out"
        spec = PrepareSpec(path, tmp_path / images, output, dialect="lvis", **options)
        manifest = prepare(spec).manifest
        return [json.loads(line) for line in (output / "samples.jsonl").read_text().splitlines()], manifest

    return run


def test_what_evaluation_needs_is_kept(lvis):
    records, manifest = lvis()
    assert records == [
        {"image": "train2017/000000000007.jpg", "width": 100, "height": 50, "image_id": 7,
         "objects": [{"desc": "bow_(weapon)", "bbox": [0.1, 0.4, 0.4, 0.8]}],
         "neg_category_ids": [1], "not_exhaustive_category_ids": []},
        {"image": "val2017/000000000007.jpg", "width": 64, "height": 64, "image_id": 3, "objects": [],
         "neg_category_ids": [], "not_exhaustive_category_ids": [1, 2]},
    ]  # fmt: skip
    assert manifest["format"] == "lvis"
    assert manifest["categories"] == [
        {"id": 1, "name": "aerosol_can", "frequency": "c", "images": 0, "objects": 0},
        {"id": 2, "name": "bow_(weapon)", "frequency": "r", "images": 1, "objects": 1},
    ]


def test_the_folder_may_be_one_of_the_two(lvis):
    records, manifest = lvis(images="images/train2017", max_bad_fraction=0.5)
    assert [record["image"] for record in records] == ["000000000007.jpg"]
    assert "val2017/000000000007.jpg" in manifest["rejected"][0]["reason"]


def test_a_file_name_wins_over_the_address(lvis):
    records, _ = lvis(change=lambda document: document["images"][0].update(file_name="val2017/000000000007.jpg"))
    assert records[0]["image"] == "val2017/000000000007.jpg"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["images"][0].pop("coco_url"), r"images\[0\] \(id 7\): coco_url"),
        (lambda d: d["images"][0].update(coco_url="nothing"), r"images\[0\].*coco_url.*'nothing'"),
        (lambda d: d["images"][0].update(coco_url="http://[/a/b.jpg"), r"images\[0\].*Invalid IPv6 URL"),
        (lambda d: d["images"][0].update(coco_url="http://x/../%2e%2e"), r"images\[0\].*\.\."),
        (lambda d: d["images"][0].update(coco_url=7), r"images\[0\].*coco_url.* 7\b"),
        (lambda d: d["images"][1].pop("neg_category_ids"), r"images\[1\] \(id 3\): neg_category_ids"),
        (
            lambda d: d["images"][1].update(not_exhaustive_category_ids=["1"]),
            r"images\[1\].*not_exhaustive_cat",
        ),
        (lambda d: d["categories"][1].pop("frequency"), r"categories\[1\] \(id 2\): frequency"),
        (lambda d: d["categories"][1].update(frequency=["r"]), r"categories\[1\].*frequency.*r, c or f"),
    ],
)
def test_what_is_missing_is_named(lvis, change, reason):
    with pytest.raises(DataError, match=rf"lvis_v1_train\.json: 1 of 2.*{reason}"):
        lvis(change=change)
