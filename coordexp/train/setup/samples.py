"""The samples of a split, read as a run's configuration says."""

from coordexp.config.schema import ExperimentConfig
from coordexp.data.sources.coco import CocoData
from coordexp.data.splits.splits import Split, load_split
from coordexp.runs.folder import ExperimentFolder


def read_split(config: ExperimentConfig, split: Split) -> CocoData:
    """Read a split; boxes that are bins already are taken only if the configuration expects them.

    Raises:
        DataError: as :func:`coordexp.data.splits.splits.load_split`.
    """
    tokens = config.custom.coord_tokens
    prequantised = tokens.enabled and tokens.skip_bbox_norm
    return load_split(config.data, split, data_dir=ExperimentFolder.of(config).data, accept_prequantised=prequantised)
