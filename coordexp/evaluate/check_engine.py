"""How far another engine's answers are from our own of the same checkpoint: ``coordexp evaluate --check-engine``.

In half precision, greedy answers of vLLM and transformers agree for a median of a few tokens only. Before an engine's
answers represent a checkpoint in a comparison, this measures the difference in texts, coordinates and AP.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.errors import counted
from coordexp.evaluate.answers import Objects, ReadAnswer
from coordexp.evaluate.checkpoint import open_data, open_model
from coordexp.evaluate.evaluation import EvaluationImages, ModelEvaluation, OnImages
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.metrics import BOX_KINDS


@dataclass(frozen=True)
class EngineCheck:
    """An engine's answers compared with ours.

    Attributes:
        num_images: images that were answered by both.
        identical_fraction: the fraction of answers that are equal token for token.
        num_coordinates: coordinates of objects with the same position in both answers and the same description; only
            these are compared.
        largest_bins: the largest difference of a coordinate, in bins; None if none is compared.
        p95_bins: the 95th percentile of the differences, in bins; None if none is compared.
        precision: AP by who wrote the answers, ``given`` or ``ours``, and by kind of boxes; None if undefined.
    """

    num_images: int
    identical_fraction: float
    num_coordinates: int
    largest_bins: int | None
    p95_bins: float | None
    precision: Mapping[str, Mapping[str, float | None]]

    def lines(self, generations: Path) -> list[str]:
        """Return sentences for a person; ``generations`` is the file of the engine's answers."""
        identical = f"{self.identical_fraction:.1%} of {counted(self.num_images, 'answer')}"
        lines = [f"{generations}: {identical} are ours, token for token"]
        if self.num_coordinates:
            lines.append(
                f"coordinates of the {self.num_coordinates // 4:,} objects that both name at the same place differ by "
                f"at most {self.largest_bins} bins, 95 % of them by at most {self.p95_bins:g}"
            )
        else:
            lines.append("no object has the same place and name in both answers, so that no coordinate is compared")
        for kind in BOX_KINDS:
            given_ap = _shown(self.precision["given"][kind])
            our_ap = _shown(self.precision["ours"][kind])
            lines.append(f"AP by {kind} boxes: {given_ap} of the given answers, {our_ap} of ours")
        return lines


def _shown(ap: float | None) -> str:
    return "undefined" if ap is None else f"{ap:.4f}"


def check_engine(
    settings: EvaluationSettings, *, on_images: Callable[[int], None] | None = None
) -> tuple[EngineCheck, EvaluationImages]:
    """Read the given answers, generate our own for the same images, and compare.

    Args:
        settings: of an evaluation that reads ``generations``; ``num_images`` limits the images of both.
        on_images: called with the number of answers just finished, of both kinds.

    Returns:
        The comparison, and the images with the given answers.
    """
    given_data = open_data(settings)
    our_data = replace(given_data, given=None)
    our_settings = replace(settings, generations=None)
    answering = open_model(settings, given_data.truth.categories.values())
    given_answers = _answers(ModelEvaluation(answering, given_data, settings, curves_of=()), on_images)
    our_answers = _answers(ModelEvaluation(answering, our_data, our_settings, curves_of=()), on_images)

    differences = _coordinate_differences(given_answers, our_answers)
    num_identical = sum(
        np.array_equal(answer.token_ids, our_answers[image_id].token_ids) for image_id, answer in given_answers.items()
    )
    check = EngineCheck(
        num_images=len(given_answers),
        identical_fraction=num_identical / len(given_answers),
        num_coordinates=len(differences),
        largest_bins=max(differences, default=None),
        p95_bins=float(np.quantile(differences, 0.95)) if differences else None,
        precision={
            "given": _precision(given_answers.values(), given_data),
            "ours": _precision(our_answers.values(), our_data),
        },
    )
    return check, given_data


def _answers(evaluation: ModelEvaluation, on_images: OnImages | None) -> dict[int, ReadAnswer]:
    (decoding,) = evaluation.settings.decoding
    answers = evaluation.answer(decoding, evaluation.queues, on_images=on_images)
    return {answer.image_id: answer for answer in answers}


def _coordinate_differences(
    given_answers: Mapping[int, ReadAnswer], our_answers: Mapping[int, ReadAnswer]
) -> list[int]:
    """Return the differences, in bins, of the coordinates of objects with equal position and description in both."""
    differences: list[int] = []
    for image_id, given_answer in given_answers.items():
        given_objects = given_answer.objects
        our_objects = our_answers[image_id].objects
        for position in range(min(len(our_objects), len(given_objects))):
            if our_objects.descs[position] == given_objects.descs[position]:
                differences += np.abs(our_objects.bins[position] - given_objects.bins[position]).tolist()
    return differences


def _precision(answers: Iterable[ReadAnswer], data: EvaluationImages) -> dict[str, float | None]:
    """Return AP by kind of boxes, over the images that were answered."""
    objects = Objects.joined([answer.objects for answer in answers])
    truth = data.truth.on_images(sorted({sample.image_id for sample in data.samples}))
    return {
        kind: MatchedBoxes(truth, objects.detections(kind, data.sizes_px)).average_precision("AP") for kind in BOX_KINDS
    }
