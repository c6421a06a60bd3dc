"""The data of a run: its experiment's set, which the command made before it started the run."""

from pathlib import Path

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.template_adapter import keeps_boxes
from coordexp.data.sample import Split
from coordexp.data.sets.data_set import DataSet
from coordexp.data.sets.keys import set_name
from coordexp.data.split_data import SplitData
from coordexp.data.splits.check import check_split
from coordexp.data.splits.chosen import CHOSEN_NAME
from coordexp.findings import Check, require
from coordexp.runs.folder import ExperimentFolder


def set_of_run(config: RunConfig) -> DataSet:
    """Return the set that a run reads; a DataError says how to make it if it is not there."""
    return DataSet.open(ExperimentFolder.of(config).data / set_name(config.data))


def ground_truth_of_run(config: RunConfig) -> Path:
    """Return the COCO file that a run's AP is measured on; with ``evaluation.max_images`` it has the chosen images."""
    if config.evaluation.max_images is not None:
        return ExperimentFolder.of(config).data / CHOSEN_NAME
    return set_of_run(config).ground_truth


def read_split(config: RunConfig, split: Split) -> SplitData:
    """Return the samples of a split that a run uses.

    Raises:
        DataError: if they cannot be used.
    """
    data = require(check_split_of(config, split, set_of_run(config)))
    assert data is not None, "require raises if a split cannot be used"
    return data


def check_split_of(config: RunConfig, split: Split, data_set: DataSet) -> Check[SplitData | None]:
    """Read a split of a set, and find what would stop a run from using it."""
    return check_split(
        data_set,
        config.data,
        split,
        accept_prequantised=accepts_prequantised(config),
        max_images=config.evaluation.max_images,
    )


def accepts_prequantised(config: RunConfig) -> bool:
    """Return whether the boxes of a file may be bins already.

    A text arm writes bins as digits, so that one file of bins serves it and the coord-token groups beside it.
    """
    tokens = config.custom.coord_tokens
    return config.text_arm or keeps_boxes(enabled=tokens.enabled, skip_bbox_norm=tokens.skip_bbox_norm)
