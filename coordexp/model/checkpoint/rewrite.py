"""Write a changed copy of a checkpoint file by file and piece by piece, so that memory never holds a whole file."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import cast

from torch import Tensor

from coordexp.errors import CheckpointError, ResourceError
from coordexp.files import write_json, write_text
from coordexp.model.checkpoint.directory import CONFIG_FILE, INDEX_FILE, JsonObject, check_config
from coordexp.model.checkpoint.stored_model import EMBEDDING, StoredModel
from coordexp.model.checkpoint.weights import PIECE_BYTES, TensorSpec, write_safetensors

# Called with the name of a stage, how much of it is done and how much there is.
Progress = Callable[[str, int, int], None]

_VISION = "model.visual."
_SMALL_FILES_BYTES = 64 * 2**20  # tokenizer and configuration; the true vocabulary is a file of 19 MB
# What the tokenizer's and the image processor's own files leave out.
_CARRIED = ("generation_config.json", "processor_config.json")


def silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


def write_weights(
    base: StoredModel,
    output: Path,
    specs: Mapping[str, TensorSpec],
    pieces: Callable[[str], Iterable[Tensor]],
    *,
    changed: Set[str],
    progress: Progress,
    stage: str,
    link: bool = False,
) -> None:
    """Write the weights of a copy, and their index if the base has one.

    Shards keep their names, and a tensor stays in its shard; one that the base does not have goes beside
    the embedding. A file of which nothing changes is copied as it is.

    Args:
        base: the checkpoint that is copied.
        output: an existing directory.
        specs: of the copy's tensors, by name.
        pieces: gives the data of a tensor, in order and in the dtype of its ``spec``.
        changed: names of the tensors that hold other numbers than the base's, besides those whose spec differs.
        progress: called with the bytes written.
        stage: what to call the work there.
        link: link to the files that do not change, instead of copying them.

    Raises:
        ResourceError: if the disk is too small.
        OSError: as the disk says.
    """
    plan = _plan(base, specs)
    unchanged = {file for file, members in plan.items() if _is_unchanged(base, file, members, changed)}
    sources = {file.name: file for file in base.weights.files.values()}
    sizes = {
        file: sources[file].stat().st_size if file in unchanged else sum(spec.num_bytes for spec in members.values())
        for file, members in plan.items()
    }
    check_space(output, sum(size for file, size in sizes.items() if not (link and file in unchanged)))
    counter = ByteCounter(progress, stage, sum(sizes.values()))
    for file, members in plan.items():
        if file in unchanged:
            copy_file(sources[file], output / file, link=link, counter=counter)
        else:
            write_safetensors(output / file, members, lambda name: counter.counted(pieces(name)))
    if base.weights.sharded:
        _write_index(output, plan)


def write_config(
    base: StoredModel, output: Path, specs: Mapping[str, TensorSpec], *, tied: bool, says_dtype: bool
) -> None:
    """Write ``config.json`` of a copy, and the small files that no object of ours writes.

    Args:
        base: the checkpoint that was copied.
        output: an existing directory.
        specs: of the copy's tensors, by name.
        tied: whether embedding and head are one table now.
        says_dtype: write the dtypes of the copy's tensors; otherwise what the base's file says stays.
    """
    directory = base.weights.directory
    config = check_config(directory)
    text = _section(config, "text_config") | {"vocab_size": specs[EMBEDDING].shape[0], "tie_word_embeddings": tied}
    vision = _section(config, "vision_config")
    if says_dtype:
        dtype = specs[EMBEDDING].dtype_name
        config, text = _with_dtype(config, dtype), _with_dtype(text, dtype)
        vision = _with_dtype(vision, next((specs[n].dtype_name for n in specs if n.startswith(_VISION)), dtype))
    changes: JsonObject = {"tie_word_embeddings": tied, "text_config": text, "vision_config": vision}
    write_json(output / CONFIG_FILE, config | changes, indent=2)
    for name in _CARRIED:
        if (directory / name).is_file():
            write_text(output / name, (directory / name).read_text(encoding="utf-8"))


def check_space(output: Path, needed_bytes: int) -> None:
    """Check that the disk has room for a checkpoint, with its tokenizer and configuration.

    Raises:
        ResourceError: if it has not.
    """
    free, needed = shutil.disk_usage(output).free, needed_bytes + _SMALL_FILES_BYTES
    if needed_bytes and free < needed:
        raise ResourceError(
            f"{output.parent}: {free / 2**30:.2f} GiB of disk are free, about {needed / 2**30:.2f} GiB are needed for "
            "the checkpoint that is written there"
        )


class ByteCounter:
    """Counts bytes that are written, and reports them as the progress of one stage."""

    def __init__(self, progress: Progress, stage: str, total: int) -> None:
        self._progress, self._stage, self._total, self._done = progress, stage, total, 0
        self.add(0)

    def add(self, num_bytes: int) -> None:
        """Count ``num_bytes`` more."""
        self._done += num_bytes
        self._progress(self._stage, self._done, self._total)

    def counted(self, pieces: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield tensors, counting each when the next is asked for."""
        for piece in pieces:
            yield piece
            self.add(piece.nbytes)


def copy_file(source: Path, target: Path, *, link: bool, counter: ByteCounter) -> None:
    """Copy a file in pieces, or link to it."""
    if link:
        target.symlink_to(source.resolve())
        counter.add(source.stat().st_size)
        return
    with source.open("rb") as read, target.open("wb") as written:
        while piece := read.read(PIECE_BYTES):
            written.write(piece)
            counter.add(len(piece))


def _plan(base: StoredModel, specs: Mapping[str, TensorSpec]) -> dict[str, dict[str, TensorSpec]]:
    """Return the tensors of each file of the copy, by file name."""
    plan: dict[str, dict[str, TensorSpec]] = {}
    for name in sorted(specs):
        place = base.weights.files[name if name in base.shapes else EMBEDDING]
        plan.setdefault(place.name, {})[name] = specs[name]
    return dict(sorted(plan.items()))


def _is_unchanged(base: StoredModel, file: str, members: Mapping[str, TensorSpec], changed: Set[str]) -> bool:
    stored = {name: base.weights.specs[name] for name, place in base.weights.files.items() if place.name == file}
    return stored == members and not changed & members.keys()


def _write_index(output: Path, plan: Mapping[str, Mapping[str, TensorSpec]]) -> None:
    specs = [spec for members in plan.values() for spec in members.values()]
    metadata = {
        "total_size": sum(spec.num_bytes for spec in specs),
        "total_parameters": sum(spec.num_elements for spec in specs),
    }
    places = {name: file for file, members in plan.items() for name in members}
    write_json(output / INDEX_FILE, {"metadata": metadata, "weight_map": dict(sorted(places.items()))}, indent=2)


def _section(config: JsonObject, name: str) -> JsonObject:
    value = config.get(name)
    if not isinstance(value, dict):
        raise CheckpointError(f"{CONFIG_FILE}: no {name}; expected the configuration of a Qwen3-VL")
    return cast("JsonObject", value)


def _with_dtype(section: JsonObject, dtype: str) -> JsonObject:
    """Set a section's dtype; ``torch_dtype`` is the old name of that key."""
    return {key: value for key, value in section.items() if key != "torch_dtype"} | {"dtype": dtype}
