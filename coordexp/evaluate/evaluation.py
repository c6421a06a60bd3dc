"""One evaluation: a model, its data and its settings in; answers, files and metrics out.

Every evaluation passes here: at a run's end and during training, ``evaluate``, ``predict``, and given answers. If
several processes share the images, each has a :class:`ModelEvaluation` and answers its own queues, and one of them
calls :func:`score_answers`.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordexp.data.sample import Sample
from coordexp.detection.ground_truth import GroundTruth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import DataError
from coordexp.evaluate.answers import ReadAnswer, read_answer
from coordexp.evaluate.distributions import images_with_curves
from coordexp.evaluate.generate.generation import generate_queue, image_queues
from coordexp.evaluate.generate.given import GivenAnswer, read_batch, target_ids
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.evaluate.generated_by import GeneratedBy
from coordexp.evaluate.results import write_results
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.files import write_json
from coordexp.metrics import Decoding, MetricName
from coordexp.runs.folder import EvaluationFolder

OnImages = Callable[[int], None]
"""Called with the number of images just finished."""


@dataclass(frozen=True)
class EvaluationImages:
    """The images of an evaluation; needs no model.

    Attributes:
        truth: the annotations.
        samples: the images that are answered.
        categories: finds the category that a description names.
        is_subset: whether AP is measured on the samples' images only. If not, it is measured on all images of the
            annotations, and an image without a sample counts as one without detections.
        given: answers by image id, to be read instead of generated.
        remarks: sentences on how the images and boxes were read.
    """

    truth: GroundTruth
    samples: Sequence[Sample]
    categories: CategoryIndex
    is_subset: bool = False
    given: Mapping[int, GivenAnswer] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def sizes_px(self) -> dict[int, tuple[int, int]]:
        """Image id -> original width and height."""
        return {sample.image_id: (sample.width, sample.height) for sample in self.samples}

    def __post_init__(self) -> None:
        if not self.samples:
            raise DataError(f"{self.truth.path}: there is no image to evaluate")


class ModelEvaluation:
    """Answers the images of one evaluation, queue by queue.

    Attributes:
        answering: the model; put in evaluation mode and back.
        samples: the images with their prompts, encoded when they are read.
        queues: images that are answered together, as indices of the samples. Processes that share the images take whole
            queues. The files are then the same for any number of processes, as long as all compute on the same device
            with the same number of threads.
    """

    def __init__(
        self,
        answering: AnsweringModel,
        data: EvaluationImages,
        settings: EvaluationSettings,
        *,
        curves_of: Collection[int] | None = None,
    ) -> None:
        """Plan the queues.

        Args:
            answering: the model.
            data: the images.
            settings: what is asked for.
            curves_of: ids of the images whose bin distributions are kept; None for those of ``distributions.json``.

        Raises:
            DataError: if given answers are not in the model's tokens.
        """
        self.answering = answering
        self.data = data
        self.settings = settings
        image_ids = [sample.image_id for sample in data.samples]
        if curves_of is None:
            curves_of = images_with_curves(data.truth, image_ids) if settings.details else ()
        self._curves_of = curves_of
        self.samples = answering.encode(data.samples)
        self._constrained: dict[int, ReadAnswer] = {}  # constrained answers that free decoding may take over
        self._targets: Mapping[int, Sequence[int]] | None = None  # the tokens of given answers
        if data.given is None:
            num_objects = [len(sample.objects.descs) for sample in data.samples]
            self.queues = image_queues(self.samples.lengths, expected=num_objects, batch_size=settings.batch_size)
        else:
            self._targets = target_ids(data.given, answering, source=settings.generations or Path())
            num_targets = [len(self._targets[image_id]) for image_id in image_ids]
            self.queues = _batches_by_length(self.samples.lengths, num_targets, batch_size=settings.batch_size)

    def run(self, output: EvaluationFolder, *, on_images: OnImages | None = None) -> dict[str, float]:
        """Evaluate in this process: answer every queue and return what :func:`score_answers` does."""
        return score_answers(
            self.data,
            self.settings,
            lambda decoding: self.answer(decoding, self.queues, on_images=on_images),
            output,
            hardware=f"1 x {self.answering.hardware}",
            generated_by=GeneratedBy.of_evaluation(self.answering, self.settings, num_processes=1),
        )

    def answer(
        self, decoding: Decoding, queues: Sequence[Sequence[int]], *, on_images: OnImages | None = None
    ) -> list[ReadAnswer]:
        """Answer some of the queues.

        If an evaluation decodes under the grammar and then freely, an answer that the grammar did not change is not
        generated again.

        Args:
            decoding: ``constrained`` or ``free``.
            queues: some of ``self.queues``.
            on_images: called with the number of images just finished.
        """
        takes_over = self._targets is None and self.settings.decoding == ("constrained", "free")
        answers: list[ReadAnswer] = []
        with self.answering.evaluating():
            for queue in queues:
                if takes_over and decoding == "free":
                    answers += self._answer_freely(queue, on_images)
                    continue
                answers_of_queue = self._answer(decoding, queue, on_images)
                answers += answers_of_queue
                if takes_over:
                    self._constrained |= {answer.image_id: answer for answer in answers_of_queue}
        return answers

    def _answer_freely(self, queue: Sequence[int], on_images: OnImages | None) -> list[ReadAnswer]:
        """Take over the answers that the grammar did not change, and generate the others."""
        image_ids = [self.data.samples[index].image_id for index in queue]
        constrained = [self._constrained.pop(image_id) for image_id in image_ids if image_id in self._constrained]
        if len(constrained) < len(image_ids):  # the worker that held them was restarted
            constrained = self._answer("constrained", queue, None)
        unforced = {answer.image_id: answer for answer in constrained if answer.unforced}
        if on_images is not None and unforced:
            on_images(len(unforced))
        changed = [index for index, image_id in zip(queue, image_ids, strict=True) if image_id not in unforced]
        answers = list(unforced.values())
        if changed:
            answers += self._answer("free", changed, on_images)
        return answers

    def _answer(self, decoding: Decoding, queue: Sequence[int], on_images: OnImages | None) -> list[ReadAnswer]:
        """Read the given answers of a queue, or generate them, and find their objects."""
        if self._targets is not None:
            answers = read_batch(self.answering, self.samples, queue, targets=self._targets, curves_of=self._curves_of)
            if on_images is not None:
                on_images(len(queue))
        else:
            answers = generate_queue(
                self.answering,
                self.samples,
                queue,
                grammar=self.answering.grammar if decoding == "constrained" else None,
                batch_size=self.settings.batch_size,
                max_new_tokens=self.settings.max_new_tokens,
                curves_of=self._curves_of,
                on_images=on_images,
            )
        sizes_px = self.data.sizes_px
        return [
            read_answer(
                answer,
                self.answering.answers,
                size_px=sizes_px[answer.image_id],
                categories=self.data.categories,
                score=self.settings.score,
            )
            for answer in answers
        ]


def _batches_by_length(lengths: Sequence[int], num_targets: Sequence[int], *, batch_size: int) -> list[list[int]]:
    """Cut images into batches of alike sequences, prompt and answer together, the longest first."""
    totals = [length + number for length, number in zip(lengths, num_targets, strict=True)]
    order = sorted(range(len(totals)), key=lambda index: -totals[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def score_answers(
    data: EvaluationImages,
    settings: EvaluationSettings,
    answer: Callable[[Decoding], Sequence[ReadAnswer]],
    output: EvaluationFolder,
    *,
    hardware: str = "",
    generated_by: Mapping[Decoding, GeneratedBy] | None = None,
) -> dict[str, float]:
    """Have the images answered under each decoding, write the files, and compute the metrics.

    Args:
        data: the images.
        settings: what is asked for.
        answer: returns, for a decoding, the answers of all processes in the process that scores, and an empty list in
            the others.
        output: folder of the results.
        hardware: the name of what generates; kept beside the results, because speed depends on it.
        generated_by: the engine under each decoding; kept beside the detections.

    Returns:
        ``{decoding}/{boxes}/AP`` and so on; undefined values are absent. Nothing in a process that does not score.

    Raises:
        DataError: if annotations and answers do not fit together.
    """
    metrics: dict[str, float] = {}
    for decoding in settings.decoding:
        started = time.monotonic()
        # Sorted, so that the files do not depend on which process answered which image.
        answers = sorted(answer(decoding), key=lambda read: read.image_id)
        generated = time.monotonic()
        if not answers:
            continue
        image_ids = [read.image_id for read in answers]
        if image_ids != sorted(sample.image_id for sample in data.samples):
            raise DataError(
                f"{data.truth.path}: {len(answers)} answers for {len(data.samples)} images; expected one each"
            )
        folder = output.decoding(decoding)
        truth = data.truth.on_images(image_ids) if data.is_subset else data.truth
        published = "expected" if decoding == settings.headline and not data.is_subset else None
        values = write_results(folder, answers, truth, data.sizes_px, settings=settings, published=published)
        if generated_by is not None:
            generated_by[decoding].write(folder.detections("expected"))

        for (boxes, name), value in values.items():
            metrics[str(MetricName(decoding, name, boxes))] = value
        metrics[str(MetricName(decoding, "seconds"))] = time.monotonic() - started
        if settings.generations is None:
            speed = _speed(decoding, answers, generated - started, batch_size=settings.batch_size)
            for name, value in speed.items():
                metrics[str(MetricName(decoding, name))] = value
    if metrics and hardware:
        write_json(output.hardware, {"hardware": hardware})
    return metrics


def _speed(decoding: Decoding, answers: Sequence[ReadAnswer], seconds: float, *, batch_size: int) -> dict[str, float]:
    """Return the speed of generation, over the answers that were generated.

    Free decoding takes over the answers that the grammar had not changed, which takes no time. If the others fill no
    batch, they say nothing about speed, and there is none.
    """
    written = [answer for answer in answers if decoding != "free" or not answer.unforced]
    if len(written) < min(batch_size, len(answers)):
        return {}
    num_objects = sum(len(answer.objects) for answer in written)
    speed = {"images_per_second": len(written) / seconds, "boxes_per_second": num_objects / seconds}
    if num_objects:
        speed["seconds_per_object"] = seconds / num_objects
    return speed
