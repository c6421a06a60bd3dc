"""Evaluate a model on a split: generate, parse, score, write detections, compute AP."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.image import ImageSpec
from coordexp.data.prompt import IMAGE_TOKEN
from coordexp.errors import DataError, TokenizerError
from coordexp.evaluate.categories import CategoryIndex
from coordexp.evaluate.coco_files import GroundTruth, read_ground_truth
from coordexp.evaluate.generate import GenerationSpec, Progress, Samples, evaluation_mode, generate_sequences
from coordexp.evaluate.grammar import ObjectGrammar, plain_text_ids
from coordexp.evaluate.parse import DecodeText, parse_objects
from coordexp.evaluate.records import ImageRecord, Scorer, record_metrics, write_records
from coordexp.evaluate.score import ScoreName

Decoding = Literal["constrained", "free"]
Gather = Callable[[list[ImageRecord]], list[list[ImageRecord]] | None]


@dataclass(frozen=True)
class EvaluationSpec:
    """How to evaluate, equal for every group.

    Attributes:
        batch_size: images generated together.
        max_new_tokens: length limit of an answer, the end token included.
        decoding: ``constrained`` (under the object grammar), ``free``, or both.
        score: the named score of a detection.
        aliases: further descriptions -> category names.
    """

    batch_size: int = 16
    max_new_tokens: int = 512
    decoding: tuple[Decoding, ...] = ("constrained", "free")
    score: ScoreName = "coord_desc"
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])


def evaluate_split(
    model: PreTrainedModel | PeftModel,
    *,
    tokenizer: PreTrainedTokenizerBase,
    vocab: CoordVocab,
    samples: Samples,
    sizes: Mapping[int, tuple[int, int]],
    annotations: Path,
    image_spec: ImageSpec,
    spec: EvaluationSpec,
    output: Path,
    rank: int = 0,
    world_size: int = 1,
    gather: Gather | None = None,
    subset: bool = False,
    lengths: Sequence[int] | None = None,
    on_progress: Progress | None = None,
) -> dict[str, float]:
    """Evaluate on every image of a split, or on a subset.

    Every rank calls this with the same arguments but ``rank``. Files go to
    ``output/{decoding}/``, see :func:`coordexp.evaluate.records.write_records`.

    Args:
        model: generates; put in evaluation mode and back.
        tokenizer: the tokenizer of ``vocab``.
        vocab: ids of markers and coord tokens.
        samples: encoded samples with empty targets; a lazy data set is read batch by batch.
        sizes: image id -> original width and height in pixels.
        annotations: the split's annotation file.
        image_spec: how patches become pixel values.
        spec: how to evaluate.
        output: folder of the files.
        rank: this process among ``world_size``.
        world_size: number of processes that share the samples.
        gather: sends a list from each rank, returns all lists on rank 0; None with one process.
        subset: AP over the given samples' images only; otherwise over all images of the file, so
            that an image without a sample counts as one without detections.
        lengths: expected length of each sample, to batch alike ones; a plain list of samples needs none.
        on_progress: called with (images done, images to do) of this rank, over all decodings.

    Returns:
        On rank 0 the metrics, ``{decoding}/{box}/AP`` and so on, undefined ones absent; elsewhere nothing.

    Raises:
        DataError: if annotations, sizes or samples do not fit together.
    """
    if world_size > 1 and gather is None:
        raise ValueError(f"{world_size} ranks need a gather function, got None")
    if len(samples) == 0:
        raise DataError(f"{annotations}: there is no image to evaluate")
    ground_truth = read_ground_truth(annotations)
    scorer = Scorer(CategoryIndex(ground_truth.categories, aliases=spec.aliases), spec.score, sizes)
    shard = range(rank, len(samples), world_size)
    lengths = _lengths(samples) if lengths is None else lengths
    progress = _Progress(len(shard) * len(spec.decoding), on_progress)
    metrics: dict[str, float] = {}
    for decoding in spec.decoding:
        started = time.monotonic()
        with evaluation_mode(model):
            records = _decode(
                model,
                samples,
                tokenizer=tokenizer,
                vocab=vocab,
                spec=spec,
                image_spec=image_spec,
                constrained=decoding == "constrained",
                shard=shard,
                lengths=lengths,
                on_batch=progress.add,
            )
        gathered = [records] if gather is None else gather(records)
        if rank != 0 or gathered is None:
            continue
        merged = _merged(gathered, ground_truth, num_samples=len(samples))
        write_records(output / decoding, merged, scorer)
        image_ids = [record.image_id for record in merged] if subset else None
        found = record_metrics(merged, scorer, ground_truth, image_ids=image_ids)
        found["seconds"] = time.monotonic() - started
        metrics |= {f"{decoding}/{name}": value for name, value in found.items()}
    return metrics


def text_decoder(tokenizer: PreTrainedTokenizerBase) -> DecodeText:
    """Return the ids -> description function: the exact inverse of writing it, no clean-up."""

    def decode_text(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode_text


def _decode(
    model: PreTrainedModel | PeftModel,
    samples: Samples,
    *,
    tokenizer: PreTrainedTokenizerBase,
    vocab: CoordVocab,
    spec: EvaluationSpec,
    image_spec: ImageSpec,
    constrained: bool,
    shard: Sequence[int],
    lengths: Sequence[int] | None,
    on_batch: Callable[[int], None],
) -> list[ImageRecord]:
    """Generate and parse one decoding of this rank's samples."""
    grammar = None
    if constrained:
        grammar = ObjectGrammar.for_model(vocab, tokenizer, vocab_size=model.config.get_text_config().vocab_size)
    generation = GenerationSpec(
        batch_size=spec.batch_size,
        max_new_tokens=spec.max_new_tokens,
        pad_id=_pad_id(tokenizer),
        image_token_id=_image_token_id(tokenizer),
        image_spec=image_spec,
    )
    sequences = generate_sequences(
        model,
        samples,
        vocab=vocab,
        spec=generation,
        grammar=grammar,
        indices=shard,
        lengths=lengths,
        on_batch=on_batch,
    )
    text_ids = frozenset(plain_text_ids(tokenizer))
    decode_text = text_decoder(tokenizer)
    return [
        ImageRecord(seq.image_id, parse_objects(seq, vocab, decode_text, text_ids=text_ids), seq.truncated)
        for seq in sequences
    ]


class _Progress:
    """Adds up finished images over batches and decodings."""

    def __init__(self, total: int, report: Progress | None) -> None:
        self._done = 0
        self._total = total
        self._report = report

    def add(self, count: int) -> None:
        self._done += count
        if self._report is not None:
            self._report(self._done, self._total)


def _merged(
    gathered: Sequence[Sequence[ImageRecord]], ground_truth: GroundTruth, *, num_samples: int
) -> list[ImageRecord]:
    """Order the records of all ranks by image id: the files do not depend on the number of ranks."""
    records = sorted((record for part in gathered for record in part), key=lambda record: record.image_id)
    ids = [record.image_id for record in records]
    repeated = {a for a, b in itertools.pairwise(ids) if a == b}
    if repeated:
        raise DataError(f"image {min(repeated)} is evaluated twice; expected each image once")
    unknown = set(ids) - ground_truth.sizes_px.keys()
    if unknown:
        raise DataError(f"{ground_truth.path}: no image has id {min(unknown)}, but it was evaluated")
    if len(records) != num_samples:
        raise DataError(f"evaluation returned {len(records)} of {num_samples} images; expected each once")
    return records


def _lengths(samples: Samples) -> list[int] | None:
    """Lengths of samples in memory; reading a lazy data set for them would encode every image twice."""
    return [sample.length for sample in samples] if isinstance(samples, list | tuple) else None


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if not isinstance(tokenizer.pad_token_id, int):
        raise TokenizerError("the tokenizer has no padding token; expected pad_token in its configuration")
    return tokenizer.pad_token_id


def _image_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    found = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
    if not isinstance(found, int):
        raise TokenizerError(f"the tokenizer has no token {IMAGE_TOKEN!r}")
    return found
