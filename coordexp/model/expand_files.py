"""Add the coordinate tokens to a checkpoint on disk, without loading the model.

Does to files what ``coordexp.coord_tokens.vocab.expand_vocab`` does to a model in memory, with the
same rows bit for bit; only the tables of the vocabulary are written anew.

Shapes: V vocabulary, D hidden, N added rows.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.vocab import (
    CoordVocab,
    InitMethod,
    Structure,
    added_tokens,
    digit_ids,
    expand_tokenizer,
    numeric_rows,
)
from coordexp.errors import TokenizerError
from coordexp.files import write_json
from coordexp.model.checkpoint_io import check_config
from coordexp.model.merge_files import carry_files, write_index
from coordexp.model.processor import Processor
from coordexp.model.progress import Progress, silent
from coordexp.model.skeleton import EMBEDDING, HEAD, Skeleton
from coordexp.model.weight_files import StoredWeights, TensorSpec, rows_per_piece, write_safetensors

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
    """Tell whether a tokenizer still has to be expanded for this structure."""
    known = tokenizer.get_vocab()
    return any(token not in known for token in added_tokens(structure))


def expand_checkpoint(
    source: Path,
    output: Path,
    *,
    init: InitMethod = "numeric",
    structure: Structure = "native",
    link: bool = False,
    progress: Progress = silent,
) -> Expansion:
    """Write an expanded copy of a checkpoint: weights, configuration, tokenizer and processor.

    Args:
        source: a checked checkpoint directory.
        output: an existing, empty directory.
        init: how new rows start, see :func:`coordexp.coord_tokens.vocab.expand_vocab`.
        structure: which object markers are used.
        link: link to the files that do not change, instead of copying them.
        progress: told of every shard.

    Returns:
        The ids, and how many tokens are new.

    Raises:
        CheckpointError: if the checkpoint is damaged.
        TokenizerError: if tokens exist with ids that do not fit, or a needed token is missing.
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
    if len(tokenizer) == num_before:
        _copy_all(source, output, link=link)
        return Expansion(vocab, 0, num_rows)
    tables = _Tables(base.weights, vocab, tokenizer, num_before=num_before, init=init)
    _write_shards(base, tables, output, link=link, progress=progress)
    _write_config(source, output, num_rows=tables.num_rows(num_rows))
    carry_files(source, output)
    processor.save_pretrained(output)
    return Expansion(vocab, len(tokenizer) - num_before, tables.num_rows(num_rows))


class _Tables:
    """The new rows of a table of the vocabulary, and the table with them."""

    def __init__(
        self,
        weights: StoredWeights,
        vocab: CoordVocab,
        tokenizer: PreTrainedTokenizerBase,
        *,
        num_before: int,
        init: InitMethod,
    ) -> None:
        self._weights, self._vocab = weights, vocab
        self._num_before, self._num_after = num_before, len(tokenizer)
        self._digit_ids = digit_ids(tokenizer) if init == "numeric" else []

    def num_rows(self, num_stored: int) -> int:
        """Return how many rows a table has afterwards; padding that was there is used up first."""
        return max(num_stored, self._num_after)

    def spec(self, name: str) -> TensorSpec:
        """Return shape and dtype of the expanded table."""
        stored = self._weights.specs[name]
        return TensorSpec((self.num_rows(stored.shape[0]), *stored.shape[1:]), stored.dtype)

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Yield the expanded table in blocks of rows."""
        stored = self._weights.specs[name]
        step = rows_per_piece(stored)
        for start in range(0, self._num_before, step):
            yield self._weights.rows(name, start, min(start + step, self._num_before))
        yield self._new_rows(name)
        for start in range(self._num_after, stored.shape[0], step):
            yield self._weights.rows(name, start, min(start + step, stored.shape[0]))

    def _new_rows(self, name: str) -> Tensor:
        stored = self._weights.specs[name]
        rows_ND = self._mean_row(name).repeat(self._num_after - self._num_before, 1)
        if self._digit_ids:
            coords = self._vocab.coord_ids
            # Coord rows that were there before (a native checkpoint expanded for spec) may be trained: they stay.
            old = max(0, self._num_before - coords.start)
            numeric = numeric_rows(self._weights.listed_rows(name, self._digit_ids))[old:].to(stored.dtype)
            start = coords.start + old - self._num_before
            rows_ND[start : start + len(numeric)] = numeric
        return rows_ND

    def _mean_row(self, name: str) -> Tensor:
        stored = self._weights.specs[name]
        parts = [
            self._weights.columns(name, start, start + _MEAN_COLUMNS, num_rows=self._num_before).float().mean(dim=0)
            for start in range(0, stored.shape[1], _MEAN_COLUMNS)
        ]
        return torch.cat(parts).to(stored.dtype)


def _write_shards(base: Skeleton, tables: _Tables, output: Path, *, link: bool, progress: Progress) -> None:
    weights = base.weights
    changed = {EMBEDDING} if base.tied else {EMBEDDING, HEAD}
    shards: dict[str, dict[str, TensorSpec]] = {}
    for name in sorted(base.shapes):
        spec = tables.spec(name) if name in changed else weights.specs[name]
        shards.setdefault(weights.files[name].name, {})[name] = spec

    def pieces(name: str) -> Iterator[Tensor]:
        yield from tables.pieces(name) if name in changed else (rows for _, rows in weights.pieces(name))

    sources = {weights.files[name].name: weights.files[name] for name in base.shapes}
    for number, (file, specs) in enumerate(sorted(shards.items())):
        progress(STAGE, number, len(shards))
        only_these = {name for name, place in weights.files.items() if place.name == file} == specs.keys()
        if changed & specs.keys() or not only_these:
            write_safetensors(output / file, specs, pieces)
        else:
            _copy(sources[file], output / file, link=link)
    progress(STAGE, len(shards), len(shards))
    if weights.sharded:
        write_index(output, shards)


def _write_config(source: Path, output: Path, *, num_rows: int) -> None:
    config = check_config(source)
    text = config["text_config"]
    assert isinstance(text, dict)  # the model was built from it
    write_json(output / "config.json", config | {"text_config": {**text, "vocab_size": num_rows}}, indent=2)


def _copy_all(source: Path, output: Path, *, link: bool) -> None:
    for file in sorted(source.iterdir()):
        if file.is_file():
            _copy(file, output / file.name, link=link)


def _copy(source: Path, target: Path, *, link: bool) -> None:
    if link:
        target.symlink_to(source.resolve())
    else:
        shutil.copyfile(source, target)
