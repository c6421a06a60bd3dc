"""The base of a run: the checkpoint that its runs start from, checked and written once.

It has an expanded vocabulary, or, for a text arm, the original one. All runs of an experiment share it. A stamp beside
the weights says what it was made of.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedConfig

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.vocab import added_tokens, check_rows, digit_ids
from coordexp.data.prompt import IMAGE_TOKEN
from coordexp.errors import CheckpointError, ConfigError, TokenizerError, counted
from coordexp.files import JsonValue, kept_json, known_hashes, replace_directory, sha256_of_text, write_json
from coordexp.findings import Check, attempt, failure, guarded, ok, require, size_text, warning
from coordexp.model.checkpoint.directory import (
    CONFIG_FILE,
    EMBEDDED,
    TINY_BASE,
    cached_checkpoint,
    find_checkpoint,
    is_hub_id,
    model_config,
)
from coordexp.model.checkpoint.stored_model import HEAD, Dimensions, StoredModel
from coordexp.model.processor import Processor, StoredProcessor
from coordexp.runs.folder import ExperimentFolder
from coordexp.stages import report_stage
from coordexp.train.setup.encoding import Encoding, build_encoding

_log = logging.getLogger(__name__)

_STAMP = "base.json"  # what a base was made of
_WEIGHTS = ".safetensors"
# What transformers reads beside weights: configurations, tokenizer, chat template, processor. The index of the weights
# is left out, since it only says where they lie. So is everything that decides no number: a licence, a note, and what
# was written beside a merged checkpoint.
_READ = (
    CONFIG_FILE, "generation_config.json", "tokenizer*.json", "tokenizer.model", "vocab.json", "vocab.txt",
    "merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template*", "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class CheckedBase:
    """What is known of a checkpoint before it is expanded; None if something is wrong or was not looked at."""

    model: PreTrainedConfig
    stored: StoredModel | None
    encoding: Encoding | None  # its tokenizer is expanded in memory


def prepare_base(config: RunConfig) -> Path:
    """Write the base of an experiment in the dtype of the configuration, unless it is there.

    It is written tensor by tensor, so that memory holds some rows and not the model.

    Returns:
        The folder of the base.

    Raises:
        CheckpointError: if the checkpoint cannot be used, or changed since runs of this experiment began from it.
        ConfigError: if the run's settings do not suit the checkpoint.
        TokenizerError: if its tokenizer does not.
    """
    folder = ExperimentFolder.of(config)
    target = folder.base(config)
    model = config.model
    stamp: dict[str, JsonValue] = {"path": model.path, "revision": model.revision, "dtype": model.dtype}
    if config.text_arm:
        stamp["text"] = True
    else:
        stamp |= {"vocab_init": model.vocab_init, "structure": config.data.structure}

    stored_stamp = kept_json(target / _STAMP)
    if isinstance(stored_stamp, dict) and _without_source(stored_stamp) == stamp:
        change = _change_of_source(config, stored_stamp.get("source"))
        if change is None:
            _log.debug("the base %s is that of %s", target, model.path)
            require(check_base(config, target))
            return target
        if folder.begun_runs():
            raise CheckpointError(
                f"{model.path}: {change} since experiment {folder.name} made its base from it, so that its runs began "
                "with another checkpoint; put that back, choose another experiment.name, or --fresh"
            )

    directory = find_checkpoint(model.path, revision=model.revision)
    _log.debug("the base %s is made of %s", target, directory)
    require(check_base(config, directory))
    from coordexp.model.expand import cast_checkpoint, expand_checkpoint  # here: a dry run does not get this far

    stamp["source"] = dict(_hashes_of(directory, folder.hashes))
    with replace_directory(target) as building:
        if config.text_arm:
            cast_checkpoint(directory, building, dtype=model.dtype)
        else:
            structure = config.data.structure
            expand_checkpoint(directory, building, init=model.vocab_init, structure=structure, dtype=model.dtype)
        write_json(building / _STAMP, stamp)
    return target


def _without_source(stamp: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: value for key, value in stamp.items() if key != "source"}


def _change_of_source(config: RunConfig, stored_hashes: object) -> str | None:
    """Return e.g. ``config.json and 2 more files changed`` if the checkpoint behind a base did; None if not.

    A checkpoint that is no longer on this machine is no change: runs read the base.
    """
    path = config.model.path
    if is_hub_id(path):
        directory = cached_checkpoint(path, revision=config.model.revision)[0]
    elif path == EMBEDDED:
        directory = TINY_BASE
    else:
        directory = Path(path).expanduser()
    if not isinstance(stored_hashes, dict) or directory is None or not (directory / CONFIG_FILE).is_file():
        return None

    before = cast("Mapping[str, object]", stored_hashes)
    now: Mapping[str, object] = _hashes_of(directory, ExperimentFolder.of(config).hashes)
    names = now.keys() | before.keys()
    if is_hub_id(path):
        names = now.keys() & before.keys()  # a user may have cleared weights out of the hub's cache since
    changed = sorted(name for name in names if before.get(name) != now.get(name))
    if not changed:
        return None
    more = f" and {counted(len(changed) - 1, 'more file')}" if len(changed) > 1 else ""
    return f"{changed[0]}{more} changed"


def check_base(config: RunConfig, directory: Path, *, weights: bool = True) -> Check[CheckedBase | None]:
    """Check that the files of a checkpoint belong together and suit the run. No weight is read.

    Args:
        config: the run.
        directory: the checkpoint.
        weights: whether to read the headers of the weights, and the whole image processor instead of its numbers.

    Returns:
        What was read; None if the checkpoint is of no known family.
    """
    model = yield from attempt("checkpoint", lambda: model_config(directory))
    if model is None:
        return None
    yield from attempt("attention", lambda: _check_half_precision(config, model))
    stored = None
    if weights:
        stored = yield from guarded("weights", _check_weights(directory))
    encoding = yield from guarded("tokenizer", _check_tokenizer(config, directory, model, whole=weights))
    return CheckedBase(model, stored, encoding)


def check_attention_of(config: RunConfig) -> None:
    """Check that the chosen attention works in the model's dtype, on the machine where the run will be.

    Raises:
        ConfigError: if it does not.
    """
    from coordexp.model.loading import check_attention  # here: it imports what loads a model

    # The driver of a cluster may have no GPU although its workers do.
    elsewhere = config.cluster.executor == "tune" and config.cluster.gpus_per_worker > 0
    check_attention(config.model.attn_implementation, dtype=config.model.dtype, elsewhere=elsewhere)


def _check_half_precision(config: RunConfig, model: PreTrainedConfig) -> None:
    """Refuse dtypes that ``model.dtype: auto`` would keep: float16 weights, and float32 with FlashAttention."""
    if config.model.dtype != "auto":
        return
    if model.dtype == torch.float16:
        raise ConfigError(
            f"model.dtype is auto and {config.model.path} is stored in float16, which overflows in training; set "
            "model.dtype: bfloat16 (its weights are cast once), or float16 to keep it nevertheless"
        )
    if config.model.attn_implementation == "flash_attention_2" and model.dtype == torch.float32:
        raise ConfigError(
            f"model.attn_implementation: flash_attention_2 computes in half precision only, but {config.model.path} is "
            "stored in float32 and model.dtype is auto; set model.dtype: bfloat16, or model.attn_implementation: sdpa"
        )


def base_hashes(checkpoint: Path, *, known: Path) -> tuple[str, dict[str, str]]:
    """Hash the files of a base that decide a number.

    Args:
        checkpoint: the base.
        known: file that keeps hashes between commands, so that weights are read once.

    Returns:
        One SHA-256 over the weight files, in the order of their names, and the hash of each other file that a run
        reads, by names such as ``base/config.json``.
    """
    hashes = _hashes_of(checkpoint, known)
    weight_hashes = "".join(hashes[name] for name in sorted(hashes) if name.endswith(_WEIGHTS))
    other_hashes = {f"base/{name}": value for name, value in hashes.items() if not name.endswith(_WEIGHTS)}
    return sha256_of_text(weight_hashes), other_hashes


def _hashes_of(directory: Path, known: Path) -> Mapping[str, str]:
    """Return the hash of each file of a checkpoint that decides a number, by its name."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and _decides_a_number(path))
    hashes = known_hashes(files, known, report=report_stage)
    return {path.name: value for path, value in zip(files, hashes, strict=True)}


def _decides_a_number(path: Path) -> bool:
    return path.suffix == _WEIGHTS or any(map(path.match, _READ))


def _check_weights(directory: Path) -> Check[StoredModel]:
    stored = StoredModel.of_headers(directory)
    specs = stored.weights.specs.values()
    num_numbers = sum(spec.num_elements for spec in specs)
    size = size_text(sum(spec.num_bytes for spec in specs))
    dtypes = ", ".join(sorted({spec.dtype_name for spec in specs}))
    num_files = len(set(stored.weights.files.values()))
    yield ok(
        "weights",
        f"{num_numbers:,} numbers ({dtypes}, {size}) in {counted(num_files, 'file')}: every name and shape fits; "
        "headers read, no weight loaded",
    )
    if stored.renamed:
        yield ok("weights", f"{stored.renamed}; to expand and to merge, the whole model is loaded")
    if stored.left_behind:
        yield ok("weights", f"left behind by every copy: {stored.left_behind}")
    if stored.stores_tied_head:
        yield warning("weights", f"{HEAD} is stored beside a tied embedding; whether they are equal was not read")
    return stored


def _check_tokenizer(config: RunConfig, directory: Path, model: PreTrainedConfig, *, whole: bool) -> Check[Encoding]:
    processor = (Processor if whole else StoredProcessor).from_directory(directory)
    tokenizer = processor.tokenizer
    num_entries = len(tokenizer)
    check_rows(num_entries, Dimensions.of(model).text.vocab_size, where=f"{directory}: ")
    entries = tokenizer.get_vocab()
    image_id = entries.get(IMAGE_TOKEN)
    expected_id = model.to_dict()["image_token_id"]
    if image_id != expected_id:
        raise TokenizerError(
            f"{directory}: {IMAGE_TOKEN} is {'missing' if image_id is None else image_id} in the tokenizer, but "
            f"{expected_id} in config.json; tokenizer and model do not belong together"
        )
    if not isinstance(tokenizer.pad_token_id, int):
        raise TokenizerError(f"{directory}: the tokenizer has no padding token; expected pad_token in its settings")
    num_new = sum(token not in entries for token in added_tokens(config.data.structure))
    if num_new and not config.text_arm and config.model.vocab_init == "numeric":
        digit_ids(tokenizer)  # raises if the new rows cannot be made from the rows of the digits

    encoding = build_encoding(config, processor)
    ids = encoding.vocab.numbers.ids
    if config.text_arm:
        yield ok("tokenizer", f"{num_entries:,} entries, none is added; digits {ids.start}..{ids.stop - 1}")
    else:
        origin = f"{counted(num_new, 'token')} will be added" if num_new else "there already"
        yield ok("tokenizer", f"{num_entries:,} entries; coord tokens {ids.start}..{ids.stop - 1} ({origin})")
        yield from _check_offset_ids(config, ids)
    spec = encoding.image_spec
    yield ok(
        "processor",
        f"chat template renders ({len(encoding.prompt)} tokens around the image); {spec.min_pixels:,} to "
        f"{spec.max_pixels:,} pixels in patches of {spec.patch_size}",
    )
    return encoding


def _check_offset_ids(config: RunConfig, coords: range) -> Check[None]:
    """Compare the configured ids with those of the coord tokens that the tokenizer has, or will get."""
    ids = config.custom.coord_offset.listed_ids
    if not config.trains_offset or ids is None:
        return
    outside = [token_id for token_id in ids if token_id not in coords]
    if outside:
        shown = f"{ids[0]}..{ids[-1]}" if isinstance(ids, range) else f"a list with {outside[0]}"
        yield failure(
            "coord_offset.ids",
            TokenizerError(
                f"custom.coord_offset.ids is {shown}, but {config.model.path} has its coord tokens at "
                f"{coords.start}..{coords.stop - 1}; leave ids out to take the tokenizer's"
            ),
        )
