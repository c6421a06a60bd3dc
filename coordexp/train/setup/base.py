"""The base of a run: a checkpoint that is checked, and written once with its vocabulary expanded, or as a copy."""

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

_STAMP = "base.json"  # what a base was made of
_WEIGHTS = ".safetensors"
# What transformers reads beside weights: configurations, tokenizer, chat template, processor. An index only says where
# weights lie; a licence, a note or what was written beside a merged checkpoint decides nothing.
_READ = (
    CONFIG_FILE, "generation_config.json", "tokenizer*.json", "tokenizer.model", "vocab.json", "vocab.txt",
    "merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template*", "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class CheckedBase:
    """What is known of a checkpoint before it is expanded; None where something is wrong or was not looked at."""

    model: PreTrainedConfig
    stored: StoredModel | None
    encoding: Encoding | None  # its tokenizer is expanded in memory


def prepare_base(config: RunConfig) -> Path:
    """Write the checkpoint with its vocabulary expanded, in the dtype of the configuration, unless that is done.

    For a text arm it is a copy in that dtype, to which no row is added. Goes by files, so that memory holds some rows
    and not the model. A CheckpointError where it cannot be used, or runs of this experiment began with another one.
    """
    folder = ExperimentFolder.of(config)
    target, model = folder.base(config), config.model
    stamp: dict[str, JsonValue] = {"path": model.path, "revision": model.revision, "dtype": model.dtype}
    stamp |= {"text": True} if config.text_arm else {"vocab_init": model.vocab_init, "structure": config.data.structure}
    made = target / _STAMP
    before = kept_json(made)
    if isinstance(before, dict) and {key: value for key, value in before.items() if key != "source"} == stamp:
        replaced = _replaced(config, before.get("source"))
        if replaced and folder.begun_runs():
            raise CheckpointError(
                f"{model.path}: {replaced} since experiment {folder.name} made its base from it, so that its runs "
                "began with another checkpoint; put that back, choose another experiment.name, or --fresh"
            )
        if not replaced:
            require(check_base(config, target))
            return target
    directory = find_checkpoint(model.path, revision=model.revision)
    require(check_base(config, directory))
    from coordexp.model.expand import cast_checkpoint, expand_checkpoint  # here: a dry run writes nothing

    stamp["source"] = dict(_hashes_of(directory, folder.hashes))
    with replace_directory(target) as building:
        if config.text_arm:
            cast_checkpoint(directory, building, dtype=model.dtype)
        else:
            structure = config.data.structure
            expand_checkpoint(directory, building, init=model.vocab_init, structure=structure, dtype=model.dtype)
        write_json(building / _STAMP, stamp)
    return target


def _replaced(config: RunConfig, before: object) -> str | None:
    """Return what changed in the checkpoint that a base was made of, as a sentence's middle; None if nothing did.

    One that is no longer on this machine changes nothing: runs read the base.
    """
    path = config.model.path
    if is_hub_id(path):
        directory = cached_checkpoint(path, revision=config.model.revision)[0]
    else:
        directory = TINY_BASE if path == EMBEDDED else Path(path).expanduser()
    if not isinstance(before, dict) or directory is None or not (directory / CONFIG_FILE).is_file():
        return None
    noted = cast("Mapping[str, object]", before)
    now: Mapping[str, object] = _hashes_of(directory, ExperimentFolder.of(config).hashes)
    # Weights may be cleared out of the hub's cache, and are not asked for again.
    names = now.keys() & noted.keys() if is_hub_id(path) else now.keys() | noted.keys()
    changed = sorted(name for name in names if noted.get(name) != now.get(name))
    more = f" and {counted(len(changed) - 1, 'more file')}" if len(changed) > 1 else ""
    return f"{changed[0]}{more} changed" if changed else None


def check_base(config: RunConfig, directory: Path, *, weights: bool = True) -> Check[CheckedBase | None]:
    """Check that the files of a checkpoint belong together and suit the run; no weight is read.

    Without ``weights`` their headers are not looked at, and of the image processor only the numbers are read. Returns
    None if the checkpoint is of no known family.
    """
    model = yield from attempt("checkpoint", lambda: model_config(directory))
    if model is None:
        return None
    yield from attempt("attention", lambda: _check_half_precision(config, model))
    stored = (yield from guarded("weights", _check_weights(directory))) if weights else None
    encoding = yield from guarded("tokenizer", _check_tokenizer(config, directory, model, whole=weights))
    return CheckedBase(model, stored, encoding)


def check_attention_of(config: RunConfig) -> None:
    """Refuse a way to compute attention that cannot work where the run will be, or not in the model's dtype."""
    from coordexp.model.loading import check_attention  # here: it imports what loads a model

    # The driver of a cluster may have no GPU where its workers have.
    elsewhere = config.cluster.executor == "tune" and config.cluster.gpus_per_worker > 0
    check_attention(config.model.attn_implementation, dtype=config.model.dtype, elsewhere=elsewhere)


def _check_half_precision(config: RunConfig, model: PreTrainedConfig) -> None:
    """Refuse what ``model.dtype: auto`` would leave: float16 weights, and float32 ones under FlashAttention."""
    if config.model.dtype == "auto" and model.dtype == torch.float16:
        raise ConfigError(
            f"model.dtype is auto and {config.model.path} is stored in float16, which overflows in training; set "
            "model.dtype: bfloat16 (its weights are cast once), or float16 to keep it nevertheless"
        )
    flash = config.model.attn_implementation == "flash_attention_2"
    if flash and config.model.dtype == "auto" and model.dtype == torch.float32:
        raise ConfigError(
            f"model.attn_implementation: flash_attention_2 computes in half precision only, but {config.model.path} is "
            "stored in float32 and model.dtype is auto; set model.dtype: bfloat16, or model.attn_implementation: sdpa"
        )


def base_hashes(checkpoint: Path, *, known: Path) -> tuple[str, dict[str, str]]:
    """Return one SHA-256 over a base's weight files, in name order, and that of each other file that a run reads.

    The others go by names as ``base/config.json``. Hashes are kept in the file ``known``: weights are read once.
    """
    found = _hashes_of(checkpoint, known)
    weights = "".join(found[name] for name in sorted(found) if name.endswith(_WEIGHTS))
    others = {f"base/{name}": value for name, value in found.items() if not name.endswith(_WEIGHTS)}
    return sha256_of_text(weights), others


def _hashes_of(directory: Path, kept_in: Path) -> Mapping[str, str]:
    """Return the hash of each file of a checkpoint that decides a number, by its name."""
    files = sorted(
        path
        for path in directory.iterdir()
        if path.is_file() and (path.suffix == _WEIGHTS or any(map(path.match, _READ)))
    )
    hashes = known_hashes(files, kept_in, report=report_stage)
    return {path.name: value for path, value in zip(files, hashes, strict=True)}


def _check_weights(directory: Path) -> Check[StoredModel]:
    stored = StoredModel.of_headers(directory)
    specs = stored.weights.specs.values()
    num_files = len(set(stored.weights.files.values()))
    yield ok(
        "weights",
        f"{sum(spec.num_elements for spec in specs):,} numbers ({', '.join(sorted({s.dtype_name for s in specs}))}, "
        f"{size_text(sum(spec.num_bytes for spec in specs))}) in {counted(num_files, 'file')}: "
        "every name and shape fits; headers read, no weight loaded",
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
    num_before = len(tokenizer)
    check_rows(num_before, Dimensions.of(model).text.vocab_size, where=f"{directory}: ")
    image_id, expected = tokenizer.get_vocab().get(IMAGE_TOKEN), model.to_dict()["image_token_id"]
    if image_id != expected:
        raise TokenizerError(
            f"{directory}: {IMAGE_TOKEN} is {'missing' if image_id is None else image_id} in the tokenizer, but "
            f"{expected} in config.json; tokenizer and model do not belong together"
        )
    if not isinstance(tokenizer.pad_token_id, int):
        raise TokenizerError(f"{directory}: the tokenizer has no padding token; expected pad_token in its settings")
    known = tokenizer.get_vocab()
    num_new = sum(token not in known for token in added_tokens(config.data.structure))
    if num_new and not config.text_arm and config.model.vocab_init == "numeric":
        digit_ids(tokenizer)
    encoding = build_encoding(config, processor)
    ids = encoding.vocab.numbers.ids
    if config.text_arm:
        yield ok("tokenizer", f"{num_before:,} entries, none is added; digits {ids.start}..{ids.stop - 1}")
    else:
        origin = f"{counted(num_new, 'token')} will be added" if num_new else "there already"
        yield ok("tokenizer", f"{num_before:,} entries; coord tokens {ids.start}..{ids.stop - 1} ({origin})")
        yield from _check_offset_ids(config, ids)
    spec = encoding.image_spec
    yield ok(
        "processor",
        f"chat template renders ({len(encoding.prompt)} tokens around the image); {spec.min_pixels:,} to "
        f"{spec.max_pixels:,} pixels in patches of {spec.patch_size}",
    )
    return encoding


def _check_offset_ids(config: RunConfig, coords: range) -> Check[None]:
    """Compare the ids of the configuration with those that the tokenizer has, or will get."""
    ids = config.custom.coord_offset.listed_ids
    if not config.trains_offset or ids is None:
        return
    if outside := [one for one in (ids[0], ids[-1], *ids) if one not in coords]:
        shown = f"{ids[0]}..{ids[-1]}" if isinstance(ids, range) else f"a list with {outside[0]}"
        yield failure(
            "coord_offset.ids",
            TokenizerError(
                f"custom.coord_offset.ids is {shown}, but {config.model.path} has its coord tokens at "
                f"{coords.start}..{coords.stop - 1}; leave ids out to take the tokenizer's"
            ),
        )
