"""One evaluation: a model, its data and its settings in; answers, files and metrics out.

The run's end, the steps in between, ``evaluate``, ``predict`` and given answers all pass here. Where several processes
share the images, each has an :class:`Evaluation` and answers its queues, and one of them calls :func:`score`.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordexp.data.sample import Sample
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.ground_truth import GroundTruth
from coordexp.errors import DataError
from coordexp.evaluate.answers import Answers, read_answers
from coordexp.evaluate.distributions import images_with_curves
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.generation import generate_queue, image_queues
from coordexp.evaluate.generate.given import GivenAnswer, read_batch, target_ids
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.evaluate.results import write_results
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.files import collector_paused, write_json
from coordexp.metrics import Decoding, MetricName
from coordexp.runs.folder import EvaluationFolder

OnImages = Callable[[int], None]
"""Called with the number of images just finished."""


@dataclass(frozen=True)
class EvaluationData:
    """The images of an evaluation; needs no model.

    Attributes:
        truth: the annotations.
        samples: the images that are answered.
        categories: finds the category that a description names.
        is_subset: AP over the samples' images only; otherwise over all images of the annotations, so that an image
            without a sample counts as one without detections.
        given: answers by image, to be read instead of generated.
        remarks: on how the images and boxes were read, a sentence each.
    """

    truth: GroundTruth
    samples: Sequence[Sample]
    categories: CategoryIndex
    is_subset: bool = False
    given: Mapping[int, GivenAnswer] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def sizes_px(self) -> dict[int, tuple[int, int]]:
        """Width and height of each image, by its id."""
        return {sample.image_id: (sample.width, sample.height) for sample in self.samples}

    def __post_init__(self) -> None:
        """Refuse an evaluation of nothing.

        Raises:
            DataError: if there is no image.
        """
        if not self.samples:
            raise DataError(f"{self.truth.path}: there is no image to evaluate")


class Evaluation:
    """Answers the images of one evaluation, queue by queue.

    Attributes:
        answering: the model.
        data: the images.
        settings: how to evaluate.
        samples: the images with their prompts, encoded when they are read.
        queues: images that are answered together, as indices of the samples. Processes that share the images share out
            these queues: the files are then the same for any number of processes, as long as each computes alike (same
            device, same number of threads).
    """

    def __init__(
        self,
        answering: AnsweringModel,
        data: EvaluationData,
        settings: EvaluationSettings,
        *,
        curves_of: Collection[int] | None = None,
    ) -> None:
        """Plan the queues.

        Args:
            answering: the model; put in evaluation mode and back.
            data: the images.
            settings: how to evaluate.
            curves_of: ids of the images whose bin distributions are kept; None for those of ``distributions.json``.

        Raises:
            DataError: if the given answers are not in the model's tokens.
        """
        self.answering, self.data, self.settings = answering, data, settings
        ids = [sample.image_id for sample in data.samples]
        if curves_of is None:
            curves_of = images_with_curves(data.truth, ids) if settings.details else ()
        self._curves_of = curves_of
        self.samples = answering.encode(data.samples)
        self._constrained: dict[tuple[int, ...], Answers] = {}
        self._given: Mapping[int, Sequence[int]] | None = None
        lengths, batch_size = self.samples.lengths, settings.batch_size
        if data.given is None:
            num_objects = [len(sample.objects.descs) for sample in data.samples]
            self.queues = image_queues(lengths, expected=num_objects, batch_size=batch_size)
        else:
            self._given = target_ids(data.given, answering, source=settings.generations or Path())
            totals = [length + len(self._given[image_id]) for length, image_id in zip(lengths, ids, strict=True)]
            order = sorted(range(len(totals)), key=lambda index: -totals[index])
            self.queues = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]  # each is one batch

    def run(self, output: EvaluationFolder, *, on_images: OnImages | None = None) -> dict[str, float]:
        """Evaluate in this process: answer every queue, write the files, return the metrics; see :func:`score`."""
        return score(
            self.data,
            self.settings,
            lambda decoding: [self.answer(decoding, self.queues, on_images=on_images)],
            output,
            hardware=f"1 x {self.answering.hardware}",
        )

    def answer(
        self, decoding: Decoding, queues: Sequence[Sequence[int]], *, on_images: OnImages | None = None
    ) -> Answers:
        """Answer some of the queues.

        Where an evaluation decodes freely after it has decoded under the grammar, an answer that the grammar did not
        change is not generated again.
        """
        with self.answering.evaluating():
            if self._given is not None or self.settings.decoding != ("constrained", "free"):
                parts = [self._answer(decoding, queue, on_images) for queue in queues]
            elif decoding == "constrained":
                parts = [self._answer(decoding, queue, on_images) for queue in queues]
                self._constrained |= zip(map(tuple, queues), parts, strict=True)
            else:
                parts = [part for queue in queues for part in self._answer_freely(queue, on_images)]
        return Answers.joined(parts or [self._read([])])

    def _answer_freely(self, queue: Sequence[int], on_images: OnImages | None) -> list[Answers]:
        """Take over what the grammar did not change, and generate the rest."""
        constrained = self._constrained.pop(tuple(queue), None)
        if constrained is None:  # by a worker that was restarted
            constrained = self._answer("constrained", queue, None)
        kept = constrained.rows(constrained.unforced)
        if on_images is not None and len(kept):
            on_images(len(kept))
        done = set(kept.image_ids.tolist())
        rest = [index for index in queue if self.data.samples[index].image_id not in done]
        return [kept, self._answer("free", rest, on_images)] if rest else [kept]

    def _answer(self, decoding: Decoding, queue: Sequence[int], on_images: OnImages | None) -> Answers:
        if self._given is not None:
            found = read_batch(self.answering, self.samples, queue, targets=self._given, curves_of=self._curves_of)
            if on_images is not None:
                on_images(len(queue))
        else:
            found = generate_queue(
                self.answering,
                self.samples,
                queue,
                grammar=self.answering.grammar if decoding == "constrained" else None,
                batch_size=self.settings.batch_size,
                max_new_tokens=self.settings.max_new_tokens,
                curves_of=self._curves_of,
                on_images=on_images,
            )
        return self._read(found)

    def _read(self, found: Sequence[Answer]) -> Answers:
        return read_answers(
            found,
            self.answering.answers,
            sizes_px=self.data.sizes_px,
            categories=self.data.categories,
            score=self.settings.score,
        )


def score(
    data: EvaluationData,
    settings: EvaluationSettings,
    answer: Callable[[Decoding], Sequence[Answers]],
    output: EvaluationFolder,
    *,
    hardware: str = "",
) -> dict[str, float]:
    """Have the images answered under each decoding, write the files, and compute the metrics.

    Args:
        data: the images.
        settings: how to evaluate.
        answer: returns the answers of every process in the one that scores, and an empty list in the others.
        output: folder of the files, one folder a decoding.
        hardware: what generates, by name; kept beside the results, since speed is of a machine.

    Returns:
        ``{decoding}/{boxes}/AP`` and so on, undefined ones absent; nothing in a process that does not score.

    Raises:
        DataError: if annotations and answers do not fit together.
    """
    metrics: dict[str, float] = {}
    for decoding in settings.decoding:
        started = time.monotonic()
        parts = answer(decoding)
        generated = time.monotonic()
        if not parts:
            continue
        answers = Answers.joined(parts)
        if sorted(answers.image_ids.tolist()) != sorted(sample.image_id for sample in data.samples):
            raise DataError(
                f"{data.truth.path}: {len(answers)} answers for {len(data.samples)} images; expected one each"
            )
        answers = answers.rows(np.argsort(answers.image_ids))  # the files do not depend on who made them
        truth = data.truth.on_images(answers.image_ids.tolist()) if data.is_subset else data.truth
        published = "expected" if decoding == settings.headline and not data.is_subset else None
        with collector_paused():  # a third of the time otherwise: pycocotools makes a million small objects
            found = write_results(
                output.decoding(decoding), answers, truth, data.sizes_px, settings=settings, published=published
            )
        found = {str(MetricName(decoding, name, boxes)): value for (boxes, name), value in found.items()}
        metrics |= found | {str(MetricName(decoding, "seconds")): time.monotonic() - started}
        if settings.generations is None:
            speed = _speed(decoding, answers, generated - started, batch_size=settings.batch_size)
            metrics |= {str(MetricName(decoding, name)): value for name, value in speed.items()}
    if metrics and hardware:
        write_json(output.hardware, {"hardware": hardware})
    return metrics


def _speed(decoding: Decoding, answers: Answers, seconds: float, *, batch_size: int) -> dict[str, float]:
    """Return the speed of generation; of free decoding only that of answers which the grammar had changed.

    The others were taken over, which takes no time. Answers that fill no batch say nothing of speed either.
    """
    was_written = ~answers.unforced if decoding == "free" else np.ones(len(answers), np.bool_)
    num_written, num_objects = int(was_written.sum()), int(answers.num_objects[was_written].sum())
    if num_written < min(batch_size, len(answers)):
        return {}
    speed = {"images_per_second": num_written / seconds, "boxes_per_second": num_objects / seconds}
    return speed | ({"seconds_per_object": seconds / num_objects} if num_objects else {})
