"""Objects in pictures, by a trained checkpoint: ``coordexp predict``, and ``coordexp.predict`` in Python.

A picture is a sample without ground truth, so that the answer, its boxes and its scores are those of an evaluation.
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
from coordexp.evaluate.evaluation import Evaluation, EvaluationData
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.metrics import Decoding
from coordexp.model.checkpoint.adapter import is_adapter, named_base


@dataclass(frozen=True)
class PredictedObject:
    """One object of a picture.

    Attributes:
        desc: the description as written.
        score: ``coord_desc``, in [0, 1], as an evaluation scores it.
        expected_px: x1, y1, x2, y2 in pixels, the means of the four distributions, corners ordered.
        argmax_px: the same of the bins that were written.
        bins: x1, y1, x2, y2 as written, 0 to 999; corners may be swapped.
        std_px: standard deviations of the four distributions in pixels, in the order of ``bins``; 0 where a box is
            written in digits, which have no distribution.
        distributions: one over the 1,000 bins for each of ``bins``; empty where a box is written in digits.
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
        width: as a viewer shows the picture, with its orientation in EXIF applied, as in training; so is the height.
        objects: in the order in which they were written.
        malformed: what kind of mistake each piece of the answer is that makes no object.
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
        model: a merged checkpoint, a folder or a hub id; or the folder of an adapter, which names its base.
        pictures: image files.
        base: the checkpoint that an adapter was trained on; None for the one that it names.
        decoding: ``constrained`` writes under the object grammar, ``free`` as the model likes.
        max_new_tokens: length limit of an answer.
        batch_size: pictures generated together.
        prompt: the instruction; None for that of training where the checkpoint says it, else for the default one.
        max_pixels: image size limit; None for that of training where the checkpoint says it, else for its own.
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
    """Return checkpoint and adapter of a model; an adapter's checkpoint is ``base``, or what the adapter names."""
    if not is_adapter(Path(model)):
        if base is not None:
            raise ConfigError(f"--base {base} is for an adapter, and {model} is none; leave it out")
        return str(model), None
    return named_base(Path(model)) if base is None else str(base), Path(model)


def predict_with(
    settings: EvaluationSettings, pictures: Sequence[Path], *, on_pictures: Callable[[int], None] | None = None
) -> list[Prediction]:
    """Find objects in pictures, as :func:`predict` does, by the settings of an evaluation under one decoding."""
    samples = [_sample(number, picture) for number, picture in enumerate(pictures)]
    if not samples:
        raise DataError("no picture given; expected at least one image file")
    data = EvaluationData(without_boxes(samples), samples, CategoryIndex({}))
    evaluation = Evaluation(open_model(settings, ()), data, settings, curves_of=range(len(samples)))
    found: dict[int, Prediction] = {}
    for queue in evaluation.queues:  # one at a time: an answer's distributions are large until they are cut
        answers = evaluation.answer(settings.decoding[0], [queue], on_images=on_pictures)
        found |= {answer.image_id: prediction_of(samples[answer.image_id], answer) for answer in answers}
    return [found[number] for number in range(len(samples))]


def turned(pictures: Sequence[Path]) -> list[str]:
    """Return a sentence for each picture that a viewer shows otherwise than it is stored, as it is read here."""
    found = {picture: read_header(picture).orientation for picture in pictures if not picture.is_dir()}
    return [
        f"{picture}: stored turned or mirrored (EXIF orientation {how}); boxes are of the picture as a viewer shows it"
        for picture, how in found.items()
        if how != 1
    ]


def _sample(number: int, picture: Path) -> Sample:
    if picture.is_dir():
        raise DataError(f"{picture}: that is a folder; expected image files, such as {picture}/*.jpg")
    width, height = read_header(picture).shown
    return Sample(picture, width, height, number, SampleObjects((), np.zeros((0, 4))))


def without_boxes(samples: Sequence[Sample]) -> GroundTruth:
    """Return the ground truth of samples of which no box is known, so that they are answered alone."""
    none = np.zeros(0, np.int64)
    return GroundTruth(
        path=samples[0].image,
        sizes_px={sample.image_id: (sample.width, sample.height) for sample in samples},
        categories={},
        image_ids=none,
        category_ids=none,
        boxes_px_xywh=np.zeros((0, 4)),
        areas_px2=np.zeros(0),
        is_crowd=np.zeros(0, np.bool_),
    )


def prediction_of(sample: Sample, answer: ReadAnswer) -> Prediction:
    """Return the one answer for a picture in its pixels."""
    objects, sides = answer.objects, np.array([sample.width, sample.height] * 2, np.float64)

    def in_pixels(boxes_norm_xyxy: Floats) -> list[Four]:
        boxes = to_boxes_px_xywh(boxes_norm_xyxy, sides[None, :2]).tolist()
        return [(left, top, left + width, top + height) for left, top, width, height in boxes]

    columns = (
        objects.descs.tolist(),
        objects.scores.tolist(),
        in_pixels(objects.expected),
        in_pixels(objects.boxes_norm_xyxy("argmax")),
        map(tuple, objects.bins.tolist()),
        map(tuple, (objects.width / NUM_BINS * sides).tolist()),
        answer.curves or [()] * len(objects),  # digits have no distribution
    )
    return Prediction(
        picture=sample.image,
        width=sample.width,
        height=sample.height,
        objects=tuple(map(PredictedObject, *columns)),
        malformed=tuple(answer.failures),
        truncated=answer.truncated,
    )


def predictions_json(predictions: Sequence[Prediction]) -> str:
    """Return predictions as JSON: the fields of :class:`Prediction`; ``units`` are probabilities in 1e-5."""
    return json.dumps([asdict(item) | {"picture": str(item.picture)} for item in predictions], indent=1)
