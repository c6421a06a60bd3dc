"""Mutated COCO and LVIS documents: no exception but DataError, nothing outside the folder, no box outside the image."""

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordexp.data.prepare import PrepareSpec
from coordexp.data.sources.coco import read_coco
from coordexp.errors import DataError
from tests.support.samples import pairs_of, prepare

_KEYS = [
    "id", "image_id", "category_id", "bbox", "iscrowd", "ignore", "segmentation", "file_name", "width", "height",
    "name", "coco_url", "neg_category_ids", "not_exhaustive_category_ids", "frequency", "images", "annotations",
    "categories",
]  # fmt: skip
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=6)
    | st.sampled_from([0, 1, 2, 3, 7, -1, 2**63, -(2**64), 1e308, 1e-320])
    | st.sampled_from(["a.jpg", "../a.jpg", "http://x/y/a.jpg", "r"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip
_SETTINGS = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def mutated(data, document):
    """Return a copy with some values replaced, removed or repeated, anywhere in it."""
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 4))):
        holder = document
        while True:
            below = [item for item in (holder.values() if isinstance(holder, dict) else holder) if _is_holder(item)]
            if not below or data.draw(st.integers(0, 2)) == 0:
                break
            holder = data.draw(st.sampled_from(below))
        if isinstance(holder, dict):
            key = data.draw(st.sampled_from(sorted(holder) + _KEYS))
            if data.draw(st.booleans()):
                holder[key] = data.draw(_JUNK)
            else:
                holder.pop(key, None)
        elif holder and data.draw(st.booleans()):
            holder[data.draw(st.integers(0, len(holder) - 1))] = data.draw(_JUNK)
        else:
            holder.append(data.draw(_JUNK | st.sampled_from(holder or [None])))
    return document


def _is_holder(value):
    return isinstance(value, dict | list) and (bool(value) or isinstance(value, dict))


def bytes_of(data, document):
    content = json.dumps(document, indent=data.draw(st.sampled_from([None, 1]))).encode()
    if data.draw(st.integers(0, 3)) == 0:
        at = data.draw(st.integers(0, len(content)))
        content = (
            content[:at] + data.draw(st.binary(max_size=3)) + content[at + data.draw(st.sampled_from([0, 1, 99])) :]
        )
    return content


@_SETTINGS
@given(data=st.data(), fraction=st.sampled_from([0.0, 1.0]))
def test_mutated_documents_raise_nothing_but_data_error(coco, data, fraction):
    coco.annotations.write_bytes(bytes_of(data, mutated(data, coco.document)))
    problem = None
    try:
        found = read_coco(coco.annotations, coco.images, max_bad_fraction=fraction)
        for sample in found.samples:
            assert sample.image.resolve().is_relative_to(coco.images)
            for desc, (x1, y1, x2, y2) in pairs_of(sample.objects):
                assert 0 <= x1 < x2 <= 1
                assert 0 <= y1 < y2 <= 1
                assert desc.strip()
        assert len({sample.image_id for sample in found.samples}) == len(found.samples)
        assert found.counts["boxes"] == sum(len(sample.objects) for sample in found.samples)
        for bad in found.rejected:
            assert bad.where.startswith(f"{coco.annotations}: ")
    except DataError as error:
        problem = str(error)
    assert problem is None or problem.startswith(str(coco.annotations))
    assert problem is None or len(problem) < 5000


@_SETTINGS
@given(data=st.data(), fraction=st.sampled_from([0.0, 1.0]))
def test_prepare_raises_nothing_but_data_error(coco, data, fraction):
    lvis = {
        "neg_category_ids": [1],
        "not_exhaustive_category_ids": [],
        "coco_url": "http://x/y/a.jpg",
        "frequency": "f",
    }
    document = mutated(data, coco.document)
    dialect = data.draw(st.sampled_from(["coco", "lvis"]))
    if dialect == "lvis":
        for section in ("images", "categories"):
            entries = document.get(section)
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict):
                    entry.update({key: value for key, value in lvis.items() if key not in entry})
    coco.annotations.write_bytes(bytes_of(data, document))
    output = coco.root / "out"
    spec = PrepareSpec(
        coco.annotations, coco.images, output, dialect=dialect, max_bad_fraction=fraction,
        coord_tokens=data.draw(st.booleans()), max_objects=data.draw(st.sampled_from([None, 1])),
        check_images=data.draw(st.sampled_from(["none", "names", "headers"])),
    )  # fmt: skip
    problem = None
    try:
        manifest = prepare(spec).manifest
        lines = (output / "samples.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(lines) == manifest["written"]["images"]
        (output / "samples.jsonl").unlink()
        (output / "manifest.json").unlink()
        output.rmdir()
    except DataError as error:
        problem = str(error)
    assert problem is None or problem.startswith(str(coco.annotations))
    assert not output.exists()
    assert list(coco.root.glob(".*")) == []


def test_a_reader_that_lets_a_type_error_through_is_caught(coco, monkeypatch):
    """Negative control: the property fails for a reader with one unchecked field."""
    coco.document["images"][0]["width"] = "100"
    monkeypatch.setattr("coordexp.data.sources.coco_file.UNFIT", UnicodeEncodeError)
    with pytest.raises(msgspec.ValidationError):
        read_coco(coco.save().annotations, coco.images)
