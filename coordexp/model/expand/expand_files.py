"""Add the coordinate tokens to a checkpoint on disk, without loading the model.

Does to files what ``coordexp.coord_tokens.vocab.expand_vocab`` does to a model in memory, with the
same rows bit for bit; only the tables of the vocabulary are written anew, the rest is copied.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.offset_adapter import DTypeName
from coordexp.coord_tokens.vocab import CoordVocab, InitMethod, Structure, added_tokens, expand_tokenizer
from coordexp.errors import CheckpointError, ResourceError, TokenizerError
from coordexp.files import replace_directory, write_json
from coordexp.model.checkpoint.checkpoint_io import JsonObject, check_config
from coordexp.model.checkpoint.skeleton import EMBEDDING, HEAD, Skeleton
from coordexp.model.checkpoint.weight_files import PIECE_BYTES, TensorSpec, write_safetensors
from coordexp.model.expand.expand_tables import ExpandedTables
from coordexp.model.merge.merge_files import carry_files, write_index
from coordexp.model.processor import Processor
from coordexp.model.progress import Progress, silent

STAGE = "expanding shards"

_SMALL_FILES_BYTES = 64 * 2**20  # tokenizer and configuration; the true vocabulary is a file of 19 MB


@dataclass(frozen=True)
class Expansion:
    """What an expansion did.

    Attributes:
        vocab: the ids.
        num_added: new tokens; 0 if the checkpoint had them all and was copied as it is.
        num_rows: of the tables, now.
    """

    vocab: CoordVocab
    num_added: int
    num_rows: int


def lacks_tokens(tokenizer: PreTrainedTokenizerBase, structure: Structure) -> bool:
    """Tell whether a tokenizer still has to be expanded for this structure."""
    known = tokenizer.get_vocab()
    return any(token not in known for token in added_tokens(structure))


def expand_to(
    source: Path,
    output: Path,
    *,
    init: InitMethod = "numeric",
    structure: Structure = "native",
    progress: Progress = silent,
) -> Expansion:
    """Write an expanded copy of a checkpoint to a new directory, which appears whole or not at all.

    Args:
        source: a checked checkpoint directory.
        output: a path at which there is nothing.
        init: how new rows start, see :func:`coordexp.coord_tokens.vocab.expand_vocab`.
        structure: which object markers are used.
        progress: told of the bytes written.

    Returns:
        The ids, and how many tokens are new.

    Raises:
        CheckpointError: if ``output`` exists or cannot be written, or the checkpoint is damaged.
        TokenizerError: as :func:`expand_checkpoint`.
        ResourceError: if the disk is too small.
    """
    if output.exists():
        raise CheckpointError(f"{output}: exists; expected a new folder for the expanded checkpoint")
    try:
        with replace_directory(output) as building:
            return expand_checkpoint(source, building, init=init, structure=structure, progress=progress)
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(output)  # a write that fails names no file
        raise CheckpointError(f"{output}: the expanded checkpoint cannot be written ({error})") from error


def expand_checkpoint(
    source: Path,
    output: Path,
    *,
    init: InitMethod = "numeric",
    structure: Structure = "native",
    dtype: DTypeName = "auto",
    link: bool = False,
    progress: Progress = silent,
) -> Expansion:
    """Write an expanded copy of a checkpoint: weights, configuration, tokenizer and processor.

    Args:
        source: a checked checkpoint directory.
        output: an existing, empty directory.
        init: how new rows start, see :func:`coordexp.coord_tokens.vocab.expand_vocab`.
        structure: which object markers are used.
        dtype: of the weights written; ``auto`` keeps each one's own.
        link: link to the files that do not change, instead of copying them.
        progress: told of the bytes written.

    Returns:
        The ids, and how many tokens are new.

    Raises:
        CheckpointError: if the checkpoint is damaged, or a weight does not fit ``dtype``.
        TokenizerError: if tokens exist with ids that do not fit, or a needed token is missing.
        ResourceError: if the disk is too small.
        OSError: as the disk says.
    """
    processor = Processor.from_directory(source)
    tokenizer = processor.tokenizer
    base = Skeleton.of(source)
    num_before = len(tokenizer)
    vocab = expand_tokenizer(tokenizer, structure=structure)
    num_rows = base.shapes[EMBEDDING][0]
    if num_rows < num_before:
        raise TokenizerError(
            f"{source}: the tokenizer has {num_before} entries but the model only {num_rows} rows: "
            "they do not belong together"
        )
    tables = ExpandedTables(base.weights, vocab, tokenizer, num_before=num_before, init=init)
    writer = _Writer(base, tables, dtype, expands=len(tokenizer) > num_before)
    if writer.changes_nothing:
        _copy_all(source, output, link=link, progress=progress)
        return Expansion(vocab, 0, num_rows)
    writer.write(output, link=link, progress=progress)
    _write_config(source, output, num_rows=tables.num_rows(num_rows), dtype=dtype)
    carry_files(source, output)
    processor.save_pretrained(output)
    return Expansion(vocab, len(tokenizer) - num_before, tables.num_rows(num_rows))


class _Writer:
    """The weights of the copy: what goes into which file, and its data."""

    def __init__(self, base: Skeleton, tables: ExpandedTables, dtype: DTypeName, *, expands: bool) -> None:
        self._base, self._tables, self._dtype = base, tables, dtype
        changed = ({EMBEDDING} if base.tied else {EMBEDDING, HEAD}) if expands else set[str]()
        self._changed = changed
        self._plan: dict[str, dict[str, TensorSpec]] = {}
        for name in sorted(base.shapes):
            self._plan.setdefault(base.weights.files[name].name, {})[name] = self._spec(name)

    @property
    def changes_nothing(self) -> bool:
        """Whether every tensor stays as it is."""
        return not self._changed and all(self._is_kept(specs) for specs in self._plan.values())

    def write(self, output: Path, *, link: bool, progress: Progress) -> None:
        """Write the files of weights, and their index."""
        weights = self._base.weights
        sources = {file.name: file for file in weights.files.values()}
        copied = {file for file, specs in self._plan.items() if self._holds_just(file, specs) and self._is_kept(specs)}
        sizes = {
            file: sources[file].stat().st_size if file in copied else _num_bytes(specs)
            for file, specs in self._plan.items()
        }
        linked = sum(sizes[file] for file in copied) if link else 0
        _check_space(output, sum(sizes.values()) - linked + _SMALL_FILES_BYTES)
        meter = _Meter(progress, sum(sizes.values()))
        for file, specs in sorted(self._plan.items()):
            if file not in copied:
                write_safetensors(output / file, specs, lambda name: meter.counted(self._pieces(name)))
            elif link:
                (output / file).symlink_to(sources[file].resolve())
                meter.add(sizes[file])
            else:
                _copy(sources[file], output / file, meter)
        if weights.sharded:
            write_index(output, self._plan)

    def _spec(self, name: str) -> TensorSpec:
        stored = self._base.weights.specs[name]
        shape = self._tables.shape(name) if name in self._changed else stored.shape
        is_cast = self._dtype != "auto" and stored.dtype.is_floating_point
        return TensorSpec(shape, getattr(torch, self._dtype) if is_cast else stored.dtype)

    def _is_kept(self, specs: dict[str, TensorSpec]) -> bool:
        stored = self._base.weights.specs
        return not self._changed & specs.keys() and all(spec == stored[name] for name, spec in specs.items())

    def _holds_just(self, file: str, specs: dict[str, TensorSpec]) -> bool:
        return {name for name, place in self._base.weights.files.items() if place.name == file} == specs.keys()

    def _pieces(self, name: str) -> Iterator[Tensor]:
        dtype = self._spec(name).dtype
        if name in self._changed:
            pieces = self._tables.pieces(name, dtype=dtype)
        else:
            pieces = (rows.to(dtype) for _, rows in self._base.weights.pieces(name))
        narrower = dtype != self._base.weights.specs[name].dtype
        for piece in pieces:
            if narrower and not torch.isfinite(piece).all():
                raise CheckpointError(f"{name}: a weight does not fit {str(dtype).removeprefix('torch.')}")
            yield piece


class _Meter:
    """Counts bytes and tells of them."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        self.add(0)

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        self._progress(STAGE, self._done, self._total)

    def counted(self, pieces: Iterator[Tensor]) -> Iterator[Tensor]:
        for piece in pieces:
            yield piece
            self.add(piece.nbytes)


def _num_bytes(specs: dict[str, TensorSpec]) -> int:
    return sum(spec.num_bytes for spec in specs.values())


def _check_space(output: Path, needed: int) -> None:
    free = shutil.disk_usage(output).free
    if free < needed:
        raise ResourceError(
            f"{output.parent}: {free / 2**30:.2f} GiB of disk are free, about {needed / 2**30:.2f} GiB are needed for "
            "the expanded checkpoint"
        )


def _write_config(source: Path, output: Path, *, num_rows: int, dtype: DTypeName) -> None:
    config = check_config(source)
    text = config["text_config"]
    assert isinstance(text, dict)  # the model was built from it
    config["text_config"] = {**cast("JsonObject", text), "vocab_size": num_rows}
    if dtype != "auto":
        sections = {name: cast("JsonObject", config[name]) for name in ("text_config", "vision_config")}
        config = _with_dtype(config, dtype) | {name: _with_dtype(one, dtype) for name, one in sections.items()}
    write_json(output / "config.json", config, indent=2)


def _with_dtype(section: JsonObject, dtype: str) -> JsonObject:
    """``torch_dtype`` is the old name of ``dtype``."""
    return {key: value for key, value in section.items() if key != "torch_dtype"} | {"dtype": dtype}


def _copy_all(source: Path, output: Path, *, link: bool, progress: Progress) -> None:
    files = sorted(file for file in source.iterdir() if file.is_file())
    meter = _Meter(progress, sum(file.stat().st_size for file in files))
    if not link:
        _check_space(output, sum(file.stat().st_size for file in files))
    for file in files:
        if link:
            (output / file.name).symlink_to(file.resolve())
            meter.add(file.stat().st_size)
        else:
            _copy(file, output / file.name, meter)


def _copy(source: Path, target: Path, meter: _Meter) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        while piece := read.read(PIECE_BYTES):
            written.write(piece)
            meter.add(len(piece))
