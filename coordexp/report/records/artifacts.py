"""The files a report reads: from a run's directory where it is on this machine, else from MLflow, kept in a cache."""

import functools
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from coordexp.config.identity.fingerprint import read_fingerprint
from coordexp.config.trees import Tree
from coordexp.config.yaml_file import read_mapping
from coordexp.data.coco.file import read_coco_file
from coordexp.data.images.folder import ImageFolder
from coordexp.data.sets.data_set import IMAGE_FACTS
from coordexp.data.sources.recorded import RecordedData, recorded_data
from coordexp.detection.detections import read_detections, write_detections
from coordexp.detection.ground_truth import GroundTruth
from coordexp.errors import ComparisonError, DataError, TrackingError
from coordexp.metrics import BOX_KINDS
from coordexp.report.records.data import ExperimentData, RunRecord
from coordexp.runs.folder import DecodingFolder, ExperimentFolder, RunFolder
from coordexp.statistics.readings import ReadingName, reads
from coordexp.tracking.connection import connect, tracking_errors
from coordexp.tracking.publish import read_recorded

if TYPE_CHECKING:
    from mlflow import MlflowClient

NAMES = RunFolder(Path())  # within a run directory, and among the artifacts of a run
FINAL_CONSTRAINED = NAMES.evaluation("final").decoding("constrained")
STORED_ANNOTATIONS = "data"
_DETECTIONS = {FINAL_CONSTRAINED.detections(kind).name for kind in BOX_KINDS}


def final_detections(run: RunRecord, reading: ReadingName = "own") -> Path:
    """Return the detections that a reading takes of a run, by their path within its directory."""
    decoding, boxes = reads(reading, run.reading)
    return NAMES.evaluation("final").decoding(decoding).detections(boxes)


class Artifacts:
    """Finds files of runs in ``runs_dir`` or MLflow, whose copies ``cache`` keeps; one that is nowhere is None."""

    def __init__(self, data: ExperimentData, *, cache: Path, runs_dir: Path) -> None:
        self._uri = data.uri
        self._cache = cache
        self._runs_dir = runs_dir
        self._listed: dict[tuple[str, str], set[str]] = {}
        self._read = functools.cache(read_mapping)  # a report asks four times

    def run_dir(self, run: RunRecord) -> Path | None:
        """Return a run's directory if it is on this machine, and no other life of the name has taken it."""
        return next((place for place in self._places(run) if place.is_dir() and not _taken(place, run)), None)

    def file(self, run: RunRecord, path: Path) -> Path | None:
        """Return a file of a run; None if it is neither in the run's directory nor in MLflow.

        Args:
            run: the run, or the row of a file of detections, which has the same boxes under every reading.
            path: within the run's directory, and among the run's artifacts in MLflow.
        """
        if run.foreign is not None:
            if path == FINAL_CONSTRAINED.analysis:
                return run.foreign.analysis
            return run.foreign.detections if path.name in _DETECTIONS else None
        run_dir = self.run_dir(run)
        if run_dir is not None and (run_dir / path).is_file():
            return run_dir / path
        return self._fetched(run.run_id, path.as_posix(), ended=run.ended)

    def of_experiment(self, run: RunRecord, path: Path) -> Path | None:
        """Return a file of a run's experiment by its path in the experiment's folder, or among its own artifacts."""
        local = self.run_dir(run)
        if local is not None and (local.parent / path).is_file():
            return local.parent / path
        return self._fetched(run.parent_id, path.as_posix()) if run.parent_id else None

    def is_fetched(self, path: Path) -> bool:
        """Return whether a file is a copy that MLflow sent."""
        return path.is_relative_to(self._cache)

    def config(self, run: RunRecord) -> Tree:
        """Return a run's ``config.yaml``, or nothing where it is not there."""
        path = self.file(run, NAMES.config)
        return {} if path is None else self._read(path).tree

    def evaluations(self, run: RunRecord) -> dict[int, DecodingFolder]:
        """Return the constrained evaluations during training by step; they stay in the run's directory."""
        run_dir = self.run_dir(run)
        if run_dir is None:
            return {}
        evaluations = RunFolder(run_dir).evaluations()
        return {step: evaluation.decoding("constrained") for step, evaluation in evaluations.items()}

    def annotations(self, run: RunRecord) -> Path | None:
        """Return the annotation file of the validation split a run was evaluated on."""
        recorded = self._recorded(run)
        if recorded is not None and recorded.ground_truth.is_file():
            return recorded.shown_ground_truth  # the same bytes, under the name that people know
        if not run.parent_id:
            return None
        for name in sorted(self._names(run.parent_id, STORED_ANNOTATIONS)):
            if name.endswith(".json") and not name.endswith(IMAGE_FACTS):
                return self._fetched(run.parent_id, name)
        return None

    def image_facts(self, run: RunRecord) -> Path | None:
        """Return the file with the unit and the tags of each validation image; None where there is none."""
        recorded = self._recorded(run)
        if recorded is not None and recorded.data_set is not None:
            return recorded.data_set.image_facts
        if not run.parent_id:
            return None
        return self._fetched(run.parent_id, f"{STORED_ANNOTATIONS}/{IMAGE_FACTS}")

    def images(self, run: RunRecord) -> dict[int, Path]:
        """Return the validation image files that are on this machine, by image id."""
        annotations = self.annotations(run)
        recorded = self._recorded(run)
        if annotations is None or recorded is None or not recorded.images.is_dir():
            return {}
        folder = ImageFolder(recorded.images)
        paths: dict[int, Path] = {}
        for image_id, name in self._image_names(annotations, recorded):
            with suppress(DataError):  # the file may come from a server: only images of the folder
                paths[image_id] = folder.path_of(name)
        return paths

    @staticmethod
    def _image_names(annotations: Path, recorded: RecordedData) -> Iterator[tuple[int, object]]:
        """Yield the id of each validation image with its path below the folder of images."""
        if recorded.data_set is not None:
            arrays = recorded.data_set.arrays("val")
            yield from zip(arrays.image_ids.tolist(), arrays.names, strict=True)
            return
        for entry in read_coco_file(annotations).images.good:
            yield entry.id, entry.name_in(recorded.images)

    def only_images(self, detections: Path, truth: GroundTruth, image_ids: Collection[int], run: RunRecord) -> Path:
        """Write those detections of a file that are in some images, and return the new file in the cache.

        Raises:
            DataError: if MLflow's id of the run cannot be the name of a folder.
        """
        folder = run.run_id or run.name  # MLflow may not have the run
        if not _stays_below(folder):
            raise DataError(f"run id {folder!r} of {run.name} is no name of a folder: expected MLflow's own id")
        subset_path = self._cache / folder / f"{detections.stem}.subset.json"
        write_detections(subset_path, read_detections(detections, truth).on_images(image_ids))
        return subset_path

    def _places(self, run: RunRecord) -> list[Path]:
        places = [Path(run.run_dir)] if run.run_dir else []
        if run.run_dir and run.experiment:
            places.append(self._runs_dir.absolute() / run.experiment / Path(run.run_dir).name)
        return places

    def _recorded(self, run: RunRecord) -> RecordedData | None:
        """Return the validation data of a run; None where they are not known to be here."""
        run_dir = self.run_dir(run)
        experiment_dir = self._runs_dir / run.experiment if run_dir is None else run_dir.parent
        # After --fresh the folder of that name has the data of another experiment.
        another_lives_there = run_dir is None and any(_taken(place, run) for place in self._places(run))
        data_dir = None if another_lives_there else ExperimentFolder(experiment_dir).data
        fingerprint = self.file(run, NAMES.fingerprint)
        data_hash: str | None = None
        if fingerprint is not None:
            with suppress(ComparisonError):  # said where runs are compared
                data_hash = read_fingerprint(fingerprint).data
        return recorded_data(run.params, data_hash=data_hash, data_dir=data_dir)

    def _fetched(self, run_id: str, path: str, *, ended: float | None = None) -> Path | None:
        """Return a copy of an artifact; a run that went on and ended again has new ones."""
        if not _stays_below(run_id):
            return None
        copy_path = self._cache / (run_id if ended is None else f"{run_id}-{ended:.3f}") / path
        if copy_path.is_file():
            return copy_path
        if path not in self._names(run_id, str(Path(path).parent)):
            return None
        with tracking_errors(self._uri, f"fetch artifact {path} of run {run_id}"):
            copy_path.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self._cache) as folder:
                # MLflow 3.17 leaves out a file's folders, other versions do not: only the path it returns is sure.
                Path(self._client.download_artifacts(run_id, path, folder)).replace(copy_path)
        return copy_path

    def _names(self, run_id: str, folder: str) -> set[str]:
        """Return the artifacts directly in a folder of a run; none where the store does not answer."""
        key = (run_id, folder)
        if key not in self._listed:
            self._listed[key] = set()
            with suppress(TrackingError), tracking_errors(self._uri, f"list artifacts of run {run_id}"):
                artifacts = self._client.list_artifacts(run_id, None if folder == "." else folder)
                self._listed[key] = {
                    artifact.path for artifact in artifacts if not artifact.is_dir and _stays_below(artifact.path)
                }
        return self._listed[key]

    @functools.cached_property
    def _client(self) -> "MlflowClient":
        return connect(self._uri)


def _stays_below(name: str) -> bool:
    """Return whether a name that a server gave stays below the folder it is put in."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _taken(place: Path, run: RunRecord) -> bool:
    """Return whether a directory holds another run: ``--fresh`` starts over in a directory of the same name."""
    recorded = read_recorded(RunFolder(place))
    return recorded is not None and bool(run.key) and recorded.key != run.key
