"""``python -m coordexp evaluate``: a checkpoint and a COCO data set -> detections and AP, without training."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from coordexp.data.coco import read_coco
from coordexp.data.dataset import DetectionDataset
from coordexp.data.image import ImageSpec
from coordexp.data.prompt import DEFAULT_PROMPT, Prompt
from coordexp.errors import CheckpointError
from coordexp.evaluate.run import Decoding, EvaluationSpec, evaluate_split
from coordexp.evaluate.score import ScoreName
from coordexp.files import write_json
from coordexp.metrics import AP_NAMES, BOX_KINDS
from coordexp.model.load import load

_MAX_LENGTH = 32_768  # of prompt and image; the answer has its own limit


def evaluate_checkpoint(
    model: str,
    *,
    annotations: Path,
    images: Path,
    output: Path,
    adapter: Path | None = None,
    decoding: Sequence[Decoding] = ("constrained", "free"),
    score: ScoreName = "coord_desc",
    batch_size: int = 16,
    max_new_tokens: int = 512,
    prompt: str = DEFAULT_PROMPT,
    max_pixels: int | None = None,
    console: Console | None = None,
) -> dict[str, float]:
    """Evaluate a merged checkpoint, or a base with an adapter, on every image of an annotation file.

    Writes ``output/{decoding}/detections.{argmax,expected}.json`` and ``output/metrics.json``, and
    prints a table.

    Args:
        model: directory or hub id.
        annotations: COCO instances file.
        images: folder of its images.
        output: folder of the results.
        adapter: directory of a trained adapter for ``model``.
        decoding: ways of generating.
        score: named score of a detection.
        batch_size: images generated together.
        max_new_tokens: length limit of an answer.
        prompt: the instruction; it should be the one of training.
        max_pixels: image size limit; None for the checkpoint's own.
        console: where to print; None for the terminal.

    Returns:
        The metrics by registered name.

    Raises:
        CoordExpError: if checkpoint, annotations or images cannot be used.
    """
    console = console or Console()
    data = read_coco(annotations, images)
    loaded = load(model, adapter=adapter, device="cuda" if torch.cuda.is_available() else None)
    if loaded.vocab is None:
        raise CheckpointError(f"{model}: the tokenizer has no coord tokens; evaluate a checkpoint trained by coordexp")
    tokenizer = loaded.processor.tokenizer
    image_spec = ImageSpec.from_processor(loaded.processor.image_processor, max_pixels=max_pixels)
    dataset = DetectionDataset(
        samples=data.samples,
        tokenizer=tokenizer,
        vocab=loaded.vocab,
        prompt=Prompt.build(tokenizer, prompt),
        image_spec=image_spec,
        ordering="top_left",
        max_objects=1,
        max_length=_MAX_LENGTH,
        seed=0,
        image_cache_mib=0,
        with_targets=False,
    )
    spec = EvaluationSpec(batch_size=batch_size, max_new_tokens=max_new_tokens, decoding=tuple(decoding), score=score)
    with _progress(console) as progress:
        task = progress.add_task("evaluating", total=None)
        metrics = evaluate_split(
            loaded.model,
            tokenizer=tokenizer,
            vocab=loaded.vocab,
            samples=dataset,
            sizes={sample.image_id: (sample.width, sample.height) for sample in data.samples},
            annotations=annotations,
            image_spec=image_spec,
            spec=spec,
            output=output,
            lengths=dataset.lengths,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    write_json(output / "metrics.json", metrics, indent=1)
    console.print(_table(metrics, spec.decoding, num_images=len(data.samples)))
    return metrics


def _progress(console: Console) -> Progress:
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)


def _table(metrics: dict[str, float], decoding: Sequence[Decoding], *, num_images: int) -> Table:
    table = Table("decoding", "boxes", *AP_NAMES, "objects", "malformed", title=f"{num_images} images")
    for way in decoding:
        counts = [f"{metrics[f'{way}/{name}']:.0f}" for name in ("num_objects", "malformed")]
        for box in BOX_KINDS:
            found = [metrics.get(f"{way}/{box}/{name}") for name in AP_NAMES]
            table.add_row(way, box, *("-" if value is None else f"{value:.3f}" for value in found), *counts)
    return table
