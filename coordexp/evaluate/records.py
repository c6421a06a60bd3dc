"""Parsed images -> detections, files and counts: what one decoding of a split leaves behind."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.coord_tokens.codec import decode
from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS, ParsedObject, ParsedSequence
from coordexp.detection.categories import CategoryIndex, fold
from coordexp.detection.coco_eval import to_box_px_xywh
from coordexp.detection.coco_files import Detection
from coordexp.detection.score import ScoreName, score_object
from coordexp.errors import DataError
from coordexp.evaluate.distributions import ObjectCurves
from coordexp.evaluate.object_table import ObjectTable
from coordexp.files import write_json, write_text
from coordexp.metrics import BOX_KINDS, BoxKind
from coordexp.runs.folder import DecodingFolder

_DUPLICATE_IOU = 0.9
_Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class ImageRecord:
    """What was parsed for one image; picklable, so that ranks can send it.

    Attributes:
        image_id: id in the annotation file.
        parsed: objects and failures.
        truncated: the length limit came before the end token.
        coord_mass: probability of the coord vocabulary at each position that emitted a coord token.
        curves: bin distributions of its first objects, where the image is one of those that keep them.
    """

    image_id: int
    parsed: ParsedSequence
    truncated: bool
    coord_mass: tuple[float, ...] = ()
    curves: tuple[ObjectCurves, ...] | None = None


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

    def objects(self, records: Sequence[ImageRecord]) -> ObjectTable:
        """Return the object behind each detection."""
        return ObjectTable.of(
            [
                (record.image_id, item.bins, item.expected, item.width)
                for record in records
                for item in record.parsed.objects
                if self.categories.find(item.desc) is not None
            ]
        )


def write_records(folder: Path, records: Sequence[ImageRecord], scorer: Scorer) -> None:
    """Write ``detections.argmax.json``, ``detections.expected.json``, ``objects.jsonl`` and ``unknown.json``.

    ``unknown.json`` counts the descriptions that name no category, most frequent first.
    """
    files = DecodingFolder(folder)
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
        write_json(files.detections(kind), entries)
    lines = [json.dumps(_line(record, scorer), allow_nan=False, ensure_ascii=False) + "\n" for record in records]
    write_text(files.objects, "".join(lines))
    write_json(files.unknown, dict(_unknown(records, scorer).most_common()), indent=1)


def record_counts(records: Sequence[ImageRecord], scorer: Scorer) -> dict[str, float]:
    """Return the counts of one decoding by name; undefined values are absent.

    - ``duplicates``: objects with the description, after folding, of an earlier object of their image
      and an IoU above 0.9 with it (arg-max boxes, as emitted).
    - ``coord_mass``: mean probability of the coord vocabulary where a coord token was emitted.
    """
    failures = Counter(kind for record in records for kind in record.parsed.failures)
    num_objects = sum(len(record.parsed.objects) for record in records)
    num_pieces = num_objects + failures.total()
    masses = [mass for record in records for mass in record.coord_mass]
    counts = {
        "num_objects": float(num_objects),
        "malformed": float(failures.total()),
        "malformed_fraction": failures.total() / num_pieces if num_pieces else 0.0,
        "unknown_category": float(_unknown(records, scorer).total()),
        "empty_images": float(sum(not record.parsed.objects for record in records)),
        "truncated_images": float(sum(record.truncated for record in records)),
        "duplicates": float(sum(num_duplicates(record.parsed.objects) for record in records)),
    }
    counts |= {f"malformed/{kind}": float(failures[kind]) for kind in FAILURE_KINDS}
    return counts | ({"coord_mass": math.fsum(masses) / len(masses)} if masses else {})


def num_duplicates(objects: Sequence[ParsedObject]) -> int:
    """Count objects that repeat an earlier one: the same description after folding, IoU above 0.9."""
    earlier: defaultdict[str, list[_Box]] = defaultdict(list)
    count = 0
    for item in objects:
        x1, y1, x2, y2 = item.bins
        box = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        known = earlier[fold(item.desc)]
        count += any(_iou(box, other) > _DUPLICATE_IOU for other in known)
        known.append(box)
    return count


def _iou(a: _Box, b: _Box) -> float:
    """IoU in bins, which is that in pixels; a box without area overlaps its like."""
    if a == b:
        return 1.0
    inside = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    whole = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inside
    return inside / whole if whole else 0.0


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
                "width": list(item.width),
                "score": score_object(item, scorer.score),
            }
            for item in record.parsed.objects
        ],
        "failures": list(record.parsed.failures),
        "truncated": record.truncated,
    }
