"""Write a changed copy of a checkpoint, one shard at a time, so that memory never holds more than the largest shard.

If the files name or shape weights differently from the model, transformers saves the whole model instead.
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
_SMALL_FILES_BYTES = 64 * 2**20  # tokenizer and configuration; the vocabulary of a released model is 19 MB


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

    Shards keep their names, and a tensor stays in its shard. A tensor that the base does not have goes into the shard
    of the embedding. A file in which nothing changes is copied as it is.

    Args:
        base: the checkpoint that is copied.
        output: folder of the copy.
        specs: shape and dtype of each tensor of the copy, by name.
        make: returns a tensor of the copy by name. It is called when the tensor's shard is written.
        changed: names of tensors with other numbers than in the base. A tensor whose spec differs need not be listed.
        progress: called with ``stage``, the bytes written, and all bytes.
        stage: what ``progress`` calls this work.
        link: whether a file in which nothing changes is linked to instead of copied.

    Raises:
        CheckpointError: if a weight does not fit its new dtype.
        ResourceError: if the disk is too small.
    """
    if base.weights.load is not None:
        _write_converted(base, output, specs, make, progress=progress, stage=stage)
        return
    shards = _shards(base, specs)
    source_files = {file.name: file for file in base.weights.files.values()}
    unchanged = {file for file, members in shards.items() if _is_unchanged(base, file, members, changed)}
    sizes: dict[str, int] = {}
    for file, members in shards.items():
        if file in unchanged:
            sizes[file] = source_files[file].stat().st_size
        else:
            sizes[file] = sum(spec.num_bytes for spec in members.values())
    linked = unchanged if link else set[str]()
    check_space(output, sum(size for file, size in sizes.items() if file not in linked))

    done = 0
    total = sum(sizes.values())
    progress(stage, done, total)
    for file, members in shards.items():
        if file in unchanged:
            copy_file(source_files[file], output / file, link=link)
        else:
            tensors = dict[str, Tensor]()
            for name, spec in members.items():
                tensors[name] = make(name).contiguous()
                if name in changed or spec != base.weights.specs.get(name):
                    _check_fits(name, tensors[name])
            save_file(tensors, output / file, {"format": "pt"})
            del tensors  # so that the next shard does not exist beside this one
        done += sizes[file]
        progress(stage, done, total)
    if base.weights.sharded:
        _write_index(output, shards)


def _shards(base: StoredModel, specs: Mapping[str, TensorSpec]) -> dict[str, dict[str, TensorSpec]]:
    """Return which tensors go into which file of a copy, both sorted by name."""
    shards: dict[str, dict[str, TensorSpec]] = {}
    for name in sorted(specs):
        source = base.weights.files[name if name in base.shapes else EMBEDDING]
        shards.setdefault(source.name, {})[name] = specs[name]
    return dict(sorted(shards.items()))


def _write_index(output: Path, shards: Mapping[str, Mapping[str, TensorSpec]]) -> None:
    file_by_tensor: dict[str, str] = {}
    total_size = 0
    total_parameters = 0
    for file, members in shards.items():
        for name, spec in members.items():
            file_by_tensor[name] = file
            total_size += spec.num_bytes
            total_parameters += spec.num_elements
    metadata = {"total_size": total_size, "total_parameters": total_parameters}
    weight_map = dict(sorted(file_by_tensor.items()))
    write_json(output / INDEX_FILE, {"metadata": metadata, "weight_map": weight_map}, indent=2)


def _write_converted(
    base: StoredModel,
    output: Path,
    specs: Mapping[str, TensorSpec],
    make: Callable[[str], Tensor],
    *,
    progress: ReportStage,
    stage: str,
) -> None:
    """Write a copy of a base whose weights transformers renames or reshapes: build it and let it save itself.

    Arguments and errors are those of :func:`write_weights`.
    """
    total = sum(spec.num_bytes for spec in specs.values())
    check_space(output, total)
    progress(stage, 0, total)
    config = copy.deepcopy(base.config)
    text_config = config.get_text_config()
    text_config.vocab_size = specs[EMBEDDING].shape[0]
    is_tied = base.tied and HEAD not in specs
    config.tie_word_embeddings = is_tied
    text_config.tie_word_embeddings = is_tied
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
    """Write ``config.json`` of a copy, and copy ``generation_config.json``.

    Args:
        base: the checkpoint that was copied.
        output: folder of the copy.
        specs: shape and dtype of each tensor of the copy, by name.
        tied: whether embedding and head of the copy are one table.
        says_dtype: whether the dtypes of the copy are written. If not, those in the base's file stay.
    """
    directory = base.weights.directory
    if (directory / _GENERATION_CONFIG).is_file():
        write_text(output / _GENERATION_CONFIG, (directory / _GENERATION_CONFIG).read_text(encoding="utf-8"))
    if base.weights.load is not None:  # transformers wrote config.json together with the weights
        return
    config = check_config(directory)
    text = cast("JsonObject", config["text_config"])
    vision = cast("JsonObject", config["vision_config"])
    text = text | {"vocab_size": specs[EMBEDDING].shape[0], "tie_word_embeddings": tied}
    if says_dtype:
        dtype = specs[EMBEDDING].dtype_name
        vision_dtype = next((spec.dtype_name for name, spec in specs.items() if name.startswith(_VISION)), dtype)
        config = _with_dtype(config, dtype)
        text = _with_dtype(text, dtype)
        vision = _with_dtype(vision, vision_dtype)
    changes: JsonObject = {"tie_word_embeddings": tied, "text_config": text, "vision_config": vision}
    write_json(output / CONFIG_FILE, config | changes, indent=2)


def check_space(output: Path, needed_bytes: int) -> None:
    """Raise a ResourceError if the disk has no room for weights of ``needed_bytes``, tokenizer and configuration."""
    free = shutil.disk_usage(output).free
    needed = needed_bytes + _SMALL_FILES_BYTES
    if needed_bytes and free < needed:
        raise ResourceError(
            f"{output.parent}: {free / 2**30:.2f} GiB of disk are free, about {needed / 2**30:.2f} GiB are needed for "
            "the checkpoint that is written there"
        )


def copy_file(source: Path, target: Path, *, link: bool) -> None:
    """Copy a file, or with ``link`` make a symbolic link to it."""
    if link:
        target.symlink_to(source.resolve())
    else:
        shutil.copyfile(source, target)


def _check_fits(name: str, tensor: Tensor) -> None:
    """Raise a CheckpointError if a smaller dtype, or the sum of a merge, made a number infinite."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    extremes = torch.stack(tensor.aminmax())  # NaN or infinite if any number is
    if not torch.isfinite(extremes).all():
        raise CheckpointError(f"{name}: a weight does not fit {str(tensor.dtype).removeprefix('torch.')}")


def _is_unchanged(base: StoredModel, file: str, members: Mapping[str, TensorSpec], changed: Set[str]) -> bool:
    """Return whether a file of the copy holds the same tensors as the base's file of that name."""
    names = [name for name, source in base.weights.files.items() if source.name == file]
    specs_in_base = {name: base.weights.specs[name] for name in names}
    return specs_in_base == members and not changed & members.keys()


def _with_dtype(section: JsonObject, dtype: str) -> JsonObject:
    """Return a section with another dtype, and without ``torch_dtype``, the old name of that key."""
    without_old_key = {key: value for key, value in section.items() if key != "torch_dtype"}
    return without_old_key | {"dtype": dtype}
