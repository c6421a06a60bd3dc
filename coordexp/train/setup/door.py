"""What a command does with data before its first run: it turns the user's files into the experiment's set.

The command holds the experiment's lock meanwhile. Workers never import this module: they read the set.
"""

import contextlib
import tempfile
from pathlib import Path

from coordexp.config.schema import RunConfig
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sets.data_set import DataSet
from coordexp.data.sources.door import SetPlace, check_set, load_split
from coordexp.data.sources.read_data import missing_files
from coordexp.data.sources.source import source_of
from coordexp.data.split_data import Generated
from coordexp.data.splits.chosen import write_chosen
from coordexp.data.units import UnitRule, read_unit_names
from coordexp.errors import ConfigError, DataError, ResourceError
from coordexp.findings import Check, collect, require
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.lock import experiment_lock
from coordexp.runs.status import has_taken_step
from coordexp.train.setup.data import accepts_prequantised, ground_truth_of_run, read_split, set_of_run


def place_of(config: RunConfig) -> SetPlace:
    """Return where a run's set belongs, and whether it may still change."""
    folder = ExperimentFolder.of(config)
    return SetPlace(
        data_dir=folder.data,
        known=folder.data_hashes,
        runs_dir=config.experiment.runs_dir,
        has_begun=any(has_taken_step(run.path) for run in folder.begun_runs()),
    )


def check_set_of(config: RunConfig) -> Check[DataSet | None]:
    """Make the set of a run, or check that it still is what its sources would give."""
    return check_set(config.data, place_of(config))


def open_set_of(config: RunConfig) -> DataSet:
    """Make the set of a run, unless it is there, and with it the ground truth of chosen images.

    Raises:
        DataError: if the data cannot be used, or have changed since a run took a step on them.
    """
    data_set = require(check_set_of(config))
    assert data_set is not None, "require raises if a file is missing"
    if config.evaluation.max_images is not None:
        write_chosen(ground_truth_of_run(config), data_set.ground_truth, read_split(config, "val"))
    return data_set


def open_set_beside_runs(config: RunConfig) -> DataSet:
    """Return the set of a run for a command that only looks at it.

    If another command holds the experiment's lock, the set is returned as it is, and not compared with its sources.

    Raises:
        ResourceError: if another command holds the lock, and the set is not there yet.
    """
    try:
        with experiment_lock(config):
            return open_set_of(config)
    except ResourceError:
        with contextlib.suppress(DataError):
            return set_of_run(config)
        raise


def generated_of(config: RunConfig, split: Split) -> Generated | None:
    """Return what a split will hold if coordexp generates it; None if the data are a user's."""
    return source_of(config.data, split, data_dir=ExperimentFolder.of(config).data).generated


def missing_data(config: RunConfig) -> list[str]:
    """Return a sentence for each annotation file and image folder of a run that is missing here; nothing is read."""
    sentences: list[str] = []
    for split in SPLITS:
        source = source_of(config.data, split, data_dir=ExperimentFolder.of(config).data)
        if source.generated is None:
            findings, _ = collect(missing_files(source.annotations, source.given_images, split))
            sentences += [finding.sentence for finding in findings]
    return sentences


def num_images_of(config: RunConfig, split: Split) -> int | None:
    """Return how many images of a split a run uses, without writing anything; None if that is not known here.

    If the set is there, its report has the number. If not, training images are read as a run would, and validation
    images are counted in their annotations, since the pictures may be on another machine.
    """
    limit = config.data.max_train_images if split == "train" else config.evaluation.max_images
    try:
        num_images = _num_images(config, split)
    except DataError:
        return None
    return num_images if limit is None else min(num_images, limit)


def num_units_of(config: RunConfig) -> int | None:
    """Return how many units (``data.unit_by``) the validation images come from; None if that is not known here.

    If the set is there, it has the number. If not, units are counted in the validation annotations, if there are any.
    """
    rule = config.data.unit_by
    if rule is None:
        return None
    with contextlib.suppress(DataError):
        arrays = set_of_run(config).arrays("val")
        return arrays.num_units() if arrays.units else None
    annotations = config.data.val_annotations
    if annotations is None:
        return None
    try:
        return read_unit_names(annotations, UnitRule.parse(rule, option="data.unit_by")).num_units
    except (ConfigError, DataError):
        return None


def _num_images(config: RunConfig, split: Split) -> int:
    generated = generated_of(config, split)
    if generated is not None:
        return generated.num_images
    with contextlib.suppress(DataError):
        return set_of_run(config).record.splits[split].num_images
    with tempfile.TemporaryDirectory() as scratch:  # some pictures are unpacked to be counted
        if split == "val":
            return source_of(config.data, split, data_dir=Path(scratch)).count_images()
        accepts = accepts_prequantised(config)
        return len(load_split(config.data, split, data_dir=Path(scratch), accept_prequantised=accepts).samples)
