"""Add the coordinate tokens to a checkpoint on disk, or copy it in another dtype, without loading the model.

Embedding and head get new rows, the same that ``coordexp.coord_tokens.vocab`` makes for a model in memory. Everything
else is copied.

Shapes: V vocabulary, D hidden, N added rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from coordexp.coord_tokens.dtypes import DTypeName
from coordexp.coord_tokens.vocab import (
    CoordVocab,
    InitMethod,
    Structure,
    added_rows,
    check_rows,
    digit_ids,
    expand_tokenizer,
)
from coordexp.errors import CheckpointError
from coordexp.files import replace_directory
from coordexp.model.checkpoint.directory import find_checkpoint
from coordexp.model.checkpoint.rewrite import check_space, copy_file, write_config, write_weights
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel
from coordexp.model.checkpoint.weights import TensorSpec
from coordexp.model.processor import Processor
from coordexp.stages import ReportStage, report_stage

STAGE = "expanding shards"

_MEAN_COLUMNS = 256  # averaged at a time; a multiple of every vector width, so that sums round as over the whole table


@dataclass(frozen=True)
class Expansion:
    """What an expansion made.

    Attributes:
        vocab: the vocabulary of the copy.
        num_added: new tokens; 0 if the checkpoint had all of them.
        num_rows: rows of the copy's tables.
        left_behind: for a person, what the copy lacks.
        renamed: for a person, which other names the weights had; the copy has those of the model.
    """

    vocab: CoordVocab
    num_added: int
    num_rows: int
    left_behind: str = ""
    renamed: str = ""


def expand_to(
    path_or_id: str | Path,
    output: Path,
    *,
    revision: str | None = None,
    init: InitMethod = "numeric",
    structure: Structure = "native",
    progress: ReportStage = report_stage,
) -> Expansion:
    """Write an expanded copy of a checkpoint to a new directory, which appears whole or not at all.

    Args:
        path_or_id: ``embedded``, a directory or a hub id.
        output: the directory.
        revision: of a hub id.
        init: how new rows start, see :func:`coordexp.coord_tokens.vocab.expand_vocab`.
        structure: which object markers are used.
        progress: called with the stage, the bytes written, and all bytes.

    Returns:
        What was made.

    Raises:
        CheckpointError: if ``output`` exists or cannot be written, or the checkpoint is missing or damaged.
        TokenizerError: if tokens exist with ids that do not fit, or a needed token is missing.
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
            error.filename = str(output)  # the error of a failed write names no file
        raise CheckpointError(f"{output}: the expanded checkpoint cannot be written ({error})") from error


def expand_checkpoint(
    source: Path,
    output: Path,
    *,
    init: InitMethod = "numeric",
    structure: Structure = "native",
    dtype: DTypeName = "auto",
    link: bool = False,
    progress: ReportStage = report_stage,
) -> Expansion:
    """Write an expanded copy of a checkpoint into an empty directory: weights, configuration, tokenizer and processor.

    Args:
        source: folder of the checkpoint.
        output: the empty directory.
        init: how new rows start, see :func:`coordexp.coord_tokens.vocab.expand_vocab`.
        structure: which object markers are used.
        dtype: dtype of the copy; ``auto`` keeps that of each weight.
        link: whether a file in which nothing changes is linked to instead of copied.
        progress: called with the stage, the bytes written, and all bytes.

    Returns:
        What was made.

    Raises:
        CheckpointError: if the checkpoint is damaged, or a weight does not fit ``dtype``.
        TokenizerError: if tokens exist with ids that do not fit, or a needed token is missing.
        ResourceError: if the disk is too small.
    """
    processor = Processor.from_directory(source)
    base = StoredModel.of(source)
    tokenizer = processor.tokenizer
    num_rows = base.shapes[EMBEDDING][0]
    num_before = len(tokenizer)
    check_rows(num_before, num_rows, where=f"{source}: ")
    vocab = expand_tokenizer(tokenizer, structure=structure)
    num_after = len(tokenizer)
    if num_after == num_before:
        _write_copy(base, output, dtype=dtype, link=link, progress=progress)
        return Expansion(vocab, 0, num_rows, renamed=base.renamed)
    digits = digit_ids(tokenizer) if init == "numeric" else None

    def grow(table_VD: Tensor) -> Tensor:
        old_rows_VD = table_VD[:num_before]
        # Column by column: a float32 copy of a released table would take 1.5 GB.
        mean_D = torch.cat([columns.float().mean(dim=0) for columns in old_rows_VD.split(_MEAN_COLUMNS, dim=1)])
        digits_10D = None if digits is None else table_VD[digits]
        rows_ND = added_rows(
            mean_D.to(table_VD.dtype), digits_10D, vocab=vocab, num_before=num_before, num_after=num_after
        )
        return torch.cat([old_rows_VD, rows_ND, table_VD[num_after:]])

    num_rows = max(num_rows, num_after)  # rows beyond the tokenizer's entries are padding, which new tokens take first
    _write_copy(base, output, dtype=dtype, link=link, progress=progress, processor=processor, grow=grow, rows=num_rows)
    return Expansion(vocab, num_after - num_before, num_rows, base.left_behind, base.renamed)


def cast_checkpoint(
    source: Path, output: Path, *, dtype: DTypeName = "auto", progress: ReportStage = report_stage
) -> None:
    """Write a copy of a checkpoint in another dtype. Arguments and errors are those of :func:`expand_checkpoint`."""
    _write_copy(StoredModel.of(source), output, dtype=dtype, progress=progress)


def _write_copy(
    base: StoredModel,
    output: Path,
    *,
    dtype: DTypeName,
    progress: ReportStage,
    link: bool = False,
    processor: Processor | None = None,
    grow: Callable[[Tensor], Tensor] | None = None,
    rows: int = 0,
) -> None:
    """Write a copy of a checkpoint.

    Args:
        base: the checkpoint.
        output: the empty directory.
        dtype: dtype of the copy; ``auto`` keeps that of each weight.
        progress: called with the stage, the bytes written, and all bytes.
        link: whether a file in which nothing changes is linked to instead of copied.
        processor: of the copy; None for that of the checkpoint.
        grow: returns an expanded table from a table of the checkpoint; None if tables stay as they are.
        rows: rows of an expanded table.
    """
    source = base.weights.directory
    specs = {name: base.weights.specs[name].cast_to(dtype) for name in base.shapes}
    is_same = grow is None and all(specs[name] == base.weights.specs[name] for name in specs)
    if is_same and not base.renamed:
        files = sorted(file for file in source.iterdir() if file.is_file())
        total = sum(file.stat().st_size for file in files)
        check_space(output, 0 if link else total)
        for file in files:
            copy_file(file, output / file.name, link=link)
        progress(STAGE, total, total)
        return
    tables = set[str]()
    if grow is not None:
        tables = {EMBEDDING} if base.tied else {EMBEDDING, HEAD}
    for name in tables:
        spec = specs[name]
        specs[name] = TensorSpec((rows, *spec.shape[1:]), spec.dtype)

    def make(name: str) -> Tensor:
        tensor = base.weights.read(name).to(specs[name].dtype)
        if grow is None or name not in tables:
            return tensor
        return grow(tensor)

    write_weights(base, output, specs, make, changed=tables, progress=progress, stage=STAGE, link=link)
    write_config(base, output, specs, tied=base.tied, says_dtype=dtype != "auto")
    (processor or Processor.from_directory(source)).save_pretrained(output)
