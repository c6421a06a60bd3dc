"""Evaluate a model on a split: generate, parse, score, write detections, compute AP."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.images.patches import ImageSpec
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.coco_files import read_ground_truth
from coordexp.errors import DataError
from coordexp.evaluate.distributions import images_with_curves
from coordexp.evaluate.finish import finish_decoding
from coordexp.evaluate.generate.decode import EvaluationSpec, SplitDecoder
from coordexp.evaluate.generate.generation import Progress, Samples
from coordexp.evaluate.records import ImageRecord, Scorer
from coordexp.runs.folder import EvaluationFolder

Gather = Callable[[list[ImageRecord]], list[list[ImageRecord]] | None]


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
    details: bool = False,
    lengths: Sequence[int] | None = None,
    on_progress: Progress | None = None,
) -> dict[str, float]:
    """Evaluate on every image of a split, or on a subset.

    Every rank calls this with the same arguments but ``rank``, and takes every ``world_size``-th
    batch: the same batches for any number of ranks. Files go to ``output/{decoding}/``, see
    :func:`coordexp.evaluate.records.write_records`.

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
        details: also write ``analysis.json`` and ``distributions.json``.
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
    decoder = SplitDecoder(
        model,
        tokenizer=tokenizer,
        vocab=vocab,
        samples=samples,
        image_spec=image_spec,
        spec=spec,
        lengths=lengths,
        images_with_curves=images_with_curves(ground_truth, sizes.keys()) if details else (),
    )
    batches = decoder.batches[rank::world_size]
    progress = _Progress(sum(map(len, batches)) * len(spec.decoding), on_progress)
    metrics: dict[str, float] = {}
    for decoding in spec.decoding:
        started = time.monotonic()
        records = decoder.decode(decoding, batches, on_batch=progress.add)
        gathered = [records] if gather is None else gather(records)
        if rank != 0 or gathered is None:
            continue
        found = finish_decoding(
            EvaluationFolder(output).decoding(decoding).path,
            gathered,
            scorer=scorer,
            ground_truth=ground_truth,
            num_samples=len(samples),
            subset=subset,
            details=details,
        )
        found["seconds"] = time.monotonic() - started
        metrics |= {f"{decoding}/{name}": value for name, value in found.items()}
    return metrics


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
