"""An evaluation outside of training: which checkpoint, which images and how; and the functions that open them."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.vocab import CoordVocab, text_vocab
from coordexp.data.dataset import DEFAULT_PROMPT, DetectionDataset, Prompt
from coordexp.data.patches import ImageSpec
from coordexp.data.sources.coco import read_coco
from coordexp.data.sources.lvis import read_lvis
from coordexp.data.splits import stratified_subset
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import CheckpointError, ResourceError
from coordexp.evaluate.evaluation import EvaluationSpec, SplitEvaluation
from coordexp.evaluate.generate.decode import SplitDecoder
from coordexp.evaluate.generate.given import GivenAnswer, read_given_answers
from coordexp.evaluate.generate.json_record import JsonParser
from coordexp.evaluate.generate.parse import SequenceParser
from coordexp.evaluate.qwen_json import PROMPT, detection_prompt
from coordexp.files import nearest_existing, read_model
from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.model.checkpoint.directory import find_checkpoint, local_checkpoint
from coordexp.model.checkpoint.trained_with import TrainedWith, read_trained_with
from coordexp.model.loading import LoadedModel, load
from coordexp.runs.folder import RunFolder

_MAX_LENGTH = 32_768  # of prompt and image; the answer has its own limit


@dataclass(frozen=True)
class EvaluationJob:
    """What to evaluate; picklable, so that workers elsewhere can take part.

    Attributes:
        model: directory or hub id, or ``embedded``.
        annotations: COCO instances file.
        images: folder of its images.
        adapter: directory of a trained adapter for ``model``.
        spec: how to evaluate.
        prompt: the instruction; None for that of training where the checkpoint says it, else for the default of the
            answer's form. An untouched model is asked for ``{categories}``, which stands for those of the annotation
            file.
        max_pixels: image size limit; None for that of training where the checkpoint says it, else for its own.
        generations: answers to read instead of generating them; None to generate.
        num_images: only so many images, spread over the number of objects, fixed by the data; None for all.
        num_threads: CPU threads of a process; None leaves it to torch. It can change last digits.
    """

    model: str
    annotations: Path
    images: Path
    adapter: Path | None = None
    spec: EvaluationSpec = field(default_factory=EvaluationSpec)
    prompt: str | None = None
    max_pixels: int | None = None
    generations: Path | None = None
    num_images: int | None = None
    num_threads: int | None = None


def open_evaluation(job: EvaluationJob) -> SplitEvaluation:
    """Read the images and the ground truth of a job; needs no model.

    Raises:
        DataError: if they, or the answers of the job, cannot be used, or an alias stands for no category.
    """
    truth = read_ground_truth(job.annotations)
    samples = (read_coco if truth.federated is None else read_lvis)(job.annotations, job.images).samples
    is_subset = job.num_images is not None and job.num_images < len(samples)
    if job.num_images is not None:
        samples = [samples[index] for index in stratified_subset(samples, job.num_images)]
    evaluation = SplitEvaluation(truth, samples, job.spec, subset=is_subset)
    _given(job, evaluation)  # what is wrong with it is known before a model is loaded
    return evaluation


def _given(job: EvaluationJob, evaluation: SplitEvaluation) -> dict[int, GivenAnswer] | None:
    if job.generations is None:
        return None
    wanted = [sample.image_id for sample in evaluation.samples]
    return read_given_answers(job.generations, known=evaluation.truth.sizes_px.keys(), wanted=wanted)


def open_decoder(job: EvaluationJob, evaluation: SplitEvaluation) -> SplitDecoder:
    """Load the model of a job, on the GPU where there is one.

    Raises:
        CoordExpError: if the checkpoint cannot be used, or an image does not fit.
    """
    if job.num_threads is not None:
        torch.set_num_threads(job.num_threads)
    loaded = load(job.model, adapter=job.adapter, device="cuda" if torch.cuda.is_available() else None)
    vocab, tokenizer = _vocab(job, loaded), loaded.processor.tokenizer
    trained = _trained_with(job.adapter, lambda: find_checkpoint(job.model, weights=False))
    prompt = Prompt.build(tokenizer, _instruction(job, evaluation, trained))
    categories, score = evaluation.categories, evaluation.spec.score
    if vocab is None:
        answers = JsonParser(tokenizer, categories=categories, score=score, thinks=_opens_thought(tokenizer, prompt))
    else:
        answers = SequenceParser(vocab, tokenizer, categories=categories, score=score)
    image_spec = ImageSpec.from_processor(
        loaded.processor.image_processor,
        min_pixels=None if trained is None else trained.min_pixels,
        max_pixels=job.max_pixels or (None if trained is None else trained.max_pixels),
    )
    dataset = DetectionDataset(
        samples=evaluation.samples,
        tokenizer=tokenizer,
        vocab=vocab,
        prompt=prompt,
        image_spec=image_spec,
        max_objects=1,
        max_length=_MAX_LENGTH,
        seed=0,
        with_targets=False,
    )
    return SplitDecoder(
        evaluation,
        loaded.model,
        answers=answers,
        tokenizer=tokenizer,
        image_spec=image_spec,
        samples=dataset,
        given=_given(job, evaluation),
        source=job.generations or Path(),
    )


def _vocab(job: EvaluationJob, loaded: LoadedModel) -> CoordVocab | None:
    """Return the vocabulary of the answers; None for JSON, which has none."""
    if job.spec.answer == "qwen-json":
        return None
    if job.spec.answer == "text" or (job.spec.answer is None and loaded.vocab is None):
        return text_vocab(loaded.processor.tokenizer)
    if loaded.vocab is None:
        raise CheckpointError(
            f"{job.model}: the tokenizer has no coord tokens; evaluate a checkpoint trained to write them, digits with "
            "--answer text, or an untouched Qwen3-VL with --answer qwen-json"
        )
    return loaded.vocab


def unlike_training(
    model: str, adapter: Path | None, *, prompt: str | None, max_pixels: int | None, is_json: bool = False
) -> list[str]:
    """Return a sentence for each thing in which a checkpoint is asked otherwise than it was trained.

    Args:
        model: directory or hub id, or ``embedded``; of one that is still to be downloaded nothing is known.
        adapter: directory of a trained adapter for it.
        prompt: the instruction; None for that of training.
        max_pixels: image size limit; None for that of training.
        is_json: whether the model is asked in the vendor's words, which no training of ours had.
    """
    directory = local_checkpoint(model) if adapter is None else adapter
    trained = None if directory is None else _trained_with(adapter, lambda: directory)
    if trained is None:
        return []
    found: list[str] = []
    if max_pixels not in (None, trained.max_pixels):
        found.append(
            f"{directory} was trained on images of at most {trained.max_pixels:,} pixels and is asked with "
            f"{max_pixels:,}; other sizes than those of training can cost nearly all of AP (.47 fell to .003 on drawn "
            "shapes); leave --max-pixels out"
        )
    if prompt not in (None, trained.prompt) and not is_json:
        found.append(
            f"{directory} was trained with the prompt {trained.prompt!r} and is asked with {prompt!r}; leave --prompt "
            "out to take that of training"
        )
    return found


def _trained_with(adapter: Path | None, checkpoint: Callable[[], Path]) -> TrainedWith | None:
    """Return what the adapter says, or where there is none the checkpoint, which is looked for then alone."""
    return read_trained_with(checkpoint()) if adapter is None else read_adapter(adapter).trained_with


def _instruction(job: EvaluationJob, evaluation: SplitEvaluation, trained: TrainedWith | None) -> str:
    if job.spec.answer != "qwen-json":
        return job.prompt or (DEFAULT_PROMPT if trained is None else trained.prompt)
    return detection_prompt(evaluation.truth.categories.values(), template=job.prompt or PROMPT)


def _opens_thought(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> bool:
    """Return whether the prompt has opened the model's reasoning already."""
    return str(tokenizer.decode(list(prompt.after))).rstrip().endswith("<think>")


def default_output(job: EvaluationJob) -> Path:
    """Return where results go by default: beside the checkpoint, in ``eval/NAME-ANNOTATIONS``.

    ``runs/tiny/C-s0/merged`` on ``instances_val.json`` gives ``runs/tiny/C-s0/eval/merged-instances_val``.
    With an adapter, the adapter's place and name are taken; a checkpoint that is not a folder gives ``./eval/...``.
    """
    checkpoint = Path(job.model) if job.adapter is None else job.adapter
    name = f"{checkpoint.resolve().name if checkpoint.is_dir() else job.model.replace('/', '-')}-{job.annotations.stem}"
    if job.spec.answer in ("text", "qwen-json"):
        name += f"-{job.spec.answer}"
    if job.generations is not None:
        name += f"-{job.generations.stem}"
    if job.num_images is not None:
        name += f"-{job.num_images}"
    parent = checkpoint.resolve().parent if checkpoint.is_dir() else Path()
    return RunFolder(parent).evaluation(name).path


def check_output(output: Path) -> None:
    """Check that the folder of the results can be written, before hours are spent on them; leaves nothing behind.

    Raises:
        ResourceError: if it cannot be written.
    """
    try:
        with tempfile.TemporaryFile(dir=nearest_existing(output.absolute())):
            pass
    except OSError as error:
        raise ResourceError(f"{output}: expected a folder that can be written ({error.strerror})") from error


def read_aliases(path: Path) -> dict[str, str]:
    """Read a JSON object ``{"description": "category name"}``.

    Raises:
        DataError: if the file is missing or something else.
    """
    return read_model(dict[str, str], path, what='an object such as {"crimson disc": "red circle"}')
