"""Find objects in pictures with a trained checkpoint: ``coordexp predict``, and ``coordexp.predict`` in Python.

A picture is handled as a sample without ground truth, so that its answer, boxes and scores are those of an evaluation.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.data.images.headers import read_header
from coordexp.data.sample import Objects as SampleObjects
from coordexp.data.sample import Sample
from coordexp.detection.boxes import Floats, to_boxes_px_xywh
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import ConfigError, DataError
from coordexp.evaluate.answers import Four, ReadAnswer
from coordexp.evaluate.checkpoint import open_model
from coordexp.evaluate.distributions import BinCurve
from coordexp.evaluate.evaluation import EvaluationImages, ModelEvaluation
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.metrics import Decoding
from coordexp.model.checkpoint.adapter import is_adapter, named_base


@dataclass(frozen=True)
class PredictedObject:
    """One object of a picture.

    Attributes:
        desc: the description as written.
        score: ``coord_desc``, in [0, 1], as an evaluation scores it.
        expected_px: x1, y1, x2, y2 in pixels, from the means of the four distributions; corners are ordered.
        argmax_px: x1, y1, x2, y2 in pixels, from the bins that were written; corners are ordered.
        bins: x1, y1, x2, y2 as written, 0 to 999; corners may be swapped.
        std_px: standard deviations of the four distributions in pixels, in the order of ``bins``; 0 if the box is
            written in digits, which have no distribution.
        distributions: over the 1,000 bins, in the order of ``bins``; empty if the box is written in digits.
    """

    desc: str
    score: float
    expected_px: Four
    argmax_px: Four
    bins: tuple[int, int, int, int]
    std_px: Four
    distributions: tuple[BinCurve, ...]


@dataclass(frozen=True)
class Prediction:
    """What a model finds in one picture.

    Attributes:
        picture: the image file.
        width: in pixels, as a viewer shows the picture: its orientation in EXIF is applied, as in training.
        height: in pixels, as a viewer shows the picture.
        objects: in the order in which they were written.
        malformed: the kind of each piece of the answer that makes no object.
        truncated: the length limit came before the end of the answer.
    """

    picture: Path
    width: int
    height: int
    objects: tuple[PredictedObject, ...]
    malformed: tuple[str, ...]
    truncated: bool


def predict(
    model: str | Path,
    pictures: Sequence[str | Path],
    *,
    base: str | Path | None = None,
    decoding: Decoding = "constrained",
    max_new_tokens: int = 512,
    batch_size: int = 16,
    prompt: str | None = None,
    max_pixels: int | None = None,
    num_threads: int | None = None,
    on_pictures: Callable[[int], None] | None = None,
) -> list[Prediction]:
    """Find objects in pictures.

    Args:
        model: a merged checkpoint (a folder or a hub id), or the folder of an adapter, which names its base.
        pictures: image files.
        base: the checkpoint that an adapter was trained on; None for the one that it names.
        decoding: ``constrained`` writes under the object grammar, ``free`` without it.
        max_new_tokens: length limit of an answer.
        batch_size: pictures that are answered together.
        prompt: the instruction; None for the prompt of training if the checkpoint records it, and the default if not.
        max_pixels: image size limit; None for the limit of training if the checkpoint records it, and the checkpoint's
            own if not.
        num_threads: CPU threads; None leaves it to torch.
        on_pictures: called with the number of pictures that are done since the last call.

    Returns:
        A prediction for each picture, in the order given.

    Raises:
        CheckpointError: if the model cannot be used.
        ConfigError: if ``base`` is given with a model that is no adapter.
        DataError: if there is no picture, or one cannot be read.
    """
    checkpoint, adapter = checkpoint_of(model, base)
    settings = EvaluationSettings(
        batch_size=batch_size,
        max_new_tokens=max_new_tokens,
        decoding=(decoding,),
        model=checkpoint,
        adapter=adapter,
        prompt=prompt,
        max_pixels=max_pixels,
        num_threads=num_threads,
    )
    return predict_with(settings, [Path(picture) for picture in pictures], on_pictures=on_pictures)


def checkpoint_of(model: str | Path, base: str | Path | None = None) -> tuple[str, Path | None]:
    """Tell a checkpoint from an adapter.

    Args:
        model: either of them.
        base: the checkpoint of an adapter; None for the one that the adapter names.

    Returns:
        The checkpoint, and the adapter or None.

    Raises:
        ConfigError: if ``base`` is given with a model that is no adapter.
    """
    if is_adapter(Path(model)):
        checkpoint = named_base(Path(model)) if base is None else str(base)
        return checkpoint, Path(model)
    if base is not None:
        raise ConfigError(f"--base {base} is for an adapter, and {model} is none; leave it out")
    return str(model), None


def predict_with(
    settings: EvaluationSettings, pictures: Sequence[Path], *, on_pictures: Callable[[int], None] | None = None
) -> list[Prediction]:
    """Find objects in pictures as :func:`predict` does, with the settings of an evaluation under one decoding."""
    samples = [_sample(number, picture) for number, picture in enumerate(pictures)]
    if not samples:
        raise DataError("no picture given; expected at least one image file")
    data = EvaluationImages(without_boxes(samples), samples, CategoryIndex({}))
    evaluation = ModelEvaluation(open_model(settings, ()), data, settings, curves_of=range(len(samples)))
    predictions: dict[int, Prediction] = {}
    # One queue at a time: an answer's distributions take much memory until they are turned into curves.
    for queue in evaluation.queues:
        for answer in evaluation.answer(settings.decoding[0], [queue], on_images=on_pictures):
            predictions[answer.image_id] = prediction_of(samples[answer.image_id], answer)
    return [predictions[number] for number in range(len(samples))]


def turned(pictures: Sequence[Path]) -> list[str]:
    """Return a sentence for each picture that is stored turned or mirrored: it is read as a viewer shows it."""
    sentences: list[str] = []
    for picture in pictures:
        if picture.is_dir():
            continue
        orientation = read_header(picture).orientation
        if orientation != 1:
            sentences.append(
                f"{picture}: stored turned or mirrored (EXIF orientation {orientation}); boxes are of the picture as a "
                "viewer shows it"
            )
    return sentences


def _sample(number: int, picture: Path) -> Sample:
    if picture.is_dir():
        raise DataError(f"{picture}: that is a folder; expected image files, such as {picture}/*.jpg")
    width, height = read_header(picture).shown
    return Sample(picture, width, height, number, SampleObjects((), np.zeros((0, 4))))


def without_boxes(samples: Sequence[Sample]) -> GroundTruth:
    """Return a ground truth that holds the sizes of pictures, and no box."""
    no_ids = np.zeros(0, np.int64)
    return GroundTruth(
        path=samples[0].image,
        sizes_px={sample.image_id: (sample.width, sample.height) for sample in samples},
        categories={},
        image_ids=no_ids,
        category_ids=no_ids,
        boxes_px_xywh=np.zeros((0, 4)),
        areas_px2=np.zeros(0),
        is_crowd=np.zeros(0, np.bool_),
    )


def prediction_of(sample: Sample, answer: ReadAnswer) -> Prediction:
    """Return the answer for a picture, with boxes in its pixels."""
    objects = answer.objects
    size_px = np.array([sample.width, sample.height], np.float64)
    std_px = objects.width / NUM_BINS * np.tile(size_px, 2)
    columns = zip(
        objects.descs.tolist(),
        objects.scores.tolist(),
        _in_pixels(objects.expected, size_px),
        _in_pixels(objects.boxes_norm_xyxy("argmax"), size_px),
        map(tuple, objects.bins.tolist()),
        map(tuple, std_px.tolist()),
        answer.curves or [()] * len(objects),  # digits have no distribution
        strict=True,
    )
    return Prediction(
        picture=sample.image,
        width=sample.width,
        height=sample.height,
        objects=tuple(PredictedObject(*values) for values in columns),
        malformed=tuple(answer.failures),
        truncated=answer.truncated,
    )


def _in_pixels(boxes_norm_xyxy: Floats, size_px: Floats) -> list[Four]:
    """Return ``[D, 4]`` boxes as x1, y1, x2, y2 in pixels, corners ordered; ``size_px`` is width and height."""
    boxes_px_xywh = to_boxes_px_xywh(boxes_norm_xyxy, size_px[None]).tolist()
    return [(left, top, left + width, top + height) for left, top, width, height in boxes_px_xywh]


def predictions_json(predictions: Sequence[Prediction]) -> str:
    """Return predictions as JSON: the fields of :class:`Prediction`; ``units`` are probabilities in 1e-5."""
    documents = [asdict(prediction) | {"picture": str(prediction.picture)} for prediction in predictions]
    return json.dumps(documents, indent=1)
