"""Samples <-> JSONL: one record an image (DESIGN 5), boxes as numbers or as coord tokens."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordexp.coord_tokens.bins import are_thin
from coordexp.data.images.image_folder import ImageFolder
from coordexp.data.rejected import Rejected, Rejections
from coordexp.data.sample import Sample
from coordexp.data.sources.jsonl_record import (
    NOT_TARGETS,
    boxes_of,
    format_record,
    parse_record,
    refuse_double_scaling,
    sample_of,
)
from coordexp.errors import DataError
from coordexp.files import write_text


@dataclass(frozen=True)
class JsonlData:
    """What a JSONL file holds.

    Attributes:
        samples: one for each usable record, in file order.
        rejected: records that were left out, with their reasons.
        counts: ``records`` of the file, ``boxes`` that became targets, ``ignored`` boxes that stand
            apart (crowd or ignored), ``thin`` targets, ``images_without_objects``,
            ``repeated_file_names``, ``rejected_records``; as :class:`coordexp.data.sources.coco.CocoData`.
    """

    samples: tuple[Sample, ...]
    rejected: tuple[Rejected, ...]
    counts: dict[str, int]


def write_jsonl(samples: Iterable[Sample], path: Path, *, coord_tokens: bool, image_root: Path | None = None) -> None:
    """Write samples as JSONL, in one step: the file is whole or absent.

    Args:
        samples: the samples.
        path: file to write.
        coord_tokens: boxes as four ``<|coord_k|>`` strings; otherwise as numbers in [0, 1].
        image_root: image paths are written relative to it; None writes absolute paths.

    Raises:
        DataError: if an image is not inside ``image_root``.
    """
    lines = (
        format_record(sample, image=_image_name(sample.image, image_root), coord_tokens=coord_tokens)
        for sample in samples
    )
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_jsonl(
    path: Path, image_root: Path, *, max_bad_fraction: float = 0.0, accept_prequantised: bool = False
) -> JsonlData:
    """Read a JSONL file; blank lines are skipped.

    Args:
        path: the file.
        image_root: folder of the images; a record's path is relative to it, or absolute and inside.
        max_bad_fraction: largest accepted fraction of bad records.
        accept_prequantised: whether boxes may be coord tokens or bins: say
            ``custom.coord_tokens.enabled and custom.coord_tokens.skip_bbox_norm``.

    Raises:
        DataError: if the file is missing or holds no usable record, more than the accepted fraction
            of its records is bad (it names their lines and reasons), or boxes are bins already and
            would be scaled a second time.
    """
    folder = ImageFolder(image_root)
    bad = Rejections(path)
    samples: dict[int, Sample] = {}
    num_records = num_ignored = 0
    for number, line in _lines(path):
        num_records += 1
        boxes = None
        try:
            record = parse_record(line)
            boxes = boxes_of(record)
            sample = sample_of(record, boxes, folder)
            num_not_targets = len(boxes_of(record, key=NOT_TARGETS).objects)
            if sample.image_id in samples:
                raise DataError(f"image_id {sample.image_id} was used before")
        except DataError as error:
            bad.add("records", f"line {number}", str(error))
        else:
            samples[sample.image_id] = sample
            num_ignored += num_not_targets
        if boxes is not None:
            refuse_double_scaling(boxes, f"{path}: line {number}", accept_prequantised=accept_prequantised)
    rejected = bad.accept({"records": num_records}, max_bad_fraction=max_bad_fraction)
    if not samples:
        raise DataError(f"{path}: there is no record to use; expected one JSON object a line")
    counts = {"records": num_records, "ignored": num_ignored, "rejected_records": len(rejected)}
    return JsonlData(tuple(samples.values()), rejected, counts | _counts(samples.values()))


def _counts(samples: Iterable[Sample]) -> dict[str, int]:
    samples = list(samples)
    boxes = [item.box_norm_xyxy for sample in samples for item in sample.objects]
    return {
        "boxes": len(boxes),
        "thin": int(are_thin(boxes).sum()),
        "images_without_objects": sum(1 for sample in samples if not sample.objects),
        "repeated_file_names": len(samples) - len({sample.image for sample in samples}),
    }


def _image_name(image: Path, image_root: Path | None) -> str:
    if image_root is None:
        return image.absolute().as_posix()
    if not image.is_relative_to(image_root):
        raise DataError(f"{image}: the image is not inside {image_root}")
    return image.relative_to(image_root).as_posix()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as handle:
            yield from ((number, line) for number, line in enumerate(handle, start=1) if line.strip())
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
