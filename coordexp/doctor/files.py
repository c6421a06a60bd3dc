"""The data of a run: annotations that read, images that are there and open, within seconds whatever their number."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.grammar.sequence import EncodeText
from coordexp.data.images.image_file import check_image
from coordexp.data.sample import Sample, SplitData
from coordexp.data.sources.shapes import CATEGORIES, IMAGE_SIZES_PX, ShapesSpec
from coordexp.data.splits.splits import Split, annotations_path, images_path
from coordexp.detection.categories import CategoryIndex
from coordexp.doctor.finding import Findings
from coordexp.errors import DataError
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.setup.encoding import read_split

_OPENED_IMAGES, _OPENING_SECONDS = 200, 2.0


@dataclass(frozen=True)
class DataFacts:
    """What a split tells about its sequences.

    Attributes:
        sizes_px: widths and heights that occur.
        max_objects: of an image.
        categories: names of the categories; empty where unknown.
        descriptions: that targets are written with.
    """

    sizes_px: frozenset[tuple[int, int]]
    max_objects: int
    categories: tuple[str, ...]
    descriptions: tuple[str, ...]


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
    return _read(run, split, findings)


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
    findings.fail(f"{split} descriptions", sentence)


def _read(run: ExperimentConfig, split: Split, findings: Findings) -> DataFacts | None:
    data = findings.attempt(f"{split} annotations", lambda: read_split(run, split))
    if data is None:
        return None
    findings.ok(f"{split} annotations", _counted(data))
    for rejected in data.rejected[:1]:
        findings.warn(
            f"{split} annotations",
            f"{len(data.rejected)} records will be left out, e.g. {rejected.where}: {rejected.reason}",
        )
    _open_images(split, data.samples, findings)
    descriptions = _descriptions(data.samples)
    return DataFacts(
        sizes_px=frozenset((one.width, one.height) for one in data.samples),
        max_objects=max((len(one.objects) for one in data.samples), default=0),
        categories=tuple(data.categories.values()) or descriptions,
        descriptions=descriptions,
    )


def _open_images(split: Split, samples: Sequence[Sample], findings: Findings) -> None:
    """Open a few images, evenly spread, as long as there is time; headers only."""
    check = f"{split} images"
    until = time.monotonic() + _OPENING_SECONDS
    opened = 0
    problems: list[str] = []
    for sample in samples[:: max(1, -(-len(samples) // _OPENED_IMAGES))]:
        if time.monotonic() > until:
            break
        opened += 1
        try:
            check_image(sample.image, width=sample.width, height=sample.height)
        except DataError as error:
            problems.append(str(error))
    of_all = f"all {opened:,} images" if opened == len(samples) else f"{opened:,} of {len(samples):,} images"
    if problems:
        findings.fail(check, f"{len(problems)} of {opened:,} images that were opened cannot be used: {problems[0]}")
    elif opened:
        findings.ok(check, f"{of_all} opened and of the annotated size (headers; not decoded)")


def _require_file(path: Path, key: str) -> bool:
    if not path.is_file():
        raise DataError(f"{path}: file not found; put the annotations there, or set {key}")
    with path.open("rb"):
        return True


def _require_folder(path: Path, key: str) -> bool:
    if not path.is_dir():
        raise DataError(f"{path}: no such image folder; put the images there, or set {key}")
    if next(path.iterdir(), None) is None:
        raise DataError(f"{path}: the image folder is empty; put the images there, or set {key}")
    return True


def _counted(data: SplitData) -> str:
    images, boxes = len(data.samples), data.counts["boxes"]
    categories = f", {len(data.categories)} categories" if data.categories else ""
    return f"{images:,} images, {boxes:,} boxes{categories}, each checked"


def _descriptions(samples: Sequence[Sample]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(desc for sample in samples for desc in sample.objects.descs))
