"""The data of a run: annotations that read, images that are there and open, within seconds whatever their number."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.grammar.write import EncodeText
from coordexp.data.images.image_file import check_image
from coordexp.data.images.image_folder import ImageFolder, relative_name
from coordexp.data.sample import Sample
from coordexp.data.sources.coco import CocoData
from coordexp.data.sources.coco_rows import ImageRow
from coordexp.data.sources.jsonl_record import boxes_of, parse_record, sample_of
from coordexp.data.sources.shapes import CATEGORIES, IMAGE_SIZES_PX, ShapesSpec
from coordexp.data.splits.splits import Split, annotations_path, images_path
from coordexp.detection.categories import CategoryIndex
from coordexp.doctor.annotations import Head, read_head
from coordexp.doctor.finding import Findings
from coordexp.errors import DataError
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.setup.encoding import read_split

WHOLE_FILE_BYTES = 24 * 2**20  # COCO's val2017 has 20 MB
_OPENED_IMAGES, _OPENING_SECONDS = 200, 2.0
_JSONL_LINES = 2000

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class DataFacts:
    """What a split tells about its sequences.

    Attributes:
        sizes_px: widths and heights that occur.
        max_objects: of an image; None where the file was not read whole.
        categories: names of the categories; empty where unknown.
        descriptions: that targets are written with; of a file that was not read whole, those that may be.
    """

    sizes_px: frozenset[tuple[int, int]]
    max_objects: int | None
    categories: tuple[str, ...]
    descriptions: tuple[str, ...]


@dataclass(frozen=True)
class _Picture:
    path: Path
    width: int
    height: int


def examine_split(run: ExperimentConfig, split: Split, findings: Findings) -> DataFacts | None:
    """Check the annotations and images of a split; None where nothing could be read."""
    if run.data.format == "shapes":
        spec = ShapesSpec(**run.data.shapes.model_dump())
        count = spec.num_train if split == "train" else spec.num_val
        findings.ok(
            f"{split} data",
            f"{count:,} images will be generated in {ExperimentFolder.of(run).data}, unless they are there",
        )
        return DataFacts(frozenset(IMAGE_SIZES_PX), spec.max_objects, CATEGORIES, CATEGORIES)
    annotations = annotations_path(run.data, split, data_dir=ExperimentFolder.of(run).data)
    images = images_path(run.data, split, data_dir=ExperimentFolder.of(run).data)
    found = findings.attempt(f"{split} annotations", lambda: _require_file(annotations, f"data.{split}_annotations"))
    folder = findings.attempt(f"{split} images", lambda: _require_folder(images, f"data.{split}_images"))
    if found is None or folder is None:
        return None
    if annotations.suffix != ".jsonl" and found > WHOLE_FILE_BYTES:
        return _large(run, split, annotations, folder, findings)
    if annotations.suffix == ".jsonl" and split == "train" and found > WHOLE_FILE_BYTES:
        return _large_jsonl(split, annotations, folder, findings)
    return _whole(run, split, findings)


def merged(train: DataFacts | None, val: DataFacts | None) -> DataFacts | None:
    """Return what is known of both splits' sequences; None where training data is unknown."""
    if train is None or val is None:
        return train
    return DataFacts(
        train.sizes_px | val.sizes_px,
        train.max_objects,
        train.categories or val.categories,
        tuple(dict.fromkeys(train.descriptions + val.descriptions)),
    )


def check_categories(run: ExperimentConfig, facts: DataFacts) -> None:
    """Check that categories have distinct names, and that aliases stand for one of them.

    Raises:
        DataError: if they do not.
    """
    CategoryIndex(dict(enumerate(facts.categories)), aliases=run.evaluation.aliases)


def examine_descriptions(split: Split, facts: DataFacts, encode: EncodeText, findings: Findings) -> None:
    """Check that descriptions can be written as tokens, which a run would find out before it trains."""
    problems: list[str] = []
    for text in facts.descriptions:
        try:
            encode(text)
        except DataError as error:
            problems.append(str(error))
    if not problems:
        return
    sentence = f"{len(problems)} of {len(facts.descriptions)} descriptions cannot be used: {problems[0]}"
    if facts.max_objects is None:  # a category of which there may be no box
        findings.warn(f"{split} descriptions", f"{sentence}, if an object has it")
    else:
        findings.fail(f"{split} descriptions", sentence)


def _whole(run: ExperimentConfig, split: Split, findings: Findings) -> DataFacts | None:
    data = findings.attempt(f"{split} annotations", lambda: read_split(run, split))
    if data is None:
        return None
    findings.ok(f"{split} annotations", _counted(data))
    for rejected in data.rejected[:1]:
        findings.warn(
            f"{split} annotations",
            f"{len(data.rejected)} records will be left out, e.g. {rejected.where}: {rejected.reason}",
        )
    _open_samples(split, data.samples, findings)
    descriptions = _descriptions(data.samples)
    return DataFacts(
        sizes_px=frozenset((one.width, one.height) for one in data.samples),
        max_objects=max((len(one.objects) for one in data.samples), default=0),
        categories=tuple(data.categories.values()) or descriptions,
        descriptions=descriptions,
    )


def _large(
    run: ExperimentConfig, split: Split, annotations: Path, folder: ImageFolder, findings: Findings
) -> DataFacts | None:
    check = f"{split} annotations"
    head = findings.attempt(check, lambda: read_head(annotations))
    if head is None:
        return None
    size = annotations.stat().st_size / 2**20
    images = f"{len(head.images):,} images" if head.all_images else f"the first {len(head.images):,} images"
    findings.ok(
        check,
        f"{annotations.name} ({size:,.0f} MiB): read {images}, the first {head.num_annotations:,} annotations and "
        f"{len(head.categories)} categories; the other annotations were not read",
    )
    _judge_bad(run, check, annotations, head, findings)
    root = images_path(run.data, split, data_dir=ExperimentFolder.of(run).data)
    usable = _named(run, split, head.images, root, folder, findings)
    pictures = [_Picture(root / name, row.width, row.height) for name, row in _some(usable)]
    _open_images(split, pictures, num_all=len(usable), findings=findings)
    names = tuple(head.categories)
    return DataFacts(frozenset((row.width, row.height) for row in head.images), None, names, names)


def _judge_bad(run: ExperimentConfig, check: str, path: Path, head: Head, findings: Findings) -> None:
    if not head.bad:
        return
    read = len(head.images) + head.num_annotations + len(head.bad)
    sentence = f"{path}: {len(head.bad)} of the {read:,} entries that were read cannot be used, e.g. {head.bad[0]}"
    # A fraction of a head says little of the whole file, unless no bad record is accepted at all.
    if run.data.max_bad_fraction == 0:
        findings.fail(check, f"{sentence}; correct it, or raise data.max_bad_fraction")
    else:
        findings.warn(check, sentence)


def _named(
    run: ExperimentConfig,
    split: Split,
    rows: Sequence[ImageRow],
    root: Path,
    folder: ImageFolder,
    findings: Findings,
) -> list[tuple[str, ImageRow]]:
    """Return the images whose files are there, by names relative to their folder."""
    usable: list[tuple[str, ImageRow]] = []
    problems: list[str] = []
    for row in rows:
        try:
            name = relative_name(row.file_name, root)
            folder.find(name)
            usable.append((name, row))
        except DataError as error:
            problems.append(str(error))
    if problems:
        sentence = f"{len(problems):,} of {len(rows):,} images cannot be used: {problems[0]}"
        if len(problems) > run.data.max_bad_fraction * len(rows):
            findings.fail(f"{split} images", f"{sentence}; correct data.{split}_images")
        else:
            findings.warn(f"{split} images", f"{sentence}; within data.max_bad_fraction")
    return usable


def _large_jsonl(split: Split, annotations: Path, folder: ImageFolder, findings: Findings) -> DataFacts | None:
    def read() -> list[Sample]:
        with annotations.open("rb") as handle:
            lines = [line for line in islice(handle, _JSONL_LINES) if line.strip()]
        samples: list[Sample] = []
        for number, line in enumerate(lines, start=1):
            try:
                record = parse_record(line)
                samples.append(sample_of(record, boxes_of(record), folder))
            except DataError as error:
                raise DataError(f"{annotations}: line {number}: {error}") from None
        return samples

    samples = findings.attempt(f"{split} annotations", read)
    if samples is None:
        return None
    findings.ok(f"{split} annotations", f"{annotations.name}: read the first {len(samples):,} lines, not the others")
    _open_samples(split, samples, findings)
    names = _descriptions(samples)
    return DataFacts(frozenset((one.width, one.height) for one in samples), None, names, names)


def _open_samples(split: Split, samples: Sequence[Sample], findings: Findings) -> None:
    pictures = [_Picture(one.image, one.width, one.height) for one in _some(samples)]
    _open_images(split, pictures, num_all=len(samples), findings=findings)


def _open_images(split: Split, pictures: Sequence[_Picture], *, num_all: int, findings: Findings) -> None:
    """Open images as long as there is time; headers only."""
    check = f"{split} images"
    until = time.monotonic() + _OPENING_SECONDS
    opened = 0
    problems: list[str] = []
    for picture in pictures:
        if time.monotonic() > until:
            break
        opened += 1
        try:
            check_image(picture.path, width=picture.width, height=picture.height)
        except DataError as error:
            problems.append(str(error))
    of_all = f"all {opened:,} images" if opened == num_all else f"{opened:,} of {num_all:,} images"
    if problems:
        findings.fail(check, f"{len(problems)} of {opened:,} images that were opened cannot be used: {problems[0]}")
    elif opened:
        findings.ok(check, f"{of_all} opened and of the annotated size (headers; not decoded)")


def _some(items: Sequence[_Item]) -> Sequence[_Item]:
    """Return a few of many, evenly spread."""
    return items[:: max(1, -(-len(items) // _OPENED_IMAGES))]


def _require_file(path: Path, key: str) -> int:
    if not path.is_file():
        raise DataError(f"{path}: file not found; put the annotations there, or set {key}")
    with path.open("rb"):
        return path.stat().st_size


def _require_folder(path: Path, key: str) -> ImageFolder:
    if not path.is_dir():
        raise DataError(f"{path}: no such image folder; put the images there, or set {key}")
    if next(path.iterdir(), None) is None:
        raise DataError(f"{path}: the image folder is empty; put the images there, or set {key}")
    return ImageFolder(path)


def _counted(data: CocoData) -> str:
    images, boxes = len(data.samples), data.counts["boxes"]
    categories = f", {len(data.categories)} categories" if data.categories else ""
    return f"{images:,} images, {boxes:,} boxes{categories}, each checked"


def _descriptions(samples: Sequence[Sample]) -> tuple[str, ...]:
    return tuple({item.desc: None for sample in samples for item in sample.objects})
