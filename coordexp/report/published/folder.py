"""The folder of published results, and what ``numbers.json`` in it holds.

results/shapes/
    numbers.json          each group's and seed's AP, intervals, pairs, what AP50 is lost to, and how they were computed
    fingerprints.json     what decided each run; config-GROUP.yaml: its configuration
    annotations.json.gz   the ground truth
    images.json.gz        path, unit and tags of each of its images
    detections/A-s0.json.gz   of every run, the boxes by which its group is read
    detections/generated_by.json   the engine that wrote each of them, where that is known
    distributions/A-s0.json.gz   of each group's first run, the distributions over bins of some objects
    report.html, report.md and the figures
    README.md             only of results without data: what is left out, and how the check gets it

Results over a key (``published/over.py``) have instead of the first three

    numbers.json          AP, leads and their changes under each reading, and how they were computed
    fingerprints/EXPERIMENT.json   config-EXPERIMENT-GROUP.yaml
    detections/EXPERIMENT/C-s0.argmax.json.gz   of every run, each kind of boxes that a reading takes

Results without data have no ``annotations.json.gz``, and the page has no gallery: the data may be somebody else's.
"""

import gzip
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NotRequired, cast

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 on

from coordexp.config.schema.fields import Name, Seed
from coordexp.errors import ComparisonError, counted, plain, shortened, show
from coordexp.files import read_content, read_json, write_text
from coordexp.limits import MAX_SEED

NUMBERS = "numbers.json"
FINGERPRINTS = "fingerprints.json"
ANNOTATIONS = "annotations.json.gz"
IMAGES = "images.json.gz"
DETECTIONS = "detections"
DISTRIBUTIONS = "distributions"
README = "README.md"
KEPT_SUFFIXES = (".html", ".md", ".svg")
"""Of the files of a report, those that are published."""
_SAME = 1e-9  # a sum in another order differs by less

Place = tuple[object, ...]
"""Where a number stands in a tree: the keys that lead to it."""
ApBySeed = Annotated[Mapping[Annotated[int, Field(ge=0, le=MAX_SEED)], float], Field(min_length=1)]
ApByGroup = Annotated[Mapping[Name, ApBySeed], Field(min_length=1)]
"""Group -> training seed -> AP; both become names of files."""


@with_config(ConfigDict(extra="forbid"))
class Computed(TypedDict):
    """How numbers were computed from detections."""

    resamples: Annotated[int, Field(strict=True, ge=1)]
    seed: Seed
    unit_by: NotRequired[str]  # what was drawn in the place of images
    annotations_sha256: NotRequired[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]  # of results without data


@dataclass(frozen=True)
class Sources:
    """What ``numbers.json`` says of how to compute it again."""

    seeds: ApByGroup
    computed: Computed


_README = """# {title}

Published without its data: neither pictures nor annotations are in this folder, and the page has no images. If the
experiment has recorded names, units and tags of the images, they are in `images.json.gz`.

The numbers follow from the detections in `detections/` and from the annotations of {images}, which were in the file
`{file_name}`. The SHA-256 of that file, not packed, is

    {sha256}

Whoever has the file computes the numbers again, which checks its hash first:

    coordexp report --check {directory} --annotations FILE
"""


def write_readme(
    building: Path, output: Path, title: str, num_images: int, *, annotations: Path, annotations_sha256: str
) -> None:
    """Write what results without data lack, and how to compute them again.

    Args:
        building: the folder as it is being written.
        output: the folder that it becomes.
        title: of what is published.
        num_images: of the ground truth.
        annotations: the ground truth, of which the name is written.
        annotations_sha256: of the ground truth, not packed.
    """
    directory = Path(os.path.relpath(output))
    text = _README.format(
        title=title,
        images=counted(num_images, "validation image"),
        file_name=annotations.name,
        sha256=annotations_sha256,
        directory=output.name if directory.is_relative_to("..") else directory,
    )
    write_text(building / README, text)


def detections_path(directory: Path, group: str, seed: int) -> Path:
    return directory / DETECTIONS / f"{group}-s{seed}.json.gz"


def pack(source: Path, target: Path) -> None:
    """Compress a file; equal content gives equal bytes, so that a commit holds what has changed.

    A file that is packed already is packed again: it may come from a published folder.
    """
    target.write_bytes(gzip.compress(read_content(source), mtime=0))


def copy_from_here(source: Path, target: Path) -> None:
    """Copy text whose paths begin where the command was started: elsewhere no others lead anywhere.

    Data often lie in a folder beside that one, so that ``/home/me/data`` becomes ``../data``.
    """
    here = Path.cwd()
    root = Path(here.anchor)
    text = source.read_text(encoding="utf-8")
    if here != root:
        text = text.replace(f"{here}{os.sep}", "")
    if here.parent != root:  # else every path of the machine would begin with ".."
        starts_a_path = rf"(?<![\w./-]){re.escape(f'{here.parent}{os.sep}')}"
        text = re.sub(starts_a_path, f"..{os.sep}", text)
    write_text(target, text)


def keep_publishable(paths: Iterable[Path]) -> None:
    """Leave of the files of a report those that are published, with paths as :func:`copy_from_here` writes them."""
    for path in paths:
        if path.suffix in KEPT_SUFFIXES:
            copy_from_here(path, path)
        else:
            path.unlink()


def numbers_in(value: object, place: Place = ()) -> Iterator[tuple[Place, float]]:
    """Yield every number of a tree of JSON with the keys that lead to it."""
    if isinstance(value, dict):
        for key, below in cast("dict[object, object]", value).items():
            yield from numbers_in(below, (*place, key))
    elif isinstance(value, list | tuple):
        for index, below in enumerate(cast("Sequence[object]", value)):
            yield from numbers_in(below, (*place, index))
    elif isinstance(value, int | float):
        yield place, float(value)


def check_numbers(path: Path, stated: Mapping[Place, float], computed: Mapping[Place, float]) -> None:
    """Raise a ComparisonError for the first number that is stated and does not follow, or that follows otherwise.

    Args:
        path: the file of the stated numbers.
        stated: what it says.
        computed: what follows from the detections; all of it must be stated.
    """
    for place in (*stated, *(place for place in computed if place not in stated)):
        stated_value, computed_value = stated.get(place), computed.get(place)
        if stated_value is not None and computed_value is not None and abs(stated_value - computed_value) <= _SAME:
            continue
        name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)[1:]
        what_follows = "no such number" if computed_value is None else str(computed_value)
        raise ComparisonError(
            f"{path}: {plain(shortened(name))} is {show(stated_value)}, but from the detections beside it follows "
            f"{what_follows}; publish the results again"
        )


def stated_numbers(path: Path) -> dict[Place, float]:
    """Return every number of a published file by its place."""
    return dict(numbers_in(read_json(path)))


def is_over_key(directory: Path) -> bool:
    """Return whether a published folder holds results over a key."""
    numbers = read_json(directory / NUMBERS)
    return isinstance(numbers, dict) and "over" in numbers
