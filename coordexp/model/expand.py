"""Add the coordinate tokens to a checkpoint on disk, or copy it in another dtype, without loading the model.

Only the tables of the vocabulary get new rows, those that ``coordexp.coord_tokens.vocab`` makes for a model in memory
as well; everything else is copied.

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

_MEAN_COLUMNS = 256  # of a table averaged at a time; a multiple of every vector width, so that no sum changes


@dataclass(frozen=True)
class Expansion:
    """What an expansion made.

    Attributes:
        vocab: the ids after it.
        num_added: new tokens; 0 where the checkpoint had all of them.
        num_rows: rows of the tables now.
        left_behind: what the copy does not have, for a person.
        renamed: which other names the weights had; the copy has the model's.
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

    The checkpoint is ``embedded``, a directory or a hub id, of which ``revision`` is one. How new rows start (``init``)
    is told at :func:`coordexp.coord_tokens.vocab.expand_vocab`; ``progress`` is called with the bytes written.

    Raises:
        CheckpointError: if ``output`` exists or cannot be written, or the checkpoint is missing; else as
            :func:`expand_checkpoint`.
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
    progress: ReportStage = report_stage,
) -> Expansion:
    """Write an expanded copy of a checkpoint into an empty directory: weights, configuration, tokenizer and processor.

    As :func:`expand_to`, in another ``dtype`` (``auto`` keeps each weight's own), with links to the files that do not
    change where ``link`` asks for them.

    Raises:
        CheckpointError: if the checkpoint is damaged, or a weight does not fit ``dtype``.
        TokenizerError: if tokens exist with ids that do not fit, or a needed token is missing.
        ResourceError: if the disk is too small.
    """
    processor, base = Processor.from_directory(source), StoredModel.of(source)
    tokenizer, num_rows = processor.tokenizer, base.shapes[EMBEDDING][0]
    num_before = len(tokenizer)
    check_rows(num_before, num_rows, where=f"{source}: ")
    vocab = expand_tokenizer(tokenizer, structure=structure)
    num_after = len(tokenizer)
    if num_after == num_before:
        _write_copy(base, output, dtype=dtype, link=link, progress=progress)
        return Expansion(vocab, 0, num_rows, renamed=base.renamed)
    digits = digit_ids(tokenizer) if init == "numeric" else None

    def grow(table_VD: Tensor) -> Tensor:
        known_VD = table_VD[:num_before]
        # A float32 copy of a published table would take 1.5 GB.
        mean_D = torch.cat([part.float().mean(dim=0) for part in known_VD.split(_MEAN_COLUMNS, dim=1)])
        digits_10D = None if digits is None else table_VD[digits]
        rows_ND = added_rows(
            mean_D.to(table_VD.dtype), digits_10D, vocab=vocab, num_before=num_before, num_after=num_after
        )
        return torch.cat([known_VD, rows_ND, table_VD[num_after:]])

    num_rows = max(num_rows, num_after)  # rows beyond the tokenizer's entries are padding, and used up first
    _write_copy(base, output, dtype=dtype, link=link, progress=progress, processor=processor, grow=grow, rows=num_rows)
    return Expansion(vocab, num_after - num_before, num_rows, base.left_behind, base.renamed)


def cast_checkpoint(
    source: Path, output: Path, *, dtype: DTypeName = "auto", progress: ReportStage = report_stage
) -> None:
    """Write a copy of a checkpoint to which nothing is added, in another dtype; else as :func:`expand_checkpoint`."""
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
    """Write a copy in another dtype; with ``grow``, of tables with ``rows`` rows, beside another processor."""
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
    tables = set[str]() if grow is None else {EMBEDDING} if base.tied else {EMBEDDING, HEAD}
    specs |= {name: TensorSpec((rows, *specs[name].shape[1:]), specs[name].dtype) for name in tables}

    def make(name: str) -> Tensor:
        cast = base.weights.read(name).to(specs[name].dtype)
        return cast if grow is None or name not in tables else grow(cast)

    write_weights(base, output, specs, make, changed=tables, progress=progress, stage=STAGE, link=link)
    write_config(base, output, specs, tied=base.tied, says_dtype=dtype != "auto")
    (processor or Processor.from_directory(source)).save_pretrained(output)
