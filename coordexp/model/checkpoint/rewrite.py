"""Write a changed copy of a checkpoint, a shard at a time: memory never holds more than the largest one.

Where files name or shape weights otherwise than the model does, transformers saves it whole.
"""

import copy
import shutil
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from coordexp.errors import CheckpointError, ResourceError
from coordexp.files import write_json, write_text
from coordexp.model.checkpoint.directory import CONFIG_FILE, INDEX_FILE, JsonObject, check_config
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel, empty_model, quiet
from coordexp.model.checkpoint.weights import TensorSpec
from coordexp.stages import ReportStage

_VISION = "model.visual."
_GENERATION_CONFIG = "generation_config.json"
_SMALL_FILES_BYTES = 64 * 2**20  # tokenizer and configuration; the true vocabulary is a file of 19 MB


def write_weights(
    base: StoredModel,
    output: Path,
    specs: Mapping[str, TensorSpec],
    make: Callable[[str], Tensor],
    *,
    changed: Set[str],
    progress: ReportStage,
    stage: str,
    link: bool = False,
) -> None:
    """Write the weights of a copy, and their index if the base has one.

    Shards keep their names, and a tensor stays in its shard; one that the base does not have goes beside
    the embedding. A file of which nothing changes is copied as it is, or with ``link`` linked to.

    ``specs`` and ``make`` give the copy's tensors by name. ``changed`` are those with other numbers than the base's,
    besides those whose spec differs. ``progress`` is called with ``stage`` and the bytes written.

    Raises:
        CheckpointError: if a weight does not fit its new dtype.
        ResourceError: if the disk is too small.
    """
    if base.weights.load is not None:
        _write_converted(base, output, specs, make, progress=progress, stage=stage)
        return
    shards: dict[str, dict[str, TensorSpec]] = {}
    for name in sorted(specs):
        place = base.weights.files[name if name in base.shapes else EMBEDDING]
        shards.setdefault(place.name, {})[name] = specs[name]
    shards = dict(sorted(shards.items()))
    sources = {file.name: file for file in base.weights.files.values()}
    unchanged = {file for file, members in shards.items() if _is_unchanged(base, file, members, changed)}
    sizes = {
        file: sources[file].stat().st_size if file in unchanged else sum(spec.num_bytes for spec in members.values())
        for file, members in shards.items()
    }
    check_space(output, sum(size for file, size in sizes.items() if not (link and file in unchanged)))
    done, total = 0, sum(sizes.values())
    progress(stage, done, total)
    for file, members in shards.items():
        if file in unchanged:
            copy_file(sources[file], output / file, link=link)
        else:
            tensors = dict[str, Tensor]()
            for name, spec in members.items():
                tensors[name] = make(name).contiguous()
                if name in changed or spec != base.weights.specs.get(name):
                    _check_fits(name, tensors[name])
            save_file(tensors, output / file, {"format": "pt"})
            del tensors  # before the next shard is made
        done += sizes[file]
        progress(stage, done, total)
    if base.weights.sharded:
        written = [spec for members in shards.values() for spec in members.values()]
        metadata = {
            "total_size": sum(spec.num_bytes for spec in written),
            "total_parameters": sum(spec.num_elements for spec in written),
        }
        places = {name: file for file, members in shards.items() for name in members}
        write_json(output / INDEX_FILE, {"metadata": metadata, "weight_map": dict(sorted(places.items()))}, indent=2)


def _write_converted(
    base: StoredModel,
    output: Path,
    specs: Mapping[str, TensorSpec],
    make: Callable[[str], Tensor],
    *,
    progress: ReportStage,
    stage: str,
) -> None:
    """Write a copy whose weights transformers renames or reshapes: the model is in memory, and it saves it."""
    total = sum(spec.num_bytes for spec in specs.values())
    check_space(output, total)
    progress(stage, 0, total)
    config = copy.deepcopy(base.config)
    text = config.get_text_config()
    text.vocab_size = specs[EMBEDDING].shape[0]
    config.tie_word_embeddings = text.tie_word_embeddings = base.tied and HEAD not in specs
    model = empty_model(config, dtype=specs[EMBEDDING].dtype)
    tensors = {name: make(name).contiguous() for name in specs}
    for name, tensor in tensors.items():
        _check_fits(name, tensor)
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    with quiet():
        model.save_pretrained(output)
    progress(stage, total, total)


def write_config(
    base: StoredModel, output: Path, specs: Mapping[str, TensorSpec], *, tied: bool, says_dtype: bool
) -> None:
    """Write ``config.json`` of a copy with tensors of these ``specs``, and ``generation_config.json`` as it is.

    Unless ``says_dtype``, what the base's file says of dtypes stays.
    """
    directory = base.weights.directory
    if (directory / _GENERATION_CONFIG).is_file():
        write_text(output / _GENERATION_CONFIG, (directory / _GENERATION_CONFIG).read_text(encoding="utf-8"))
    if base.weights.load is not None:  # transformers wrote it, beside the weights
        return
    config = check_config(directory)
    text, vision = (cast("JsonObject", config[name]) for name in ("text_config", "vision_config"))
    text = text | {"vocab_size": specs[EMBEDDING].shape[0], "tie_word_embeddings": tied}
    if says_dtype:
        dtype = specs[EMBEDDING].dtype_name
        config, text = _with_dtype(config, dtype), _with_dtype(text, dtype)
        vision = _with_dtype(vision, next((specs[n].dtype_name for n in specs if n.startswith(_VISION)), dtype))
    changes: JsonObject = {"tie_word_embeddings": tied, "text_config": text, "vision_config": vision}
    write_json(output / CONFIG_FILE, config | changes, indent=2)


def check_space(output: Path, needed_bytes: int) -> None:
    """Raise ResourceError if the disk has no room for a checkpoint, its tokenizer and configuration included."""
    free, needed = shutil.disk_usage(output).free, needed_bytes + _SMALL_FILES_BYTES
    if needed_bytes and free < needed:
        raise ResourceError(
            f"{output.parent}: {free / 2**30:.2f} GiB of disk are free, about {needed / 2**30:.2f} GiB are needed for "
            "the checkpoint that is written there"
        )


def copy_file(source: Path, target: Path, *, link: bool) -> None:
    if link:
        target.symlink_to(source.resolve())
    else:
        shutil.copyfile(source, target)


def _check_fits(name: str, tensor: Tensor) -> None:
    """Refuse numbers that a smaller dtype, or the sum of a merge, made infinite."""
    if tensor.is_floating_point() and tensor.numel() and not torch.isfinite(torch.stack(tensor.aminmax())).all():
        raise CheckpointError(f"{name}: a weight does not fit {str(tensor.dtype).removeprefix('torch.')}")


def _is_unchanged(base: StoredModel, file: str, members: Mapping[str, TensorSpec], changed: Set[str]) -> bool:
    stored = {name: base.weights.specs[name] for name, place in base.weights.files.items() if place.name == file}
    return stored == members and not changed & members.keys()


def _with_dtype(section: JsonObject, dtype: str) -> JsonObject:
    """Set a section's dtype; ``torch_dtype`` is the old name of that key."""
    return {key: value for key, value in section.items() if key != "torch_dtype"} | {"dtype": dtype}
