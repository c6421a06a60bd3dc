"""Samples <-> JSONL: one record an image (DESIGN 5), boxes as numbers or as coord tokens."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordexp.coord_tokens.codec import encode, ints_to_tokens
from coordexp.coord_tokens.validator import record_boxes
from coordexp.data.image import size_problem
from coordexp.data.image_folder import ImageFolder
from coordexp.data.json_file import is_text, kind_of, show
from coordexp.data.rejected import Rejected, Rejections
from coordexp.data.sample import DetectionObject, Sample
from coordexp.errors import DataError
from coordexp.files import write_text

_MAX_ID = 2**63 - 1


@dataclass(frozen=True)
class JsonlData:
    """What a JSONL file holds.

    Attributes:
        samples: one for each usable record, in file order.
        rejected: records that were left out, with their reasons.
    """

    samples: tuple[Sample, ...]
    rejected: tuple[Rejected, ...]


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
        json.dumps(_record(sample, image_root, coord_tokens=coord_tokens), ensure_ascii=False) for sample in samples
    )
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_jsonl(path: Path, image_root: Path, max_bad_fraction: float = 0.0) -> JsonlData:
    """Read a JSONL file; blank lines are skipped.

    Args:
        path: the file.
        image_root: folder of the images; a record's path is relative to it, or absolute and inside.
        max_bad_fraction: largest accepted fraction of bad records.

    Raises:
        DataError: if the file is missing or holds no usable record, or more than the accepted
            fraction of its records is bad; it names their lines and reasons.
    """
    folder = ImageFolder(image_root)
    bad = Rejections(path)
    samples: dict[int, Sample] = {}
    num_records = 0
    for number, line in _lines(path):
        num_records += 1
        try:
            sample = _sample(line, folder)
            if sample.image_id in samples:
                raise DataError(f"image_id {sample.image_id} was used before")
            samples[sample.image_id] = sample
        except DataError as error:
            bad.add("records", f"line {number}", str(error))
    rejected = bad.accept({"records": num_records}, max_bad_fraction=max_bad_fraction)
    if not samples:
        raise DataError(f"{path}: there is no record to use; expected one JSON object a line")
    return JsonlData(samples=tuple(samples.values()), rejected=rejected)


def _record(sample: Sample, image_root: Path | None, *, coord_tokens: bool) -> dict[str, object]:
    return {
        "image": _image_name(sample.image, image_root),
        "width": sample.width,
        "height": sample.height,
        "image_id": sample.image_id,
        "objects": [
            {
                "desc": item.desc,
                "bbox": ints_to_tokens(encode(item.box_norm_xyxy).tolist()) if coord_tokens else item.box_norm_xyxy,
            }
            for item in sample.objects
        ],
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


def _sample(line: bytes, folder: ImageFolder) -> Sample:
    record = _parse(line)
    width, height = (_whole(record, name, lowest=1) for name in ("width", "height"))
    problem = size_problem(width, height)
    if problem is not None:
        raise DataError(problem)
    found = record_boxes(record)
    return Sample(
        image=folder.path_of(record.get("image")),
        width=width,
        height=height,
        image_id=_whole(record, "image_id", lowest=-_MAX_ID),
        objects=tuple(
            DetectionObject(_desc(item, index), box)
            for index, (item, box) in enumerate(zip(found.objects, found.boxes_norm_xyxy, strict=True))
        ),
    )


def _parse(line: bytes) -> dict[str, object]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"column {error.colno}: not valid JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"the record is {kind_of(record)}, expected an object")
    return record


def _whole(record: dict[str, object], name: str, *, lowest: int) -> int:
    value = record.get(name)
    if type(value) is not int or not lowest <= value <= _MAX_ID:
        raise DataError(f"{name} is {show(value)}, expected a whole number{' of pixels' if lowest == 1 else ''}")
    return value


def _desc(item: dict[str, object], index: int) -> str:
    desc = item.get("desc")
    if not isinstance(desc, str) or not is_text(desc):
        raise DataError(f"objects[{index}]: desc is {show(desc)}, expected text")
    return desc
