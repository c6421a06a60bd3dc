"""Samples -> lines of JSONL."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from coordexp.data.builder import JsonLinesBuilder
from coordexp.data.sample import Objects, Sample

Flag = Literal["iscrowd", "ignore"]
FLAGS: tuple[Flag, ...] = get_args(Flag)
NOT_TARGETS = "ignored_objects"
"""The key of objects that are no targets."""


def format_record(
    sample: Sample,
    *,
    image: str,
    coord_tokens: bool,
    bins: bool = False,
    not_targets: Objects | None = None,
    flags: Sequence[Flag] = (),
    extras: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Return a record as one line, without its end.

    Args:
        sample: the image with its targets.
        image: the name under which the record has the image.
        coord_tokens: whether boxes are four ``<|coord_k|>`` strings; otherwise they are numbers in [0, 1].
        bins: whether boxes are integers with ``"bbox_format": "norm1000"`` in the place of these numbers.
        not_targets: objects that are no targets. They stand under a key of their own, so that a reader which only knows
            ``objects`` does not learn them.
        flags: for each of ``not_targets``, why it is none.
        extras: further fields.
    """
    builder = JsonLinesBuilder(enabled=coord_tokens, skip_bbox_norm=True) if coord_tokens or bins else None

    def with_objects(fields: Mapping[str, object], objects: Objects) -> dict[str, object]:
        boxes = objects.boxes_norm_xyxy.tolist()
        entries = [{"desc": desc, "bbox": box} for desc, box in zip(objects.descs, boxes, strict=True)]
        record: dict[str, object] = {**fields, "objects": entries}
        return record if builder is None else builder.build(record)

    fields = {"image": image, "width": sample.width, "height": sample.height, "image_id": sample.image_id}
    record = with_objects(fields, sample.objects)
    if not_targets is not None and len(not_targets):
        entries = with_objects({}, not_targets)["objects"]
        assert isinstance(entries, list)
        record[NOT_TARGETS] = [entry | {flag: 1} for entry, flag in zip(entries, flags, strict=True)]
    return json.dumps(record | dict(extras or {}), ensure_ascii=False)
