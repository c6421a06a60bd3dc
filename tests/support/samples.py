"""Objects and samples made and read in few words, and JSONL files of samples; ``prepare`` as the command calls it."""

from functools import partial

import numpy as np

from coordexp.data.reading import Reading
from coordexp.data.sample import Objects
from coordexp.data.sources.jsonl.source import JsonlSource
from coordexp.data.sources.jsonl.write import format_record
from coordexp.data.sources.prepare import prepare as prepare_with
from coordexp.detection.ceiling import ceiling_of_arrays

prepare = partial(prepare_with, ceiling=ceiling_of_arrays)


def things(*pairs):
    """Objects of ``(description, box)`` pairs."""
    return Objects(tuple(desc for desc, _ in pairs), np.array([box for _, box in pairs], float).reshape(-1, 4))


def pairs_of(objects):
    """``(description, box)`` of each object."""
    boxes = map(tuple, objects.boxes_norm_xyxy.tolist())
    return list(zip(objects.descs, boxes, strict=True))


def content(sample):
    """All of a sample, comparable."""
    return sample.image, sample.width, sample.height, sample.image_id, pairs_of(sample.objects)


def read_jsonl(path, image_root, *, max_bad_fraction=0.0, accept_prequantised=False, bbox_format=None):
    """Read a JSONL file, whose images lie in the folder ``image_root``."""
    source = JsonlSource(path, image_root, path.parent / "made.json", Reading(bbox_format=bbox_format))
    return source.read(max_bad_fraction=max_bad_fraction, accept_prequantised=accept_prequantised)


def write_jsonl(samples, path, *, coord_tokens, image_root):
    """Write samples as JSONL, images relative to ``image_root``."""
    path.parent.mkdir(exist_ok=True)
    names = [sample.image.relative_to(image_root).as_posix() for sample in samples]
    lines = [
        format_record(one, image=name, coord_tokens=coord_tokens) for one, name in zip(samples, names, strict=True)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
