"""The builder: token strings or bins, a template that does not scale them, and one order for both."""

import copy
import json

import numpy as np
import pytest

from coordexp.data.builder import JsonLinesBuilder
from coordexp.errors import ConfigError, DataError
from tests.support.samples import pairs_of, read_jsonl

RECORD = {"image": "a.jpg", "width": 100, "height": 50, "objects": [{"desc": "cat", "bbox": [0.1, 0.2, 0.3, 1.0]}]}
TOKENS = ["<|coord_100|>", "<|coord_200|>", "<|coord_300|>", "<|coord_999|>"]


class Template:
    """Scales every box to 0..1000 by the image size, as a training template does with pixels."""

    def normalize_bbox(self, record):
        for item in record["objects"]:
            item["bbox"] = [int(k) * 1000 // 100 for k in item["bbox"]]


def test_tokens_or_integers_as_the_switch_says():
    before = copy.deepcopy(RECORD)
    tokens = JsonLinesBuilder(enabled=True, skip_bbox_norm=True).build(RECORD)
    bins = JsonLinesBuilder(enabled=False, skip_bbox_norm=True).build(RECORD)
    assert tokens == RECORD | {"objects": [{"desc": "cat", "bbox": TOKENS}]}
    assert bins == RECORD | {"objects": [{"desc": "cat", "bbox": [100, 200, 300, 999]}], "bbox_format": "norm1000"}
    assert before == RECORD
    # What was built can be built again, in either form.
    assert JsonLinesBuilder(enabled=True, skip_bbox_norm=True).build(bins) == tokens
    assert JsonLinesBuilder(enabled=False, skip_bbox_norm=True).build(tokens) == bins


def test_pixels_become_bins():
    record = RECORD | {"objects": [{"desc": "cat", "bbox_2d": [10, 10, 30, 50]}], "bbox_format": "pixels"}
    assert JsonLinesBuilder(enabled=False, skip_bbox_norm=True).build(record)["objects"] == [
        {"desc": "cat", "bbox": [100, 200, 300, 999]}
    ]


def test_the_template_is_kept_from_scaling_only_where_the_switches_say_so():
    template = Template()
    builder = JsonLinesBuilder(template, enabled=True, skip_bbox_norm=True)
    sample = builder.build(RECORD)
    template.normalize_bbox(sample)
    assert sample["objects"][0]["bbox"] == TOKENS
    template = Template()
    sample = JsonLinesBuilder(template, enabled=False, skip_bbox_norm=True).build(RECORD)
    template.normalize_bbox(sample)  # negative control: this is what the switches prevent
    assert sample["objects"][0]["bbox"] == [1000, 2000, 3000, 9990]


def test_what_cannot_be_built_is_refused():
    with pytest.raises(ConfigError, match="normalize_bbox"):
        JsonLinesBuilder(object(), enabled=True, skip_bbox_norm=True)
    with pytest.raises(DataError, match="objects"):
        JsonLinesBuilder(enabled=True, skip_bbox_norm=True).build({"image": "a.jpg"})
    with pytest.raises(DataError, match=r"objects\[0\]"):
        JsonLinesBuilder(enabled=True, skip_bbox_norm=True).build({"objects": ["cat"]})


def test_numbers_bins_and_tokens_of_one_data_set_are_learnt_in_one_order(coco):
    """Objects whose corners fall into one bin: unrounded, y1 alone would decide their order."""
    rng = np.random.default_rng(0)
    lines = {"numbers": [], "bins": [], "tokens": []}
    for number in range(40):
        corners = rng.integers(0, 20, size=(12, 2)) / 1000 + rng.uniform(-0.0004, 0.0004, size=(12, 2)) + 0.1
        objects = [{"desc": f"{i}", "bbox": [*low.tolist(), *(low + 0.3).tolist()]} for i, low in enumerate(corners)]
        record = {"image": "a.jpg", "width": 100, "height": 50, "image_id": number, "objects": objects}
        lines["numbers"].append(record)
        lines["bins"].append(JsonLinesBuilder(enabled=False, skip_bbox_norm=True).build(record))
        lines["tokens"].append(JsonLinesBuilder(enabled=True, skip_bbox_norm=True).build(record))
    orders, capped, unrounded = {}, {}, []
    for name, records in lines.items():
        path = coco.root / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        samples = read_jsonl(path, coco.images, accept_prequantised=True).samples
        orders[name] = [sample.objects.ordered().descs for sample in samples]
        capped[name] = [sample.objects.largest(5).descs for sample in samples]
        if name == "numbers":
            unrounded = [tuple(desc for desc, _ in pairs_of(sample.objects.by_corner())) for sample in samples]
    assert orders["numbers"] == orders["bins"] == orders["tokens"]
    assert capped["numbers"] == capped["bins"] == capped["tokens"]
    assert unrounded != orders["numbers"]  # the data does hold such objects
