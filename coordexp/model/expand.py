"""Add the coordinate tokens to a checkpoint on disk, or copy it in another dtype, without loading the model.

Only the tables of the vocabulary are written anew, with the rows that ``coordexp.coord_tokens.vocab``
makes for a model in memory as well; everything else is copied.

Shapes: V vocabulary, D hidden, N added rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.dtypes import DTypeName
from coordexp.coord_tokens.vocab import (
    CoordVocab,
    InitMethod,
    Structure,
    added_rows,
    added_tokens,
    check_rows,
    digit_ids,
    expand_tokenizer,
)
from coordexp.errors import CheckpointError
from coordexp.files import replace_directory
from coordexp.model.checkpoint.directory import find_checkpoint
from coordexp.model.checkpoint.rewrite import (
    ByteCounter,
    Progress,
    check_space,
    copy_file,
    silent,
    write_config,
    write_weights,
)
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel
from coordexp.model.checkpoint.weights import StoredWeights, TensorSpec, rows_per_piece
from coordexp.model.processor import Processor

STAGE = "expanding shards"

_MEAN_COLUMNS = 256  # of a table averaged at a time; a multiple of every vector width, so that no sum changes


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
    """Return whether a tokenizer still has to be expanded for this structure."""
    known = tokenizer.get_vocab()
    return any(token not in known for token in added_tokens(structure))


def expand_to(
    path_or_id: str | Path,
    output: Path,
    *,
    revision: str | None = None,
    init: InitMethod = "numeric",
    structure: Structure = "native",
    progress: Progress = silent,
) -> Expansion:
    """Write an expanded copy of a checkpoint to a new directory, which appears whole or not at all.

    Args:
        path_or_id: ``embedded``, a directory or a hub id.
        output: a path at which there is nothing.
        revision: of a hub id.
        init: how new rows start, see :func:`coordexp.coord_tokens.vocab.expand_vocab`.
        structure: which object markers are used.
        progress: called with the bytes written.

    Returns:
        The ids, and how many tokens are new.

    Raises:
        CheckpointError: if ``output`` exists or cannot be written, or the checkpoint is missing or damaged.
        TokenizerError: as :func:`expand_checkpoint`.
        ResourceError: if the disk is too small.
    """
    if output.exists():  # before a hub id is downloaded
        raise CheckpointError(f"{output}: exists; expected a new folder for the expanded checkpoint")
    source = find_checkpoint(path_or_id, revision=revision)
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
        progress: called with the bytes written.

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
    base = StoredModel.of(source)
    num_before, num_stored = len(tokenizer), base.shapes[EMBEDDING][0]
    check_rows(num_before, num_stored, where=f"{source}: ")
    vocab = expand_tokenizer(tokenizer, structure=structure)
    num_added = len(tokenizer) - num_before
    specs = {name: base.weights.specs[name].cast_to(dtype) for name in base.shapes}
    if not num_added and all(specs[name] == base.weights.specs[name] for name in specs):
        _copy_all(source, output, link=link, progress=progress)
        return Expansion(vocab, 0, num_stored)
    num_rows = max(num_stored, len(tokenizer))  # rows beyond the tokenizer's entries are padding, and used up first
    tables = {EMBEDDING} if base.tied else {EMBEDDING, HEAD}
    specs |= {name: TensorSpec((num_rows, *specs[name].shape[1:]), specs[name].dtype) for name in tables}
    digits = digit_ids(tokenizer) if num_added and init == "numeric" else None
    growth = _Growth(vocab, digits, num_before, len(tokenizer))

    changed = tables if num_added else set[str]()

    def pieces(name: str) -> Iterator[Tensor]:
        if name in changed:
            yield from _fitting(growth.pieces(base.weights, name, specs[name].dtype), name, base, specs[name])
        else:
            yield from _cast_pieces(name, base, specs[name])

    write_weights(base, output, specs, pieces, changed=changed, progress=progress, stage=STAGE, link=link)
    write_config(base, output, specs, tied=base.tied, says_dtype=dtype != "auto")
    processor.save_pretrained(output)
    return Expansion(vocab, num_added, num_rows)


def cast_checkpoint(source: Path, output: Path, *, dtype: DTypeName = "auto", progress: Progress = silent) -> None:
    """Write a copy of a checkpoint to which nothing is added, in another dtype.

    Args:
        source: a checked checkpoint directory.
        output: an existing, empty directory.
        dtype: of the weights written; ``auto`` keeps each one's own.
        progress: called with the bytes written.

    Raises:
        CheckpointError: if the checkpoint is damaged, or a weight does not fit ``dtype``.
        ResourceError: if the disk is too small.
        OSError: as the disk says.
    """
    base = StoredModel.of(source)
    specs = {name: base.weights.specs[name].cast_to(dtype) for name in base.shapes}
    if all(specs[name] == base.weights.specs[name] for name in specs):
        _copy_all(source, output, link=False, progress=progress)
        return

    def pieces(name: str) -> Iterator[Tensor]:
        return _cast_pieces(name, base, specs[name])

    write_weights(base, output, specs, pieces, changed=set(), progress=progress, stage="copying shards")
    write_config(base, output, specs, tied=base.tied, says_dtype=dtype != "auto")
    Processor.from_directory(source).save_pretrained(output)


def _cast_pieces(name: str, base: StoredModel, spec: TensorSpec) -> Iterator[Tensor]:
    return _fitting((rows.to(spec.dtype) for _, rows in base.weights.pieces(name)), name, base, spec)


def _fitting(written: Iterator[Tensor], name: str, base: StoredModel, spec: TensorSpec) -> Iterator[Tensor]:
    """Yield what is written of a weight, and refuse what a smaller dtype cannot hold."""
    for piece in written:
        if spec.dtype != base.weights.specs[name].dtype and not torch.isfinite(piece).all():
            raise CheckpointError(f"{name}: a weight does not fit {spec.dtype_name}")
        yield piece


@dataclass(frozen=True)
class _Growth:
    """The new rows of the tables.

    Attributes:
        vocab: ids afterwards.
        digits: ids of "0" to "9" under ``init: numeric``; None under ``init: mean``.
        num_before: entries of the tokenizer before.
        num_after: and after.
    """

    vocab: CoordVocab
    digits: list[int] | None
    num_before: int
    num_after: int

    def pieces(self, weights: StoredWeights, name: str, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield an expanded table in blocks of rows, rounded to ``dtype`` before anything is computed."""
        stored = weights.specs[name]
        step = rows_per_piece(stored)
        for start in range(0, self.num_before, step):
            yield weights.rows(name, start, min(start + step, self.num_before)).to(dtype)
        mean_D = torch.cat([self._mean(weights, name, at, dtype) for at in range(0, stored.shape[1], _MEAN_COLUMNS)])
        digits_10D = None if self.digits is None else weights.listed_rows(name, self.digits).to(dtype)
        yield added_rows(
            mean_D.to(dtype), digits_10D, vocab=self.vocab, num_before=self.num_before, num_after=self.num_after
        )
        for start in range(self.num_after, stored.shape[0], step):
            yield weights.rows(name, start, min(start + step, stored.shape[0])).to(dtype)

    def _mean(self, weights: StoredWeights, name: str, start: int, dtype: torch.dtype) -> Tensor:
        columns = weights.columns(name, start, start + _MEAN_COLUMNS, num_rows=self.num_before)
        return columns.to(dtype).float().mean(dim=0)


def _copy_all(source: Path, output: Path, *, link: bool, progress: Progress) -> None:
    files = sorted(file for file in source.iterdir() if file.is_file())
    total = sum(file.stat().st_size for file in files)
    check_space(output, 0 if link else total)
    counter = ByteCounter(progress, STAGE, total)
    for file in files:
        copy_file(file, output / file.name, link=link, counter=counter)
