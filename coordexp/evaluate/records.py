"""Parsed images -> detections, files and metrics: what one decoding of a split leaves behind."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coordexp.coord_tokens.codec import decode
from coordexp.errors import DataError
from coordexp.evaluate.categories import CategoryIndex
from coordexp.evaluate.coco_eval import evaluate_boxes, to_box_px_xywh
from coordexp.evaluate.coco_files import Detection, GroundTruth
from coordexp.evaluate.parse import FAILURE_KINDS, ParsedObject, ParsedSequence
from coordexp.evaluate.score import ScoreName, score_object
from coordexp.files import write_json, write_text

BoxKind = Literal["argmax", "expected"]
BOX_KINDS: tuple[BoxKind, ...] = ("argmax", "expected")
_REPORTED = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large", "AR100")


@dataclass(frozen=True)
class ImageRecord:
    """What was parsed for one image; picklable, so that ranks can send it."""

    image_id: int
    parsed: ParsedSequence
    truncated: bool


@dataclass(frozen=True)
class Scorer:
    """How objects become detections, equal for every group.

    Attributes:
        categories: finds the category of a description.
        score: the named score.
        sizes_px: image id -> original width and height.
    """

    categories: CategoryIndex
    score: ScoreName
    sizes_px: Mapping[int, tuple[int, int]]

    def detections(self, records: Sequence[ImageRecord], kind: BoxKind) -> Iterator[Detection]:
        """Yield a detection for each object of a known category, in generated order."""
        for record in records:
            size = self.sizes_px.get(record.image_id)
            if size is None:
                raise DataError(f"image {record.image_id}: its width and height are not given")
            for item in record.parsed.objects:
                category_id = self.categories.find(item.desc)
                if category_id is not None:
                    box = to_box_px_xywh(_box_norm(item, kind), size)
                    yield Detection(record.image_id, category_id, box, score_object(item, self.score))


def write_records(folder: Path, records: Sequence[ImageRecord], scorer: Scorer) -> None:
    """Write ``detections.argmax.json``, ``detections.expected.json``, ``objects.jsonl`` and ``unknown.json``.

    ``unknown.json`` counts the descriptions that name no category, most frequent first.
    """
    for kind in BOX_KINDS:
        entries = [
            {
                "image_id": dt.image_id,
                "category_id": dt.category_id,
                "bbox": list(dt.box_px_xywh),
                "score": dt.score,
            }
            for dt in scorer.detections(records, kind)
        ]
        write_json(folder / f"detections.{kind}.json", entries)
    lines = [json.dumps(_line(record, scorer), allow_nan=False, ensure_ascii=False) + "\n" for record in records]
    write_text(folder / "objects.jsonl", "".join(lines))
    write_json(folder / "unknown.json", dict(_unknown(records, scorer).most_common()), indent=1)


def record_metrics(
    records: Sequence[ImageRecord], scorer: Scorer, ground_truth: GroundTruth, *, image_ids: Collection[int] | None
) -> dict[str, float]:
    """Return ``{box}/AP`` and the others, and the counts of one decoding; undefined values are absent.

    Args:
        records: one for each evaluated image.
        scorer: how objects become detections.
        ground_truth: the split's annotations.
        image_ids: evaluate these images only; None for all of the split.
    """
    metrics: dict[str, float] = {}
    for kind in BOX_KINDS:
        values = evaluate_boxes(ground_truth, list(scorer.detections(records, kind)), image_ids=image_ids).as_dict()
        metrics |= {f"{kind}/{name}": value for name in _REPORTED if (value := values[name]) is not None}
    failures = Counter(kind for record in records for kind in record.parsed.failures)
    num_objects = sum(len(record.parsed.objects) for record in records)
    num_pieces = num_objects + failures.total()
    metrics |= {f"malformed/{kind}": float(failures[kind]) for kind in FAILURE_KINDS}
    return metrics | {
        "num_objects": float(num_objects),
        "malformed": float(failures.total()),
        "malformed_fraction": failures.total() / num_pieces if num_pieces else 0.0,
        "unknown_category": float(_unknown(records, scorer).total()),
        "empty_images": float(sum(not record.parsed.objects for record in records)),
        "truncated_images": float(sum(record.truncated for record in records)),
    }


def _unknown(records: Sequence[ImageRecord], scorer: Scorer) -> Counter[str]:
    descriptions = (item.desc for record in records for item in record.parsed.objects)
    return Counter(desc for desc in descriptions if scorer.categories.find(desc) is None)


def _box_norm(item: ParsedObject, kind: BoxKind) -> Sequence[float]:
    return decode(item.bins).tolist() if kind == "argmax" else item.expected


def _line(record: ImageRecord, scorer: Scorer) -> dict[str, object]:
    return {
        "image_id": record.image_id,
        "objects": [
            {
                "desc": item.desc,
                "category_id": scorer.categories.find(item.desc),
                "bins": list(item.bins),
                "expected": list(item.expected),
                "score": score_object(item, scorer.score),
            }
            for item in record.parsed.objects
        ],
        "failures": list(record.parsed.failures),
        "truncated": record.truncated,
    }
