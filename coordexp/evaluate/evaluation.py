"""One evaluation: a model, its data and its settings in; answers, files and metrics out.

The run's end, the steps in between, ``evaluate``, ``predict`` and given answers all pass here. Where several processes
share the images, each has an :class:`Evaluation` and answers its queues, and one of them calls :func:`score`.
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
class EvaluationData:
    """The images of an evaluation; needs no model.

    Attributes:
        samples: the images that are answered.
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
        return {sample.image_id: (sample.width, sample.height) for sample in self.samples}

    def __post_init__(self) -> None:
        if not self.samples:
            raise DataError(f"{self.truth.path}: there is no image to evaluate")


class Evaluation:
    """Answers the images of one evaluation, queue by queue.

    Attributes:
        answering: the model; put in evaluation mode and back.
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
        """Plan the queues; a DataError says that the given answers are not in the model's tokens.

        ``curves_of``: ids of the images whose bin distributions are kept; None for those of ``distributions.json``.
        """
        self.answering, self.data, self.settings = answering, data, settings
        ids = [sample.image_id for sample in data.samples]
        if curves_of is None:
            curves_of = images_with_curves(data.truth, ids) if settings.details else ()
        self._curves_of = curves_of
        self.samples = answering.encode(data.samples)
        self._constrained: dict[int, ReadAnswer] = {}
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
            lambda decoding: self.answer(decoding, self.queues, on_images=on_images),
            output,
            hardware=f"1 x {self.answering.hardware}",
            generated_by=GeneratedBy.of_evaluation(self.answering, self.settings, num_processes=1),
        )

    def answer(
        self, decoding: Decoding, queues: Sequence[Sequence[int]], *, on_images: OnImages | None = None
    ) -> list[ReadAnswer]:
        """Answer some of the queues.

        Where an evaluation decodes freely after it has decoded under the grammar, an answer that the grammar did not
        change is not generated again.
        """
        takes_over = self._given is None and self.settings.decoding == ("constrained", "free")
        found: list[ReadAnswer] = []
        with self.answering.evaluating():
            for queue in queues:
                if takes_over and decoding == "free":
                    found += self._answer_freely(queue, on_images)
                    continue
                answers = self._answer(decoding, queue, on_images)
                found += answers
                if takes_over:
                    self._constrained |= {answer.image_id: answer for answer in answers}
        return found

    def _answer_freely(self, queue: Sequence[int], on_images: OnImages | None) -> list[ReadAnswer]:
        """Take over what the grammar did not change, and generate the rest."""
        ids = [self.data.samples[index].image_id for index in queue]
        constrained = [self._constrained.pop(image_id) for image_id in ids if image_id in self._constrained]
        if len(constrained) < len(ids):  # the worker that held them was restarted
            constrained = self._answer("constrained", queue, None)
        kept = [answer for answer in constrained if answer.unforced]
        if on_images is not None and kept:
            on_images(len(kept))
        done = {answer.image_id for answer in kept}
        rest = [index for index, image_id in zip(queue, ids, strict=True) if image_id not in done]
        return kept + (self._answer("free", rest, on_images) if rest else [])

    def _answer(self, decoding: Decoding, queue: Sequence[int], on_images: OnImages | None) -> list[ReadAnswer]:
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
        form, sizes_px = self.answering.answers, self.data.sizes_px
        categories, score = self.data.categories, self.settings.score
        return [
            read_answer(answer, form, size_px=sizes_px[answer.image_id], categories=categories, score=score)
            for answer in found
        ]


def score(
    data: EvaluationData,
    settings: EvaluationSettings,
    answer: Callable[[Decoding], Sequence[ReadAnswer]],
    output: EvaluationFolder,
    *,
    hardware: str = "",
    generated_by: Mapping[Decoding, GeneratedBy] | None = None,
) -> dict[str, float]:
    """Have the images answered under each decoding, write the files, and compute the metrics.

    ``answer`` returns the answers of every process in the one that scores, and an empty list in the others.
    ``hardware``, the name of what generates, is kept beside the results, since speed is of a machine;
    ``generated_by``, the engine under each decoding, beside the detections.

    Returns:
        ``{decoding}/{boxes}/AP`` and so on, undefined ones absent; nothing in a process that does not score.

    Raises:
        DataError: if annotations and answers do not fit together.
    """
    metrics: dict[str, float] = {}
    for decoding in settings.decoding:
        started = time.monotonic()
        answers = sorted(answer(decoding), key=lambda one: one.image_id)  # the files do not depend on who made them
        generated = time.monotonic()
        if not answers:
            continue
        image_ids = [one.image_id for one in answers]
        if image_ids != sorted(sample.image_id for sample in data.samples):
            raise DataError(
                f"{data.truth.path}: {len(answers)} answers for {len(data.samples)} images; expected one each"
            )
        truth = data.truth.on_images(image_ids) if data.is_subset else data.truth
        published = "expected" if decoding == settings.headline and not data.is_subset else None
        found = write_results(
            output.decoding(decoding), answers, truth, data.sizes_px, settings=settings, published=published
        )
        if generated_by is not None:
            generated_by[decoding].write(output.decoding(decoding).generated_by)
        found = {str(MetricName(decoding, name, boxes)): value for (boxes, name), value in found.items()}
        metrics |= found | {str(MetricName(decoding, "seconds")): time.monotonic() - started}
        if settings.generations is None:
            speed = _speed(decoding, answers, generated - started, batch_size=settings.batch_size)
            metrics |= {str(MetricName(decoding, name)): value for name, value in speed.items()}
    if metrics and hardware:
        write_json(output.hardware, {"hardware": hardware})
    return metrics


def _speed(decoding: Decoding, answers: Sequence[ReadAnswer], seconds: float, *, batch_size: int) -> dict[str, float]:
    """Return the speed of generation; of free decoding only that of answers which the grammar had changed.

    The others were taken over, which takes no time. Answers that fill no batch say nothing of speed either.
    """
    written = [answer for answer in answers if decoding != "free" or not answer.unforced]
    if len(written) < min(batch_size, len(answers)):
        return {}
    num_objects = sum(len(answer.objects) for answer in written)
    speed = {"images_per_second": len(written) / seconds, "boxes_per_second": num_objects / seconds}
    return speed | ({"seconds_per_object": seconds / num_objects} if num_objects else {})
