"""Validation losses and AP of a run, during training and at its end; ranks share the work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import torch

from coordexp.config.schema import RunConfig
from coordexp.data.sample import Sample
from coordexp.data.splits.subset import stratified_subset
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.metrics import measure
from coordexp.detection.names.categories import CategoryIndex
from coordexp.evaluate.answers import ReadAnswer, unknown_sentence
from coordexp.evaluate.evaluation import EvaluationImages, ModelEvaluation, score_answers
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
class TrainingEvaluator:
    """Evaluates the model of a run as it is now. Every rank has one, and all call it at the same points."""

    config: RunConfig
    parts: Components
    on_progress: Callable[[int, int], None]  # called with the answers that this rank has, and will have

    def validation_losses(self) -> tuple[dict[str, float], dict[str, float]] | None:
        """Measure losses and diagnostics on validation samples, teacher-forced.

        They are normalised as in training: every term by its unit's count over all samples.

        Returns:
            Means and sums over all ranks, by the name of a term, diagnostic or unit; None if there is no sample.
        """
        if not self._loss_indices:
            return None
        components = self.parts
        samples = components.encoding.dataset([components.val.samples[index] for index in self._loss_indices])
        device = self._device
        averages = self._empty_averages(device)
        ones_U = torch.ones(len(UNITS), device=device)
        batch_size = self.config.training.per_device_batch_size
        first = ranks.rank() * batch_size
        stride = ranks.world_size() * batch_size

        model = components.forward_terms.base
        was_training = model.training
        model.eval()
        with torch.no_grad():
            for start in range(first, len(samples), stride):
                end = min(start + batch_size, len(samples))
                batch = components.encoding.collate([samples[index] for index in range(start, end)]).to(device)
                terms, _ = components.forward_terms(model, batch)
                _, sums = components.criterion(terms, ones_U)
                averages.add_terms(components.criterion, sums, count_units([batch]))
                averages.add_diagnostics(coord_diagnostics(terms))
        model.train(was_training)
        return averages.read()

    def on_subset(self, step: int) -> dict[str, float]:
        """Evaluate the subset under constrained decoding; return metrics on rank 0, nothing elsewhere."""
        output = RunFolder.of(self.config).evaluation(step)
        samples = [self.parts.val.samples[index] for index in self.subset_indices]
        return self._evaluate(samples, output=output, decoding=("constrained",), is_subset=True)

    def on_all_images(self) -> dict[str, float]:
        """Evaluate all validation images for the run's result; return metrics on rank 0, nothing elsewhere."""
        decoding = self.config.evaluation.decoding
        return self._evaluate(self.parts.val.samples, output=self._final, decoding=decoding, is_subset=False)

    def remarks(self, metrics: Mapping[str, float]) -> list[str]:
        """Return a sentence for each decoding whose descriptions are often no category; for rank 0."""
        remarks: list[str] = []
        for decoding in self.config.evaluation.decoding:
            sentence = unknown_sentence(self._final.decoding(decoding), decoding, metrics)
            if sentence is not None:
                remarks.append(sentence)
        return remarks

    def subset_of_final(self) -> dict[str, float]:
        """Measure the final detections on the subset's images alone: the last point of the curve over steps."""
        image_ids = [self.parts.val.samples[index].image_id for index in self.subset_indices]
        truth = read_ground_truth(self._val_annotations)
        metrics: dict[str, float] = {}
        for kind in BOX_KINDS:
            detections = read_detections(self._final.decoding("constrained").detections(kind), truth)
            measured = measure(MatchedBoxes(truth.on_images(image_ids), detections.on_images(image_ids)))
            for name, value in measured.items():
                metrics[str(MetricName("constrained", name, kind, subset=True))] = value
        return metrics

    # Both subsets follow from the data alone. To choose one goes over all samples 128 times, so it is done once a run.
    @cached_property
    def subset_indices(self) -> list[int]:
        """The validation images of evaluations during training."""
        return stratified_subset(self.parts.val.samples, self.config.evaluation.subset_images)

    @cached_property
    def _loss_indices(self) -> list[int]:
        return stratified_subset(self.parts.val.samples, self.config.evaluation.loss_images)

    def _empty_averages(self, device: torch.device) -> RunningAverages:
        """Return averages that hold every name with a count of 0.

        The ranks add up their values as one tensor, so each must hold the same names, even a rank without a batch.
        """
        averages = RunningAverages()
        term_names = [weighted.term.name for weighted in self.parts.criterion.terms]
        for name in (*term_names, *NAMES, *(f"num_{unit}" for unit in UNITS)):
            averages.add(name, torch.zeros((), device=device), 0)
        averages.add_errors(torch.zeros(0, device=device))
        averages.add_places(torch.zeros(len(PLACE_MEASURES) + 1, len(PLACES), dtype=torch.float64, device=device))
        return averages

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
        self,
        samples: Sequence[Sample],
        *,
        output: EvaluationFolder,
        decoding: tuple[Decoding, ...],
        is_subset: bool,
    ) -> dict[str, float]:
        """Answer images on all ranks, and score the answers on rank 0, which returns the metrics."""
        config = self.config.evaluation
        truth = read_ground_truth(self._val_annotations)
        settings = EvaluationSettings(
            batch_size=config.batch_size,
            max_new_tokens=config.max_new_tokens,
            decoding=decoding,
            score=config.score,
            aliases=config.aliases,
            details=not is_subset,
        )
        categories = CategoryIndex(truth.categories, aliases=config.aliases)
        data = EvaluationImages(truth, samples, categories, is_subset=is_subset)
        answering = self._answering_model()
        # Generation must not move the random numbers that training draws from. Only this device is named: torch would
        # warn about the other devices that a worker can see.
        device = self._device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            evaluation = ModelEvaluation(answering, data, settings)
            queues_of_rank = evaluation.queues[ranks.rank() :: ranks.world_size()]
            num_done = 0
            num_total = sum(map(len, queues_of_rank)) * len(decoding)

            def on_images(count: int) -> None:
                nonlocal num_done
                num_done += count
                self.on_progress(num_done, num_total)

            def answer(way: Decoding) -> list[ReadAnswer]:
                answers_of_rank = evaluation.answer(way, queues_of_rank, on_images=on_images)
                return list(chain.from_iterable(ranks.gather_to_first(answers_of_rank)))

            return score_answers(
                data,
                settings,
                answer,
                output,
                hardware=f"{ranks.world_size()} x {answering.hardware}",
                generated_by=GeneratedBy.of_evaluation(answering, settings, num_processes=ranks.world_size()),
            )

    def _answering_model(self) -> AnsweringModel:
        encoding = self.parts.encoding
        return AnsweringModel(
            self.parts.model,
            encoding.tokenizer,
            encoding.image_spec,
            SequenceFormat(encoding.vocab, encoding.tokenizer),
            encode=lambda samples: encoding.dataset(samples, with_targets=False),
        )
