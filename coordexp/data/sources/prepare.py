"""COCO or LVIS annotations -> a folder with JSONL and a manifest, in one step: the folder is whole or absent.

The manifest says what went in, what came out, and what was left out and why.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordexp.coord_tokens.bins import CODEC_VERSION, NUM_BINS
from coordexp.data.images.headers import headers_once
from coordexp.data.reading import Reading
from coordexp.data.sample import Objects, Ordering, Sample
from coordexp.data.sets.split_arrays import CROWD, IGNORED, TARGET, SplitArrays
from coordexp.data.sources.coco.source import CocoSource, LvisSource
from coordexp.data.sources.jsonl.write import format_record
from coordexp.data.sources.read_split import ReadSplit
from coordexp.errors import DataError
from coordexp.files import kept_model, replace_directory, sha256_of_file, write_json, write_text
from coordexp.stages import ReportStage, report_stage

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"

Manifest: TypeAlias = dict[str, object]
Dialect = Literal["coco", "lvis"]
CheckImages = Literal["none", "names"]
# Measures the codec ceiling. Only coordexp.detection can do that, and it imports this package: so the caller passes it.
Ceiling = Callable[[SplitArrays, Mapping[int, str]], float | None]

_SOURCES: dict[Dialect, type[CocoSource]] = {"coco": CocoSource, "lvis": LvisSource}
_VERSION = 1  # of the manifest
_RECORD_VERSION = 2  # raised when equal input would give other lines
_CAP_RULE = "of more than max_objects the largest boxes stay, the earlier of equals; the rest is capped_objects"
_IMAGES_BETWEEN_REPORTS = 2048


@dataclass(frozen=True)
class PrepareSpec:
    """What to prepare.

    Attributes:
        annotations: the annotation file.
        images: folder of the pictures.
        output: folder to make, with ``samples.jsonl`` and ``manifest.json``.
        dialect: format of the annotations.
        coord_tokens: whether boxes are coord tokens; otherwise they are numbers in [0, 1].
        bins: whether boxes are integers in 0..999 in the place of these numbers.
        ordering: of the objects.
        seed: of ``ordering: random``, together with the image id.
        max_objects: objects of an image at most, the largest ones; None for all.
        max_bad_fraction: largest accepted fraction of bad images, annotations or categories.
        check_images: ``names`` checks by one listing of each folder that every file is there; with ``none``, the images
            may be elsewhere.
        reading: how annotations are read if they do not say it themselves.
    """

    annotations: Path
    images: Path
    output: Path
    dialect: Dialect = "coco"
    coord_tokens: bool = False
    bins: bool = False
    ordering: Ordering = "top_left"
    seed: int = 0
    max_objects: int | None = None
    max_bad_fraction: float = 0.0
    check_images: CheckImages = "names"
    reading: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Prepared:
    """A prepared data set; ``is_new`` is False if it was there, made of the same annotations and options."""

    manifest: Manifest
    is_new: bool


def prepare(spec: PrepareSpec, *, ceiling: Ceiling, progress: ReportStage = report_stage) -> Prepared:
    """Write the data set; a picture is opened only if the annotations lack its size.

    Args:
        spec: what to prepare.
        ceiling: measures the codec ceiling.
        progress: called with a stage (reading, writing), how much of it is done and how much there is.

    Raises:
        DataError: if the annotations cannot be used, too many records are bad, or the output is something else.
    """
    made_from = _identity(spec)
    existing_manifest = _existing(spec.output, made_from)
    if existing_manifest is not None:
        return Prepared(existing_manifest, is_new=False)
    num_bytes = spec.annotations.stat().st_size
    source = _SOURCES[spec.dialect](
        spec.annotations, spec.images, reading=spec.reading, checks_images=spec.check_images != "none"
    )
    with headers_once():
        read = source.read_split(max_bad_fraction=spec.max_bad_fraction)
    progress("reading", num_bytes, num_bytes)
    with replace_directory(spec.output) as building:
        write_text(building / SAMPLES, "".join(f"{line}\n" for line in _lines(read, spec, progress)))
        samples_sha256 = sha256_of_file(building / SAMPLES)
        codec_ceiling = ceiling(read.arrays, read.categories)
        manifest = _manifest(made_from, read, spec, samples_sha256=samples_sha256, ceiling=codec_ceiling)
        write_json(building / MANIFEST, manifest, indent=1)
    return Prepared(manifest, is_new=True)


def _identity(spec: PrepareSpec) -> Manifest:
    """Return the part of a manifest that says what the data were made from: equal identities, equal data."""
    try:
        annotations_sha256 = sha256_of_file(spec.annotations)
    except OSError as error:
        raise DataError(f"{spec.annotations}: the file cannot be read ({error.strerror})") from None
    options: Manifest = {
        "boxes": _box_form(spec),
        "ordering": spec.ordering,
        "seed": spec.seed if spec.ordering == "random" else None,
        "max_objects": spec.max_objects,
        "check_images": spec.check_images,
    }
    if spec.reading != Reading():
        options |= asdict(spec.reading)
    codec: Manifest = {
        "version": CODEC_VERSION,
        "num_bins": NUM_BINS,
        "encode": f"round(c * {NUM_BINS}), clamped to 0..{NUM_BINS - 1}; a box is at least one bin wide and high",
        "decode": f"k / {NUM_BINS}",
    }
    return {
        "manifest_version": _VERSION,
        "format": spec.dialect,
        "annotations_sha256": annotations_sha256,
        "options": options,
        "codec": codec,
        "shard_version": _RECORD_VERSION,
    }


def _box_form(spec: PrepareSpec) -> str:
    if spec.coord_tokens:
        return "coord_tokens"
    return "bins" if spec.bins else "numbers"


def _existing(output: Path, made_from: Manifest) -> Manifest | None:
    """Return the manifest of a data set that is there, made of the same; None for a new or empty folder.

    Raises:
        DataError: if something else is there: it may be a user's work, or in use by a run.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return None
    manifest = kept_model(Manifest, output / MANIFEST)
    if manifest is None:
        raise DataError(f"{output}: exists and is no prepared data set; expected a new or empty folder")
    is_same = all(manifest.get(key) == value for key, value in made_from.items())
    if not is_same or not (output / SAMPLES).is_file():
        raise DataError(
            f"{output}: holds a data set made from other annotations or with other options; remove it, or choose "
            "another folder"
        )
    return manifest


def _lines(read: ReadSplit, spec: PrepareSpec, progress: ReportStage) -> Iterator[str]:
    """Yield the line of each image."""
    arrays = read.arrays
    for image in range(len(arrays)):
        rows = slice(*arrays.first[image : image + 2].tolist())
        descs = tuple(arrays.texts[text] for text in arrays.text_index[rows].tolist())
        objects = Objects(descs, arrays.boxes_norm_xyxy[rows])
        kinds = arrays.kinds[rows]
        image_id = int(arrays.image_ids[image])
        targets = _ordered_targets(objects.take(np.flatnonzero(kinds == TARGET)), spec, image_id)
        not_targets = np.flatnonzero((kinds == CROWD) | (kinds == IGNORED))
        width, height = arrays.sizes_px[image].tolist()
        yield format_record(
            Sample(spec.images / arrays.names[image], width, height, image_id, targets),
            image=arrays.names[image],
            coord_tokens=spec.coord_tokens,
            bins=spec.bins,
            not_targets=objects.take(not_targets),
            flags=["iscrowd" if kind == CROWD else "ignore" for kind in kinds[not_targets].tolist()],
            extras={name: lists[image] for name, lists in arrays.lists.items()},
        )
        if image % _IMAGES_BETWEEN_REPORTS == 0 or image + 1 == len(arrays):
            progress("writing", image + 1, len(arrays))


def _ordered_targets(targets: Objects, spec: PrepareSpec, image_id: int) -> Objects:
    """Return the targets of an image that are written, in their order."""
    if spec.max_objects is not None:
        targets = targets.largest(spec.max_objects)
    if spec.ordering in ("top_left", "left_top"):
        # Unrounded: whoever reads the file may not round.
        return targets.by_corner(spec.ordering)
    return targets.ordered(spec.ordering, seed=(spec.seed, image_id % 2**64))


def _manifest(
    made_from: Manifest, read: ReadSplit, spec: PrepareSpec, *, samples_sha256: str, ceiling: float | None
) -> Manifest:
    """Return the manifest: what went in, what came out, and what was left out and why.

    Args:
        made_from: the identity of the data.
        read: the split.
        spec: what was prepared.
        samples_sha256: hash of the lines.
        ceiling: AP of the ground truth after encoding and decoding; None if undefined.
    """
    arrays = read.arrays
    is_target = arrays.kinds == TARGET
    image_of_target = np.repeat(np.arange(len(arrays)), np.diff(arrays.first))[is_target]
    num_targets = np.bincount(image_of_target, minlength=len(arrays))  # of each image
    num_capped = np.zeros_like(num_targets)
    if spec.max_objects is not None:
        num_capped = (num_targets - spec.max_objects).clip(0)
    written = {
        "images": len(arrays),
        "objects": int((num_targets - num_capped).sum()),
        "not_targets": read.counts["crowd"] + read.counts["ignored"],
        "capped_images": int((num_capped > 0).sum()),
        "capped_objects": int(num_capped.sum()),
    }
    inputs: Manifest = {
        "annotations": spec.annotations.name,
        "bytes": spec.annotations.stat().st_size,
        "image_root": str(spec.images.absolute()),
    }
    return {
        **made_from,
        "inputs": inputs,
        "outputs": {SAMPLES: {"sha256": samples_sha256, "records": written["images"]}},
        "codec_ceiling": {"AP": ceiling, "images": written["images"], "how": "exact, every image and category"},
        "counts": {name: read.counts[name] for name in sorted(read.counts)},
        "written": {name: written[name] for name in sorted(written)},
        "cap_rule": _CAP_RULE,
        "categories": _categories(read, is_target, image_of_target),
        "max_bad_fraction": spec.max_bad_fraction,
        "rejected": [asdict(record) for record in read.rejected],
        "warnings": [*read.warnings, *read.notes],
    }


def _categories(
    read: ReadSplit, is_target: NDArray[np.bool_], image_of_target: NDArray[np.int64]
) -> list[dict[str, object]]:
    """Describe each category, with its images and its targets before any cap."""
    category_ids = read.arrays.category_ids[is_target].tolist()
    num_objects = Counter(category_ids)
    images_of_categories = set(zip(category_ids, image_of_target.tolist(), strict=True))
    num_images = Counter(category_id for category_id, _ in images_of_categories)
    categories: list[dict[str, object]] = []
    for category_id, name in sorted(read.categories.items()):
        counts = {"images": num_images[category_id], "objects": num_objects[category_id]}
        categories.append({"id": category_id, "name": name, **read.category_fields[category_id], **counts})
    return categories
