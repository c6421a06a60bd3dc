"""Results to commit: an experiment's numbers with the detections they follow from, and the check that they do.

results/shapes/
    numbers.json          each group's and seed's AP, intervals, pairs, what AP50 is lost to, and how they were computed
    fingerprints.json     what decided each run; config-GROUP.yaml: its configuration
    annotations.json.gz   the ground truth
    images.json.gz        path, unit and tags of each of its images
    detections/A-s0.json.gz   of every run, the boxes by which its group is read
    detections/generated_by.json   the engine that wrote each of them, where that is known
    distributions/A-s0.json.gz   of each group's first run, the distributions over bins of some objects
    report.html, report.md and the figures
"""

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NotRequired, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 on

from coordexp.config.schema.fields import Name, Seed
from coordexp.data.units import UnitRule
from coordexp.detection.decomposition import MEASURES
from coordexp.detection.forms.results import read_results
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import ComparisonError, plain, shortened, show
from coordexp.files import JsonValue, first_problem, read_json, read_model, replace_directory, write_json, write_text
from coordexp.limits import MAX_SEED
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, NAMES, Artifacts, final_detections
from coordexp.report.study.data import ExperimentData, RunRecord, missing_runs
from coordexp.report.study.foreign import foreign_rows
from coordexp.report.study.inputs import Settings
from coordexp.report.study.study import Study
from coordexp.report.text.records import to_numbers
from coordexp.report.write import study_of, write_report, writing
from coordexp.runs.folder import GENERATED_BY

NUMBERS, ANNOTATIONS, DETECTIONS, DISTRIBUTIONS = "numbers.json", "annotations.json.gz", "detections", "distributions"
IMAGES = "images.json.gz"
_KEPT = (".html", ".md", ".svg")  # of the files of a report
_SAME = 1e-9  # a sum in another order differs by less
_HEADLINE = ("AP", "interval")  # of a group
_Place = tuple[object, ...]  # of a number: the keys that lead to it
_Ap = Annotated[Mapping[Annotated[int, Field(ge=0, le=MAX_SEED)], float], Field(min_length=1)]  # by seed


@with_config(ConfigDict(extra="forbid"))
class _Computed(TypedDict):
    resamples: Annotated[int, Field(strict=True, ge=1)]
    seed: Seed
    unit_by: NotRequired[str]  # what was drawn in the place of images


@dataclass(frozen=True)
class _Sources:
    """What ``numbers.json`` says of how to compute it again; groups and seeds become names of files."""

    seeds: Annotated[Mapping[Name, _Ap], Field(min_length=1)]  # AP
    computed: _Computed  # the bootstrap


def _numbers(study: Study) -> dict[str, object]:
    """Return what ``numbers.json`` holds of a study that has a comparison."""
    comparison, parts = study.comparison, study.decomposition
    assert comparison is not None
    lost = {} if parts is None else {**parts.value, **{f"{p.a} - {p.b}": p.difference for p in parts.pairs}}
    return {
        **json.loads(to_numbers(comparison, study.data)),
        "seeds": {group: {k: it.value for k, it in ap.items()} for group, ap in comparison.value_by_seed.items()},
        "decomposition": {
            name: {m.name: list(astuple(found[m.name])) for m in MEASURES if m.name in found}
            for name, found in lost.items()
        },
        "computed": {
            "resamples": comparison.resamples,
            "seed": comparison.seed,
            **({} if study.units is None else {"unit_by": study.units.rule}),
        },
    }


def publish(study: Study, artifacts: Artifacts, output: Path) -> None:
    """Write what is worth committing of an experiment; a folder of that name is replaced as a whole."""
    data = study.data
    if study.comparison is None or missing_runs(data):
        raise ComparisonError(f"{data.title} is not whole, and so not published: {' '.join(study.missing)}")
    if len(data.trained) < len(data.runs):
        raise ComparisonError(f"{data.title} is published without files of other detectors; leave out --with")
    numbers = _numbers(study)
    try:
        TypeAdapter(_Sources).validate_python(numbers)
    except ValidationError as error:
        raise ComparisonError(f"{data.title} cannot be published: {first_problem(error)}") from None
    annotations = artifacts.annotations(data.runs[0])
    assert annotations is not None  # there is a comparison

    with writing(output.parent), replace_directory(output) as building:
        (building / DETECTIONS).mkdir()
        (building / DISTRIBUTIONS).mkdir()
        _pack(annotations, building / ANNOTATIONS)
        _pack_image_facts(artifacts, data.runs[0], building)
        for run in data.runs:
            _pack(_file(artifacts, run, final_detections(run)), _detections(building, run.group, run.seed))
        engines = {run.name: asdict(run.generator.record) for run in data.runs if run.generator.record is not None}
        if engines:
            write_json(building / DETECTIONS / GENERATED_BY, engines, indent=1)
        for run in (runs[0] for runs in data.groups.values()):
            _from_here(_file(artifacts, run, NAMES.config), building / f"config-{run.group}.yaml")
            if (curves := artifacts.file(run, FINAL_CONSTRAINED.distributions)) is not None:
                _pack(curves, building / DISTRIBUTIONS / f"{run.name}.json.gz")
        prints: dict[str, JsonValue] = {
            r.name: json.loads(_file(artifacts, r, NAMES.fingerprint).read_bytes()) for r in data.runs
        }
        write_json(building / "fingerprints.json", prints, indent=1)
        write_json(building / NUMBERS, numbers, indent=1)
        for path in write_report(study, building):
            if path.suffix not in _KEPT:
                path.unlink()
            else:
                _from_here(path, path)


def check(directory: Path) -> int:
    """Compute published numbers again and return how many; a ComparisonError names one that differs or is missing."""
    path = directory / NUMBERS
    published = read_model(_Sources, path, what="the numbers of published results")
    truth = read_ground_truth(directory / ANNOTATIONS)
    files = {
        group: [read_results(_detections(directory, group, seed), truth) for seed in seeds]
        for group, seeds in published.seeds.items()
    }
    seeds = [seed for by_seed in published.seeds.values() for seed in by_seed]
    with TemporaryDirectory(prefix="coordexp-") as scratch:
        rows = foreign_rows(files, directory / ANNOTATIONS, frames={}, images=None, scratch=Path(scratch))
        runs = tuple(replace(row, seed=seed) for row, seed in zip(rows, seeds, strict=True))
        data = ExperimentData(name=str(directory), uri="", runs=runs)
        computed = published.computed
        unit_by = UnitRule.parse(computed["unit_by"], option="computed.unit_by") if "unit_by" in computed else None
        facts = directory / IMAGES
        settings = Settings(
            resamples=computed["resamples"],
            seed=computed["seed"],
            unit_by=unit_by,
            image_facts=facts if unit_by is not None and facts.is_file() else None,
        )
        study, _ = study_of(data, output=Path(scratch), runs_dir=Path(scratch), settings=settings)
    if study.comparison is None:
        raise ComparisonError(" ".join(study.missing))
    again, stated = dict(_leaves(json.loads(json.dumps(_numbers(study))))), dict(_leaves(read_json(path)))
    # What follows and is not stated, but for metrics that came later: those that are stated of no group.
    sections, metrics = {place[0] for place in stated}, {(place[0], *place[2:3]) for place in stated}
    unstated: list[_Place] = []
    for place in again:
        is_of_a_metric = place[0] in ("groups", "decomposition") and place[2] not in _HEADLINE
        is_new = is_of_a_metric and place[0] in sections and (place[0], place[2]) not in metrics
        if place not in stated and not is_new:
            unstated.append(place)
    for place in (*stated, *unstated):
        value, found = stated.get(place), again.get(place)
        if value is None or found is None or abs(value - found) > _SAME:
            name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
            raise ComparisonError(
                f"{path}: {plain(shortened(name))} is {show(value)}, but from the detections beside it follows "
                f"{'no such number' if found is None else found}; publish the results again"
            )
    return len(stated)


def _file(artifacts: Artifacts, run: RunRecord, name: Path) -> Path:
    if (path := artifacts.file(run, name)) is None:
        raise ComparisonError(f"{run.name}: {name} is neither in its directory nor in MLflow: it is not published")
    return path


def _pack_image_facts(artifacts: Artifacts, run: RunRecord, building: Path) -> None:
    """Pack units and tags of the images; runs before sets have none."""
    image_facts = artifacts.image_facts(run)
    if image_facts is not None:
        _pack(image_facts, building / IMAGES)


def _pack(source: Path, target: Path) -> None:
    """Compress a file; equal bytes give equal bytes, so that a commit holds what has changed."""
    target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))


def _from_here(source: Path, target: Path) -> None:
    """Copy text whose paths begin where the command was started: elsewhere no others lead anywhere."""
    write_text(target, source.read_text(encoding="utf-8").replace(f"{Path.cwd()}{os.sep}", ""))


def _detections(directory: Path, group: str, seed: int) -> Path:
    return directory / DETECTIONS / f"{group}-s{seed}.json.gz"


def _leaves(value: object, place: _Place = ()) -> Iterator[tuple[_Place, float]]:
    """Yield every number of a tree with the keys that lead to it."""
    if isinstance(value, dict):
        for key, below in cast("dict[object, object]", value).items():
            yield from _leaves(below, (*place, key))
    elif isinstance(value, list | tuple):
        for index, below in enumerate(cast("Sequence[object]", value)):
            yield from _leaves(below, (*place, index))
    elif isinstance(value, int | float):
        yield place, float(value)
