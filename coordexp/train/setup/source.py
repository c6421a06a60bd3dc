"""Where a split of a run comes from."""

from coordexp.config.schema import RunConfig
from coordexp.data.sources.source import Source, Split, source_of
from coordexp.runs.folder import ExperimentFolder


def source_of_run(config: RunConfig, split: Split) -> Source:
    """Return the source of a split, of validation as far as ``evaluation.max_images`` goes."""
    data_dir = ExperimentFolder.of(config).data
    return source_of(config.data, split, data_dir=data_dir, max_images=config.evaluation.max_images)
