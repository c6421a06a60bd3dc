"""The part of the training images that trials are judged on: chosen and written once, before the first trial."""

from collections.abc import Sequence
from pathlib import Path

from coordexp.config.keys import deciding
from coordexp.config.schema import RunConfig
from coordexp.config.schema.data import Data
from coordexp.config.schema.search import TuningPart
from coordexp.data.sources.door import save_parts
from coordexp.data.splits.tuning import TuningSplit, write_tuning_split
from coordexp.errors import ConfigError
from coordexp.files import sha256_of_file, sha256_of_text
from coordexp.train.setup.door import open_set_of, place_of

_CHOOSES_PICTURES = {"path", "train_annotations", "train_images", "max_train_images", "train_subset_seed", "unit_by"}


def divide_training_images(configs: Sequence[RunConfig], settings: TuningPart, directory: Path) -> TuningSplit:
    """Choose the tuning split from the experiment's set, and write the sets that trials read.

    A second call writes the same files.

    Args:
        configs: of the groups, whose trials read the same split.
        settings: how large it is, and the seed of the choice.
        directory: where its two annotation files go.

    Raises:
        ConfigError: if groups do not have the same training images.
        DataError: if the images cannot be divided so.
    """
    first = configs[0]
    choosing = first.data.model_dump(include=_CHOOSES_PICTURES)
    for config in configs[1:]:
        for name, value in config.data.model_dump(include=_CHOOSES_PICTURES).items():
            if value != choosing[name]:
                raise ConfigError(
                    f"data.{name} differs between groups {first.experiment.group} and {config.experiment.group}, so "
                    "that they have no tuning split in common; tune them in experiments of their own"
                )
    divided = None
    for config in {deciding(config, "data"): config for config in configs}.values():
        whole = open_set_of(config)
        divided = divided or write_tuning_split(whole, first.data, directory, **settings.model_dump())
        of_trials = Data.model_validate(config.data.model_dump() | divided.split.data_keys())
        save_parts(divided, whole, of_trials, place_of(config))
    assert divided is not None  # there is a group
    return divided.split


def split_hash(split: TuningSplit) -> str:
    """Return a hash of which images trials are trained and judged on, and of their annotations."""
    file_hashes = [sha256_of_file(path) for path in (split.train_annotations, split.val_annotations)]
    return sha256_of_text("/".join(file_hashes))
