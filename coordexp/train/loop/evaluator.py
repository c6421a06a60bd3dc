"""Validation losses and AP of a run, during training and at its end; ranks share the work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from coordexp.config.schema import RunConfig
from coordexp.data.splits.subset import stratified_subset
from coordexp.detection.box_evaluation import BoxEvaluation
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.metrics import measure
from coordexp.detection.names.categories import CategoryIndex
from coordexp.evaluate.answers import ReadAnswer, unknown_sentence
from coordexp.evaluate.evaluation import Evaluation, EvaluationData, score
from coordexp.evaluate.generate.formats import SequenceFormat
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.evaluate.generated_by import GeneratedBy
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.losses.term import UNITS
from coordexp.metrics import BOX_KINDS, PLACE_MEASURES, PLACES, Decoding, MetricName
from coordexp.runs import ranks
from coordexp.runs.folder import EvaluationFolder, RunFolder
from coordexp.train.forward import count_units
from coordexp.train.loop.measures import NAMES, RunningAverages, coord_diagnostics
from coordexp.train.setup.components import Components
from coordexp.train.setup.data import ground_truth_of_run


@dataclass(frozen=True)
class Evaluator:
    """Evaluates the model of a run as it is now; ``on_progress(done, total)`` reports this rank's progress."""

    config: RunConfig
    parts: Components
    on_progress: Callable[[int, int], None]

    def validation_losses(self) -> tuple[dict[str, float], dict[str, float]] | None:
        """Return means and sums of every term and diagnostic, teacher-forced on validation samples; None without any.

        Normalised as in training: every term by its unit's count over all samples.
        """
        parts, batch_size = self.parts, self.config.training.per_device_batch_size
        if not self._loss_indices:
            return None
        samples = parts.encoding.dataset([parts.val.samples[i] for i in self._loss_indices])
        criterion, device = parts.criterion, self._device
        averages = RunningAverages()
        # Every rank holds the same names, also one without a batch: the ranks add them up together.
        for name in (*(weighted.term.name for weighted in criterion.terms), *NAMES, *(f"num_{unit}" for unit in UNITS)):
            averages.add(name, torch.zeros((), device=device), 0)
        averages.add_errors(torch.zeros(0, device=device))
        averages.add_places(torch.zeros(len(PLACE_MEASURES) + 1, len(PLACES), dtype=torch.float64, device=device))
        model = parts.forward_terms.base
        ones_U = torch.ones(len(UNITS), device=device)
        was_training = model.training
        model.eval()
        with torch.no_grad():
            for start in range(ranks.rank() * batch_size, len(samples), ranks.world_size() * batch_size):
                chosen = [samples[i] for i in range(start, min(start + batch_size, len(samples)))]
                batch = parts.encoding.collate(chosen).to(device)
                terms, _ = parts.forward_terms(model, batch)
                _, sums = criterion(terms, ones_U)
                averages.add_terms(criterion, sums, count_units([batch]))
                averages.add_diagnostics(coord_diagnostics(terms))
        model.train(was_training)
        return averages.read()

    def on_subset(self, step: int) -> dict[str, float]:
        """Evaluate the subset under constrained decoding; return metrics on rank 0."""
        output = RunFolder.of(self.config).evaluation(step)
        return self._evaluate(self.subset_indices, output=output, decoding=("constrained",))

    def on_all_images(self) -> dict[str, float]:
        """Evaluate every validation image, or those chosen, for the run's result; return metrics on rank 0."""
        return self._evaluate(None, output=self._final, decoding=self.config.evaluation.decoding)

    def remarks(self, metrics: Mapping[str, float]) -> list[str]:
        """Return what the final evaluation's metrics do not say, a sentence each; to be asked on rank 0."""
        found = [unknown_sentence(self._final.decoding(way), way, metrics) for way in self.config.evaluation.decoding]
        return [sentence for sentence in found if sentence is not None]

    def subset_of_final(self) -> dict[str, float]:
        """Return the metrics of the final detections on the subset's images: the last point of the curve."""
        image_ids = [self.parts.val.samples[i].image_id for i in self.subset_indices]
        truth = read_ground_truth(self._val_annotations)
        metrics: dict[str, float] = {}
        for kind in BOX_KINDS:
            detections = read_detections(self._final.decoding("constrained").detections(kind), truth)
            found = measure(BoxEvaluation(truth.on_images(image_ids), detections.on_images(image_ids)))
            metrics |= {str(MetricName("constrained", name, kind, subset=True)): value for name, value in found.items()}
        return metrics

    # Both are fixed by the data alone. To choose them looks at all samples 128 times, so it is done once a run.
    @cached_property
    def subset_indices(self) -> list[int]:
        """The validation images of evaluations during training."""
        return stratified_subset(self.parts.val.samples, self.config.evaluation.subset_images)

    @cached_property
    def _loss_indices(self) -> list[int]:
        return stratified_subset(self.parts.val.samples, self.config.evaluation.loss_images)

    @property
    def _final(self) -> EvaluationFolder:
        return RunFolder.of(self.config).evaluation("final")

    @property
    def _device(self) -> torch.device:
        return next(self.parts.model.parameters()).device

    @property
    def _val_annotations(self) -> Path:
        return ground_truth_of_run(self.config)

    def _evaluate(
        self, indices: Sequence[int] | None, *, output: EvaluationFolder, decoding: tuple[Decoding, ...]
    ) -> dict[str, float]:
        parts, config, device = self.parts, self.config.evaluation, self._device
        encoding, truth = parts.encoding, read_ground_truth(self._val_annotations)
        settings = EvaluationSettings(
            batch_size=config.batch_size,
            max_new_tokens=config.max_new_tokens,
            decoding=decoding,
            score=config.score,
            aliases=config.aliases,
            details=indices is None,
        )
        samples = parts.val.samples if indices is None else [parts.val.samples[i] for i in indices]
        categories = CategoryIndex(truth.categories, aliases=config.aliases)
        data = EvaluationData(truth, samples, categories, is_subset=indices is not None)
        answering = AnsweringModel(
            parts.model,
            encoding.tokenizer,
            encoding.image_spec,
            SequenceFormat(encoding.vocab, encoding.tokenizer),
            encode=lambda samples: encoding.dataset(samples, with_targets=False),
        )
        # Of this device alone: torch would warn of the others that a worker sees.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            evaluation = Evaluation(answering, data, settings)
            own_queues = evaluation.queues[ranks.rank() :: ranks.world_size()]
            done, total = 0, sum(map(len, own_queues)) * len(decoding)

            def on_images(count: int) -> None:
                nonlocal done
                done += count
                self.on_progress(done, total)

            def answer(way: Decoding) -> list[ReadAnswer]:
                own = evaluation.answer(way, own_queues, on_images=on_images)
                return [found for part in ranks.gather_to_first(own) for found in part]

            return score(
                data,
                settings,
                answer,
                output,
                hardware=f"{ranks.world_size()} x {answering.hardware}",
                generated_by=GeneratedBy.of_evaluation(answering, settings, num_processes=ranks.world_size()),
            )
