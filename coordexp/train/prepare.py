"""What all runs of an experiment share, made once before the first: the data and the expanded base."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers import PreTrainedModel

from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.vocab import expand_vocab
from coordexp.data.coco import CocoData
from coordexp.data.image import read_image
from coordexp.data.sample import Sample
from coordexp.data.splits import annotations_path, data_fingerprint, images_path
from coordexp.errors import TokenizerError
from coordexp.evaluate.categories import CategoryIndex
from coordexp.evaluate.coco_files import read_ground_truth
from coordexp.files import replace_directory, sha256_of_file, sha256_of_text, write_json
from coordexp.model.checkpoint_io import find_checkpoint
from coordexp.model.embedded import EMBEDDED, TINY_BASE
from coordexp.model.expand_files import expand_checkpoint
from coordexp.model.load import load
from coordexp.model.quiet import quiet
from coordexp.train.paths import base_dir, data_dir, experiment_dir
from coordexp.train.samples import read_split

_DECODED_IN_ADVANCE = 5_000  # images: some 10 ms each at camera size


@dataclass(frozen=True)
class PreparedExperiment:
    """The shared parts of an experiment.

    Attributes:
        directory: the experiment's directory.
        base: the expanded checkpoint.
        train: the training split.
        val: the validation split.
        data_hash: of annotations and images, see :func:`coordexp.data.splits.data_fingerprint`.
        weights_hash: SHA-256 of the base's weights.
    """

    directory: Path
    base: Path
    train: CocoData
    val: CocoData
    data_hash: str
    weights_hash: str


def prepare_experiment(config: ExperimentConfig) -> PreparedExperiment:
    """Generate or check the data and write the expanded base; a second call only checks.

    Raises:
        CoordExpError: whatever would stop a run later and can be known now.
    """
    root = data_dir(config)
    train = read_split(config, "train")
    val = read_split(config, "val")
    _check_images(config, [*train.samples, *val.samples])
    # A bad annotation or alias would otherwise show only after training.
    ground_truth = read_ground_truth(annotations_path(config.data, "val", data_dir=root))
    CategoryIndex(ground_truth.categories, aliases=config.evaluation.aliases)
    base = prepare_base(config)
    splits: tuple[Literal["train", "val"], ...] = ("train", "val")
    paths = [where(config.data, split, data_dir=root) for split in splits for where in (annotations_path, images_path)]
    return PreparedExperiment(
        directory=experiment_dir(config),
        base=base,
        train=train,
        val=val,
        data_hash=data_fingerprint(paths),
        weights_hash=weights_hash(base),
    )


def prepare_base(config: ExperimentConfig) -> Path:
    """Load the checkpoint, expand its vocabulary and save it, unless that is done."""
    target = base_dir(config)
    stamp = {
        "path": config.model.path,
        "revision": config.model.revision,
        "vocab_init": config.model.vocab_init,
        "structure": config.data.structure,
        "dtype": config.model.dtype,
    }
    made = target / "base.json"
    if made.is_file() and json.loads(made.read_text(encoding="utf-8")) == stamp:
        return target
    with replace_directory(target) as building:
        coord_ids = _write_base(config, building)
        _check_ids(config, coord_ids)
        write_json(building / "base.json", stamp)
    return target


def _write_base(config: ExperimentConfig, building: Path) -> range:
    """Write the expanded checkpoint; shard by shard, unless its dtype has to change."""
    if config.model.dtype == "auto":
        source = TINY_BASE if config.model.path == EMBEDDED else config.model.path
        directory = find_checkpoint(source, revision=config.model.revision)
        made = expand_checkpoint(directory, building, init=config.model.vocab_init, structure=config.data.structure)
        return made.vocab.coord_ids
    loaded = load(config.model.path, dtype=config.model.dtype, revision=config.model.revision)
    assert isinstance(loaded.model, PreTrainedModel)  # no adapter was asked for
    tokenizer = loaded.processor.tokenizer
    vocab = expand_vocab(loaded.model, tokenizer, init=config.model.vocab_init, structure=config.data.structure)
    with quiet():
        loaded.model.save_pretrained(str(building))
    loaded.processor.save_pretrained(building)
    return vocab.coord_ids


def weights_hash(checkpoint: Path) -> str:
    """Return one SHA-256 over the weight files of a checkpoint, in name order."""
    return sha256_of_text("".join(sha256_of_file(path) for path in sorted(checkpoint.glob("*.safetensors"))))


def _check_images(config: ExperimentConfig, samples: Sequence[Sample]) -> None:
    """Decode every image of a data set that is not generated and small enough for it."""
    if config.data.format == "shapes" or len(samples) > _DECODED_IN_ADVANCE:
        return
    for sample in samples:
        read_image(sample.image, width=sample.width, height=sample.height)


def _check_ids(config: ExperimentConfig, coord_ids: range) -> None:
    ids = config.custom.coord_offset.ids
    if config.custom.coord_offset.enabled and ids is not None and range(ids.start, ids.end + 1) != coord_ids:
        raise TokenizerError(
            f"custom.coord_offset.ids is {ids.start}..{ids.end}, but {config.model.path} has its coord tokens at "
            f"{coord_ids.start}..{coord_ids.stop - 1}; leave ids out to take the tokenizer's"
        )
