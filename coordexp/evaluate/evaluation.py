"""One evaluation: which images, which ground truth, how; and its one loop over decodings.

Training, the verb ``evaluate`` and an evaluation on Ray differ in who generates: each hands
:meth:`SplitEvaluation.run` a function that does.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.grammar.parse import FAILURE_KINDS
from coordexp.data.sample import Sample
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.ground_truth import GroundTruth
from coordexp.errors import ConfigError, DataError
from coordexp.evaluate.distributions import images_with_curves
from coordexp.evaluate.objects import ImageRecord
from coordexp.evaluate.qwen_json import JSON_FAILURE_KINDS
from coordexp.evaluate.results import in_order, write_results
from coordexp.files import collector_paused, write_json
from coordexp.metrics import Decoding, MetricName
from coordexp.runs.folder import EvaluationFolder

AnswerName = Literal["coord", "text", "qwen-json"]
Decode = Callable[[Decoding], Sequence[Sequence[ImageRecord]]]
"""Generates under a decoding; returns the records of every process on rank 0, and an empty list on the others."""


@dataclass(frozen=True)
class EvaluationSpec:
    """How to evaluate, equal for every group.

    Raises:
        ConfigError: if answers in JSON are to be constrained.

    Attributes:
        batch_size: images generated together.
        max_new_tokens: length limit of an answer, the end token included.
        decoding: ``constrained`` (under the object grammar), ``free``, or both.
        score: the named score of a detection.
        aliases: further descriptions -> category names.
        answer: the form of an answer: the target sequence in coord tokens or in digits, or the JSON of an untouched
            Qwen3-VL; None: coord tokens where the tokenizer has them, else digits.
        reads_answers: answers come from a file, and are read instead of generated.
    """

    batch_size: int = 16
    max_new_tokens: int = 512
    decoding: tuple[Decoding, ...] = ("constrained", "free")
    score: ScoreName = "coord_desc"
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    answer: AnswerName | None = None
    reads_answers: bool = False

    def __post_init__(self) -> None:
        if self.reads_answers and len(self.decoding) != 1:
            raise ConfigError(
                "--generations: a file of answers is one decoding; expected --decoding constrained or free"
            )
        if self.answer == "qwen-json" and self.decoding != ("free",):
            raise ConfigError("--answer qwen-json is decoded freely only: the object grammar is not that of its JSON")

    @property
    def failure_kinds(self) -> Sequence[str]:
        """What can be wrong with a piece of an answer in this form."""
        return JSON_FAILURE_KINDS if self.answer == "qwen-json" else FAILURE_KINDS

    @property
    def headline(self) -> Decoding:
        """The decoding whose AP is published."""
        return self.decoding[0] if self.reads_answers or self.answer == "qwen-json" else "constrained"


class SplitEvaluation:
    """The images of one evaluation with their ground truth; needs no model.

    Attributes:
        truth: the split's annotations.
        samples: the images that answers are generated for.
        spec: how to evaluate.
        categories: finds the category that a description names.
        images_with_curves: ids of the images whose bin distributions are kept.
    """

    def __init__(
        self,
        truth: GroundTruth,
        samples: Sequence[Sample],
        spec: EvaluationSpec,
        *,
        subset: bool = False,
        details: bool = True,
    ) -> None:
        """Check what can be checked before anything is generated.

        Args:
            truth: the split's annotations.
            samples: the images to generate for.
            spec: how to evaluate.
            subset: AP over the samples' images only; otherwise over all images of the annotations, so that an image
                without a sample counts as one without detections.
            details: also write ``analysis.json`` and ``distributions.json``.

        Raises:
            DataError: if there are no images, names of categories are ambiguous, or an alias stands for no category.
        """
        if not samples:
            raise DataError(f"{truth.path}: there is no image to evaluate")
        self.truth = truth
        self.samples = samples
        self.spec = spec
        self.categories = CategoryIndex(truth.categories, aliases=spec.aliases)
        ids = [sample.image_id for sample in samples]
        self.images_with_curves = images_with_curves(truth, ids) if details else frozenset[int]()
        self.remarks: tuple[str, ...] = ()  # on how the samples were read, for a person
        self._subset = subset
        self._details = details

    def run(self, decode: Decode, output: EvaluationFolder, *, hardware: str = "") -> dict[str, float]:
        """Generate under each decoding, write the files, and compute the metrics.

        Args:
            decode: generates.
            output: folder of the files, one folder a decoding.
            hardware: what generates, by name; kept beside the results, since speed is of a machine.

        Returns:
            ``{decoding}/{boxes}/AP`` and so on, undefined ones absent; nothing in a process that does not finish.

        Raises:
            DataError: if annotations and records do not fit together.
        """
        metrics: dict[str, float] = {}
        for decoding in self.spec.decoding:
            started = time.monotonic()
            parts = decode(decoding)
            generated = time.monotonic()
            if parts:
                metrics |= self._finish(decoding, parts, output)
                metrics[str(MetricName(decoding, "seconds"))] = time.monotonic() - started
                if not self.spec.reads_answers:
                    speed = self._speed(decoding, parts, generated - started)
                    metrics |= {str(MetricName(decoding, name)): value for name, value in speed.items()}
        if metrics and hardware:
            write_json(output.hardware, {"hardware": hardware})
        return metrics

    def _speed(self, decoding: Decoding, parts: Sequence[Sequence[ImageRecord]], seconds: float) -> dict[str, float]:
        """Return the speed of generation; of free decoding only that of answers which the grammar had changed.

        The others were taken over, which takes no time. Answers that fill no batch say nothing of speed either.
        """
        records = [record for part in parts for record in part]
        written = [record for record in records if not (decoding == "free" and record.unforced)]
        if len(written) < min(self.spec.batch_size, len(records)):
            return {}
        num_objects = sum(len(record.objects) for record in written)
        speed = {"images_per_second": len(written) / seconds, "boxes_per_second": num_objects / seconds}
        return speed | ({"seconds_per_object": seconds / num_objects} if num_objects else {})

    def _finish(
        self, decoding: Decoding, parts: Sequence[Sequence[ImageRecord]], output: EvaluationFolder
    ) -> dict[str, float]:
        records = in_order(parts, self.truth, num_images=len(self.samples))
        truth = self.truth.on_images([record.image_id for record in records]) if self._subset else self.truth
        with collector_paused():  # a third of the time otherwise: pycocotools makes a million small objects
            return write_results(
                output.decoding(decoding),
                records,
                decoding=decoding,
                truth=truth,
                sizes_px={sample.image_id: (sample.width, sample.height) for sample in self.samples},
                published="expected" if decoding == self.spec.headline and not self._subset else None,
                failure_kinds=self.spec.failure_kinds,
                details=self._details,
            )
