"""An evaluation outside of training: functions that open the data and the model that its settings name."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from coordexp.config.schema.data import Data
from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.coord_tokens.vocab import CoordVocab, text_vocab
from coordexp.data.images.patches import ImageSpec
from coordexp.data.prompt import DEFAULT_PROMPT, Prompt
from coordexp.data.sets.data_set import DataSet
from coordexp.data.sources.door import SetPlace, open_set
from coordexp.data.splits.subset import stratified_subset
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import CheckpointError, DataError, ResourceError, counted
from coordexp.evaluate.answers import seem_in_pixels
from coordexp.evaluate.evaluation import EvaluationImages, ModelEvaluation
from coordexp.evaluate.generate.formats import SequenceFormat
from coordexp.evaluate.generate.given import read_given_answers
from coordexp.evaluate.generate.model import AnsweringModel, encoder_of_prompts
from coordexp.evaluate.generate.qwen_json import PROMPT, JsonFormat, detection_prompt
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.files import nearest_existing
from coordexp.model.checkpoint.adapter import read_adapter
from coordexp.model.checkpoint.directory import find_checkpoint, local_checkpoint, model_family
from coordexp.model.checkpoint.trained_with import TrainedWith, read_trained_with
from coordexp.model.families import family_of
from coordexp.model.loading import LoadedModel, load
from coordexp.runs.folder import EvaluationFolder, RunFolder


def make_set(settings: EvaluationSettings, set_dir: Path) -> DataSet:
    """Read annotations and pictures once, into a set below ``set_dir``, or check the set that is there.

    Raises:
        DataError: if they cannot be used.
    """
    truth = read_ground_truth(settings.annotations)
    reading = settings.reading
    data = Data.model_validate(
        {
            "format": "coco" if truth.federated is None else "lvis",
            # The schema asks for training data too; only the validation split is read below.
            "train_annotations": settings.annotations,
            "train_images": settings.images,
            "val_annotations": settings.annotations,
            "val_images": settings.images,
            "boxes_in": reading.boxes_in,
            "categories": {"merge": reading.merge},
            "max_bad_fraction": reading.max_bad_fraction,
        }
    )
    place = SetPlace(data_dir=set_dir, known=set_dir / ".hashes")
    return open_set(data, place, splits=("val",))


def open_data(settings: EvaluationSettings) -> EvaluationImages:
    """Return images, ground truth and given answers; needs no model.

    Raises:
        DataError: if they cannot be used, or an alias names no category.
    """
    if settings.set_path is None:
        with tempfile.TemporaryDirectory() as folder:
            return _data_of(settings, make_set(settings, Path(folder)))
    if not settings.set_path.is_dir():
        raise DataError(f"{settings.set_path}: not here; --output has to be a folder that every node sees")
    return _data_of(settings, DataSet.open(settings.set_path))


def _data_of(settings: EvaluationSettings, data_set: DataSet) -> EvaluationImages:
    split = data_set.load("val")
    samples = split.samples
    is_subset = settings.num_images is not None and settings.num_images < len(samples)
    if settings.num_images is not None:
        samples = [samples[index] for index in stratified_subset(samples, settings.num_images)]
    # Errors name the user's own file, and not the copy in the set.
    truth = replace(read_ground_truth(data_set.ground_truth), path=settings.annotations)
    remarks = [*split.notes, *split.warnings, *truth.size_remarks]
    if split.rejected:
        first = split.rejected[0]
        remarks.append(f"{counted(len(split.rejected), 'record')} left out, e.g. {first.where}: {first.reason}")

    given_answers = None
    if settings.generations is not None:
        answers = read_given_answers(
            settings.generations,
            known=truth.sizes_px.keys(),
            wanted=[sample.image_id for sample in samples],
            names=truth.names,
            prefers_text=settings.answer == "qwen-json",
        )
        given_answers = answers.by_image
        remarks += answers.remarks
    categories = CategoryIndex(truth.categories, aliases=settings.aliases)
    return EvaluationImages(truth, samples, categories, is_subset, given_answers, tuple(remarks))


def open_evaluation(settings: EvaluationSettings, data: EvaluationImages) -> ModelEvaluation:
    """Load the model and plan the evaluation.

    Raises:
        CoordExpError: if the model cannot be used, or an image does not fit it.
    """
    return ModelEvaluation(open_model(settings, data.truth.categories.values()), data, settings)


def scale_warning(settings: EvaluationSettings, folder: EvaluationFolder, data: EvaluationImages) -> str | None:
    """Return a warning if a model that answers in JSON seems to write pixels, although its family does not.

    A model that somebody has tuned may do so. Its boxes, read as thousandths, give an AP that means nothing.

    Args:
        settings: of the evaluation.
        folder: its results.
        data: its images.
    """
    if settings.answer != "qwen-json":
        return None
    directory = local_checkpoint(settings.model)
    if directory is not None and model_family(directory).json_boxes == "pixels":
        return None
    detections = read_detections(folder.decoding("free").detections("argmax"), data.truth)
    if not seem_in_pixels(detections, data.sizes_px):
        return None
    return (
        "warning: every box, read as pixels, lies within its image: this model seems to answer in pixels, while its "
        "numbers are read as thousandths of the image's sides. The metrics above then mean nothing; give the boxes of "
        "its answers to coordexp compare as a file of detections, with --frame NAME=px:xyxy"
    )


def open_model(settings: EvaluationSettings, categories: Iterable[str]) -> AnsweringModel:
    """Load a checkpoint, on the GPU if there is one.

    Args:
        settings: name the checkpoint, its adapter, and how it is asked.
        categories: names that an untouched model is asked for.

    Raises:
        CoordExpError: if the checkpoint cannot be used.
    """
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    device = "cuda" if torch.cuda.is_available() else None
    loaded = load(settings.model, adapter=settings.adapter, device=device)
    tokenizer = loaded.processor.tokenizer
    # A checkpoint is asked as it was trained, unless the settings say otherwise or it does not know.
    trained = _trained_with(settings.adapter, lambda: find_checkpoint(settings.model, weights=False))
    min_pixels = None if trained is None else trained.min_pixels
    max_pixels = None if trained is None else trained.max_pixels
    trained_prompt = DEFAULT_PROMPT if trained is None else trained.prompt
    image_spec = ImageSpec.from_processor(
        loaded.processor.image_processor, min_pixels=min_pixels, max_pixels=settings.max_pixels or max_pixels
    )
    if settings.answer == "qwen-json":
        family = family_of(inner_model(loaded.model).config.model_type, where=settings.model)
        question = detection_prompt(categories, template=settings.prompt or PROMPT)
        prompt = Prompt.build(tokenizer, question, may_think=True)
        # Some chat templates open the model's reasoning themselves, so that the answer holds its end only.
        thinks = str(tokenizer.decode(list(prompt.after))).rstrip().endswith("<think>")
        pixels_of = image_spec if family.json_boxes == "pixels" else None
        answers = JsonFormat(tokenizer, thinks=thinks, pixels_of=pixels_of)
    else:
        prompt = Prompt.build(tokenizer, settings.prompt or trained_prompt)
        answers = SequenceFormat(_vocab(settings, loaded), tokenizer)

    encode = encoder_of_prompts(tokenizer, prompt, image_spec)
    return AnsweringModel(loaded.model, tokenizer, image_spec, answers, encode)


def _vocab(settings: EvaluationSettings, loaded: LoadedModel) -> CoordVocab:
    if settings.answer == "text" or (settings.answer is None and loaded.vocab is None):
        return text_vocab(loaded.processor.tokenizer)
    if loaded.vocab is None:
        raise CheckpointError(
            f"{settings.model}: the tokenizer has no coord tokens; evaluate a checkpoint trained to write them, digits "
            "with --answer text, or an untouched Qwen3-VL with --answer qwen-json"
        )
    return loaded.vocab


def slower(settings: EvaluationSettings) -> list[str]:
    """Return a sentence if the model's family answers more slowly than others.

    Nothing is known about a checkpoint that is still to be downloaded.
    """
    if settings.generations:
        return []
    directory = local_checkpoint(settings.model)
    if directory is None:
        return []
    family = model_family(directory)
    return [family.slower] if family.slower else []


def unlike_training(settings: EvaluationSettings) -> list[str]:
    """Return a sentence for each setting in which a checkpoint is asked in another way than it was trained.

    Nothing is known about a checkpoint that is still to be downloaded.
    """
    directory = local_checkpoint(settings.model) if settings.adapter is None else settings.adapter
    if directory is None:
        return []
    trained = _trained_with(settings.adapter, lambda: directory)
    if trained is None:
        return []
    sentences: list[str] = []
    if settings.max_pixels not in (None, trained.max_pixels):
        sentences.append(
            f"{directory} was trained on images of at most {trained.max_pixels:,} pixels and is asked with "
            f"{settings.max_pixels:,}; other sizes than those of training can cost nearly all of AP (.47 fell to .003 "
            "on drawn shapes); leave --max-pixels out"
        )
    # An untouched model is asked in its vendor's words, which no training of ours used.
    if settings.prompt not in (None, trained.prompt) and settings.answer != "qwen-json":
        sentences.append(
            f"{directory} was trained with the prompt {trained.prompt!r} and is asked with {settings.prompt!r}; leave "
            "--prompt out to take the prompt of training"
        )
    return sentences


def _trained_with(adapter: Path | None, checkpoint: Callable[[], Path]) -> TrainedWith | None:
    """Return how the adapter was trained; without an adapter, the checkpoint, which is looked for only then."""
    return read_trained_with(checkpoint()) if adapter is None else read_adapter(adapter).trained_with


def default_output(settings: EvaluationSettings) -> Path:
    """Return where results go by default: beside the checkpoint, in ``eval/NAME-ANNOTATIONS``.

    For example, ``runs/tiny/C-s0/merged`` on ``instances_val.json`` gives
    ``runs/tiny/C-s0/eval/merged-instances_val``. An adapter's results go beside the adapter. If the checkpoint is not a
    folder, the results go to ``./eval/...``.
    """
    checkpoint = Path(settings.model) if settings.adapter is None else settings.adapter
    name = checkpoint.resolve().name if checkpoint.is_dir() else settings.model.replace("/", "-")
    name += f"-{settings.annotations.stem}"
    if settings.answer in ("text", "qwen-json"):
        name += f"-{settings.answer}"
    if settings.generations is not None:
        name += f"-{settings.generations.stem}"
    if settings.num_images is not None:
        name += f"-{settings.num_images}"
    parent = checkpoint.resolve().parent if checkpoint.is_dir() else Path()
    return RunFolder(parent).evaluation(name).path


def check_output(output: Path) -> None:
    """Check that the folder of the results can be written, before hours are spent on them. Leaves nothing behind.

    Raises:
        ResourceError: if it cannot be written.
    """
    try:
        with tempfile.TemporaryFile(dir=nearest_existing(output.absolute())):
            pass
    except OSError as error:
        raise ResourceError(f"{output}: expected a folder that can be written ({error.strerror})") from error
