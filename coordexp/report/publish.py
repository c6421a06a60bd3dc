"""Results to commit: an experiment's numbers with the detections they follow from, and the check that they do.

results/shapes/
    numbers.json          each group's and seed's AP, intervals, pairs, what AP50 is lost to, and how they were computed
    fingerprints.json     what decided each run; config-GROUP.yaml: its configuration
    annotations.json.gz   the ground truth
    detections/A-s0.json.gz   of every run, the boxes by which its group is read
    distributions/A-s0.json.gz   of each group's first run, the distributions over bins of some objects
    report.html, report.md and the figures
"""

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from rich.console import Console
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 on

from coordexp.config.schema.fields import Name, Seed
from coordexp.detection.decomposition import MEASURES
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.result_files import read_results
from coordexp.errors import ComparisonError, show
from coordexp.files import JsonValue, first_problem, read_model, replace_directory, write_json, write_text
from coordexp.limits import MAX_SEED
from coordexp.report.study.artifacts import FINAL_CONSTRAINED, NAMES, Artifacts, final_detections
from coordexp.report.study.data import ExperimentData, RunData, missing_runs
from coordexp.report.study.foreign import foreign_rows
from coordexp.report.study.study import Settings, Study
from coordexp.report.text.render import to_numbers
from coordexp.report.write import study_of, write_report, writing
from coordexp.statistics.results import Comparison, Decomposition

NUMBERS, ANNOTATIONS, DETECTIONS, DISTRIBUTIONS = "numbers.json", "annotations.json.gz", "detections", "distributions"
_KEPT = (".html", ".md", ".svg")  # of the files of a report
_WITH_PATHS = (".html", ".md")
_Number = float | None
_Text = Annotated[str, Field(max_length=250)]  # of a metric, or two names of groups
_HEADLINE = ("AP", "interval")  # of a group
_Place = tuple[object, ...]  # of a number: the keys that lead to it
_SAME = 1e-9  # a sum in another order differs by less


_Seeds = Annotated[
    Mapping[Name, Annotated[Mapping[Annotated[int, Field(ge=0, le=MAX_SEED)], float], Field(min_length=1)]],
    Field(min_length=1),
]


@with_config(ConfigDict(extra="forbid"))
class _Computed(TypedDict):
    resamples: Annotated[int, Field(strict=True, ge=1)]
    seed: Seed


@dataclass(frozen=True)
class _Published:
    """What ``numbers.json`` holds.

    Attributes:
        groups: metrics of a group with the interval of its AP.
        pairs: differences with interval and p-values.
        seeds: AP by group and seed.
        decomposition: what AP50 is lost to, by group and by pair, each with its interval.
        computed: ``resamples`` and ``seed`` of the bootstrap.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    groups: Mapping[Name, Mapping[_Text, _Number | list[_Number]]]
    pairs: Mapping[_Text, Mapping[_Text, _Number | list[_Number]]]
    seeds: _Seeds
    decomposition: Mapping[_Text, Mapping[_Text, tuple[float, _Number, _Number]]]
    computed: _Computed

    @staticmethod
    def of(comparison: Comparison, decomposition: Decomposition | None, data: ExperimentData) -> "_Published":
        seeds = {
            group: {seed: found.value for seed, found in by_seed.items()}
            for group, by_seed in comparison.value_by_seed.items()
        }
        numbers = json.loads(to_numbers(comparison, data))
        return _Published(
            **numbers,
            seeds=seeds,
            decomposition={} if decomposition is None else dict(_parts(decomposition)),
            computed={"resamples": comparison.resamples, "seed": comparison.seed},
        )


def publish(study: Study, artifacts: Artifacts, output: Path) -> None:
    """Write what is worth committing of an experiment; a folder of that name is replaced as a whole.

    Args:
        study: of an experiment whose runs are all finished.
        artifacts: finds its files.
        output: the folder.

    Raises:
        ComparisonError: if something is missing that the numbers must follow from, or a group has no name of one.
        ResourceError: if the folder cannot be written.
    """
    data = study.data
    if study.comparison is None or missing_runs(data):
        raise ComparisonError(f"{data.title} is not whole, and so not published: {' '.join(study.missing)}")
    if len(data.trained) < len(data.runs):
        raise ComparisonError(f"{data.title} is published without files of other detectors; leave out --with")
    annotations = artifacts.annotations(data.runs[0])
    assert annotations is not None  # there is a comparison
    numbers = asdict(_Published.of(study.comparison, study.decomposition, data))
    try:
        TypeAdapter(_Published).validate_python(numbers)
    except ValidationError as error:
        raise ComparisonError(f"{data.title} cannot be published: {first_problem(error)}") from None
    with writing(output.parent), replace_directory(output) as building:
        _pack(annotations, building / ANNOTATIONS)
        (building / DETECTIONS).mkdir()
        fingerprints: dict[str, JsonValue] = {}
        for run in data.runs:
            _pack(_file(artifacts, run, final_detections(run)), _detections(building, run.group, run.seed))
            fingerprints[run.name] = json.loads(_file(artifacts, run, NAMES.fingerprint).read_bytes())
        write_json(building / "fingerprints.json", fingerprints, indent=1)
        (building / DISTRIBUTIONS).mkdir()
        for runs in data.groups.values():
            if (curves := artifacts.file(runs[0], FINAL_CONSTRAINED.distributions)) is not None:
                _pack(curves, building / DISTRIBUTIONS / f"{runs[0].name}.json.gz")
            config = _file(artifacts, runs[0], NAMES.config).read_text(encoding="utf-8")
            write_text(building / f"config-{runs[0].group}.yaml", _from_here(config))
        write_json(building / NUMBERS, numbers, indent=1)
        for path in write_report(study, building):
            if path.suffix not in _KEPT:
                path.unlink()
            elif path.suffix in _WITH_PATHS:
                write_text(path, _from_here(path.read_text(encoding="utf-8")))


def check(directory: Path, console: Console) -> int:
    """Compute published numbers again from the published detections, and return how many there are.

    Args:
        directory: what :func:`publish` has written.
        console: where progress is drawn.

    Raises:
        DataError: if a file is missing or damaged.
        ComparisonError: naming the first number that does not follow, or follows and is not stated.
    """
    path = directory / NUMBERS
    published = read_model(_Published, path, what="the numbers of published results")
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
        study, _ = study_of(
            data, output=Path(scratch), runs_dir=Path(scratch), console=console, settings=Settings(**published.computed)
        )
    if study.comparison is None:
        raise ComparisonError(" ".join(study.missing))
    again = dict(_leaves(asdict(_Published.of(study.comparison, study.decomposition, data))))
    stated = dict(_leaves(asdict(published)))
    for place in (*stated, *_unstated(again, stated)):
        value, found = stated.get(place), again.get(place)
        if value is None or found is None or abs(value - found) > _SAME:
            name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]
            raise ComparisonError(
                f"{path}: {name} is {show(value)}, but from the detections beside it follows "
                f"{'no such number' if found is None else found}; publish the results again"
            )
    return len(stated)


def _unstated(again: Mapping[_Place, float], stated: Mapping[_Place, float]) -> Iterator[_Place]:
    """Yield what follows and is not stated, but for metrics that came later: those that are stated of no group."""
    sections, metrics = {place[0] for place in stated}, {(place[0], *place[2:3]) for place in stated}
    for place in again:
        is_of_a_metric = place[0] in ("groups", "decomposition") and place[2] not in _HEADLINE
        is_new = is_of_a_metric and place[0] in sections and (place[0], place[2]) not in metrics
        if place not in stated and not is_new:
            yield place


def _parts(found: Decomposition) -> Iterator[tuple[str, dict[str, tuple[float, _Number, _Number]]]]:
    """Yield what follows from detections alone of each group and pair."""
    pairs = {f"{pair.a} - {pair.b}": pair.difference for pair in found.pairs}
    for name, estimates in (*found.value.items(), *pairs.items()):
        there = ((m.name, estimates[m.name]) for m in MEASURES if m.name in estimates)
        yield name, {measure: (estimate.value, estimate.low, estimate.high) for measure, estimate in there}


def _detections(directory: Path, group: str, seed: int) -> Path:
    return directory / DETECTIONS / f"{group}-s{seed}.json.gz"


def _file(artifacts: Artifacts, run: RunData, name: Path) -> Path:
    path = artifacts.file(run, name)
    if path is None:
        raise ComparisonError(
            f"{run.name}: {name} is neither in its directory nor in MLflow, so it cannot be published"
        )
    return path


def _from_here(text: str) -> str:
    """Return a text whose paths begin where the command was started: elsewhere no others lead anywhere."""
    return text.replace(f"{Path.cwd()}{os.sep}", "")


def _pack(source: Path, target: Path) -> None:
    """Compress a file; equal bytes give equal bytes, so that a commit holds what has changed."""
    target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))


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
