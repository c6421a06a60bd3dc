"""How far another engine's answers are from our own of the same checkpoint: ``coordexp evaluate --check-engine``.

vLLM and transformers share a median of a few tokens of a greedy answer in half precision. Before answers of an engine
stand for a checkpoint in a comparison, one wants to know by how much they differ, in texts, coordinates and AP.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.errors import counted
from coordexp.evaluate.answers import Objects, ReadAnswer
from coordexp.evaluate.checkpoint import open_data, open_model
from coordexp.evaluate.evaluation import Evaluation, EvaluationData, OnImages
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.metrics import BOX_KINDS


@dataclass(frozen=True)
class EngineCheck:
    """Answers given by an engine beside those that we generate.

    Attributes:
        num_images: that were asked.
        identical_fraction: of the answers, those that are the same token for token.
        num_coordinates: of objects that stand at the same place of both answers with the same description.
        largest_bins: the largest difference of one of these, in bins.
        p95_bins: the difference that 95 % of them stay below; None without any.
        precision: AP by who wrote the answers, ``given`` or ``ours``, and by kind of boxes; None where undefined.
    """

    num_images: int
    identical_fraction: float
    num_coordinates: int
    largest_bins: int | None
    p95_bins: float | None
    precision: Mapping[str, Mapping[str, float | None]]

    def lines(self, generations: Path) -> list[str]:
        """Return what a person reads, a sentence a line."""
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
            values = (self.precision[who][kind] for who in ("given", "ours"))
            given, ours = ("undefined" if value is None else f"{value:.4f}" for value in values)
            lines.append(f"AP by {kind} boxes: {given} of the given answers, {ours} of ours")
        return lines


def check_engine(
    settings: EvaluationSettings, *, on_images: Callable[[int], None] | None = None
) -> tuple[EngineCheck, EvaluationData]:
    """Generate answers ourselves, read the given ones of the same images, and compare.

    Args:
        settings: of an evaluation that reads ``generations``; ``num_images`` says of how many images.
        on_images: called with the number of answers just finished, of both kinds.
    """
    given_data = open_data(settings)
    answering = open_model(settings, given_data.truth.categories.values())
    own_settings = replace(settings, generations=None)
    own_data = replace(given_data, given=None)
    given = _answers(Evaluation(answering, given_data, settings, curves_of=()), on_images)
    own = _answers(Evaluation(answering, own_data, own_settings, curves_of=()), on_images)

    differences = _coordinate_differences(given, own)
    num_identical = sum(np.array_equal(given[key].token_ids, own[key].token_ids) for key in given)
    check = EngineCheck(
        num_images=len(given),
        identical_fraction=num_identical / len(given),
        num_coordinates=len(differences),
        largest_bins=max(differences, default=None),
        p95_bins=float(np.quantile(differences, 0.95)) if differences else None,
        precision={"given": _precision(given.values(), given_data), "ours": _precision(own.values(), own_data)},
    )
    return check, given_data


def _answers(evaluation: Evaluation, on_images: OnImages | None) -> dict[int, ReadAnswer]:
    (decoding,) = evaluation.settings.decoding
    answers = evaluation.answer(decoding, evaluation.queues, on_images=on_images)
    return {answer.image_id: answer for answer in answers}


def _coordinate_differences(given: Mapping[int, ReadAnswer], own: Mapping[int, ReadAnswer]) -> list[int]:
    """Return the differences in bins of all coordinates of objects with the same place and description in both."""
    differences: list[int] = []
    for image_id, answer in given.items():
        mine, theirs = own[image_id].objects, answer.objects
        for index in range(min(len(mine), len(theirs))):
            if mine.descs[index] == theirs.descs[index]:
                differences += np.abs(mine.bins[index] - theirs.bins[index]).tolist()
    return differences


def _precision(answers: Iterable[ReadAnswer], data: EvaluationData) -> dict[str, float | None]:
    """Return AP by kind of boxes, over the images that were answered."""
    objects = Objects.joined([answer.objects for answer in answers])
    truth = data.truth.on_images(sorted({sample.image_id for sample in data.samples}))
    return {
        kind: BoxEvaluation(truth, objects.detections(kind, data.sizes_px)).average_precision("AP")
        for kind in BOX_KINDS
    }
