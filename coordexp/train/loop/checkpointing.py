"""What happens besides optimizer steps: rows, progress lines, validation, evaluation, commits."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from coordexp.config.schema import ExperimentConfig
from coordexp.data.splits.splits import annotations_path, stratified_subset
from coordexp.detection.coco_files import read_detections, read_ground_truth
from coordexp.detection.quality import BoxRun
from coordexp.evaluate.generate.decode import EvaluationSpec
from coordexp.evaluate.loop import evaluate_split
from coordexp.files import write_json
from coordexp.metrics import BOX_KINDS, SUBSET, Decoding, MetricName
from coordexp.runs import ranks
from coordexp.runs.folder import CheckpointFolder, ExperimentFolder, RunFolder
from coordexp.runs.reporter import Reporter, Row
from coordexp.train.checks.alarms import Alarms
from coordexp.train.loop.holdout_loss import validation_means
from coordexp.train.loop.messages import progress_line
from coordexp.train.loop.metric_rows import means_to_metrics, train_metrics
from coordexp.train.loop.throughput import Utilisation, utilisation_of
from coordexp.train.setup.components import Components
from coordexp.train.setup.loader import WaitNotice
from coordexp.train.trainer import StepLog

Announce = Callable[[str], None]


@dataclass
class Session:
    """One run's way out: collects rows and commits them with checkpoints."""

    config: ExperimentConfig
    parts: Components
    reporter: Reporter
    announce: Announce
    rows: list[Row] = field(default_factory=list[Row])
    train_seconds: float = 0.0
    first_step: int = 0
    _paused_seconds: float = 0.0
    _pause_started: float | None = None
    _window_started: float = field(default_factory=time.monotonic)
    _train_means: dict[str, float] = field(default_factory=dict[str, float])
    _alarms: Alarms = field(init=False)
    _wait_notice: WaitNotice = field(init=False)
    _utilisation: Utilisation = field(init=False)

    def __post_init__(self) -> None:
        """Set the alarms, the notice of waiting and what utilisation is measured against."""
        training = self.config.training
        self._alarms = Alarms(self.parts.criterion, patience=training.alarm_patience, factor=training.alarm_factor)
        self._wait_notice = WaitNotice(self.config.data.num_workers)
        self._utilisation = utilisation_of(
            self.parts.model, half_precision=training.precision == "bfloat16", num_devices=ranks.world_size()
        )

    @property
    def name(self) -> str:
        """Short name of the run, ``A-s0``."""
        return RunFolder.of(self.config).name

    def on_step_log(self, log: StepLog) -> None:
        """Make a row and a progress line of a logging step."""
        log = replace(log, seconds=log.seconds - self._paused_seconds)
        self._paused_seconds = 0.0
        self._window_started = time.monotonic()
        metrics = train_metrics(log, config=self.config, criterion=self.parts.criterion, utilisation=self._utilisation)
        self.train_seconds += log.seconds
        self._train_means = log.means
        self._raise_alarms(log.step, self._alarms.silent_terms(log.hidden_gradients, log.units))
        self.add_row(log.step, metrics | {"alarms": float(self._alarms.raised)})
        if ranks.rank() == 0:
            self.announce(
                progress_line(
                    self.name,
                    log,
                    metrics=metrics,
                    max_steps=self.config.training.max_steps,
                    seconds_per_step=self.train_seconds / log.step,
                )
            )
            waiting = self._wait_notice.line(log.data_wait_fraction)
            if waiting is not None:
                self.announce(f"{self.name}  {waiting}")

    def on_term_gradients(self, step: int, norms: dict[str, float]) -> None:
        """Make a row of the norms of each term's gradient."""
        self.add_row(step, {f"grad_norm/{name}": norm for name, norm in norms.items()})

    def add_row(self, step: int, metrics: dict[str, float]) -> None:
        """Keep a row until the next commit; what is not finite raises an alarm and is left out."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        row = Row(step=step, time=time.time(), metrics=finite)
        self.rows.append(row)
        if ranks.rank() == 0:
            self.reporter.observe(row)
        if len(finite) < len(metrics):
            self._raise_alarms(step, self._alarms.not_finite(sorted(metrics.keys() - finite.keys())))

    def commit(self, step: int, checkpoint: Path | None) -> None:
        """Hand rows, and a checkpoint, to the reporter."""
        if checkpoint is not None and ranks.rank() == 0:
            state = {
                "train_seconds": self.train_seconds,
                "window_seconds": self._window_seconds(),
                "train_means": {name: mean for name, mean in self._train_means.items() if math.isfinite(mean)},
                "alarms": self._alarms.state(),
            }
            write_json(CheckpointFolder(checkpoint).training_state, state)
        self.reporter.commit(self.rows, step=step, checkpoint=checkpoint)
        self.rows = []

    def resume(self, checkpoint: Path) -> None:
        """Go on from a checkpoint's step and training time."""
        self.first_step = CheckpointFolder(checkpoint).step
        state = json.loads((CheckpointFolder(checkpoint).training_state).read_text(encoding="utf-8"))
        self.train_seconds = state["train_seconds"]
        self._paused_seconds = -state.get("window_seconds", 0.0)  # the next row covers them too
        self._train_means = state.get("train_means", {})
        self._alarms.resume(state["alarms"])

    @contextlib.contextmanager
    def pause(self) -> Generator[None]:
        """Keep what happens inside out of the training time."""
        started = self._pause_started = time.monotonic()
        try:
            yield
        finally:
            self._paused_seconds += time.monotonic() - started
            self._pause_started = None

    def validate(self, step: int) -> None:
        """Add a row of teacher-forced losses on validation samples."""
        indices = stratified_subset(self.parts.val.samples, self.config.evaluation.loss_images)
        if not indices:
            return
        means, sums = validation_means(
            self.parts.encoding.dataset([self.parts.val.samples[i] for i in indices]),
            forward_terms=self.parts.forward_terms,
            criterion=self.parts.criterion,
            collate=self.parts.encoding.collate,
            batch_size=self.config.training.per_device_batch_size,
            device=_device(self.parts.model),
        )
        named = means_to_metrics(means, split="eval", config=self.config, criterion=self.parts.criterion)
        named["eval_coord_diag/coord_tokens"] = sums["num_coord_tokens"]
        self._raise_alarms(step, self._alarms.apart(self._train_means, means))
        self.add_row(step, named | {"alarms": float(self._alarms.raised)})

    def evaluate_subset(self, step: int) -> None:
        """Add a row of AP on the fixed subset, under constrained decoding."""
        metrics = self._evaluate(self.subset_indices(), at=step, decoding=("constrained",))
        if ranks.rank() == 0:
            self.add_row(step, {SUBSET + name: value for name, value in metrics.items()})
            self.announce(f"{self.name}  step {step}  {_headline(metrics)} on {len(self.subset_indices())} images")

    def evaluate_all(self, step: int) -> dict[str, float]:
        """Add a row of the final evaluation on every image, and of its part on the subset."""
        metrics = self._evaluate(None, at="final", decoding=self.config.evaluation.decoding)
        if ranks.rank() == 0:
            self.add_row(step, metrics)
            if self.config.evaluation.every_steps is not None:
                self.add_row(step, self._subset_of_final())
            self.announce(f"{self.name}  final  {_headline(metrics)} on all {len(self.parts.val.samples)} images")
        return metrics

    def subset_indices(self) -> list[int]:
        """Return the validation images of evaluations during training; fixed by the data alone."""
        return list(stratified_subset(self.parts.val.samples, self.config.evaluation.subset_images))

    def _window_seconds(self) -> float:
        """Return the time since the last logging step, without pauses; the one that goes on is none of it."""
        now = time.monotonic() if self._pause_started is None else self._pause_started
        return now - self._window_started - self._paused_seconds

    def _raise_alarms(self, step: int, sentences: Sequence[str]) -> None:
        if ranks.rank() == 0:
            for sentence in sentences:
                self.announce(f"{self.name}  ALARM at step {step}: {sentence}")

    def _evaluate(
        self, indices: Sequence[int] | None, *, at: int | str, decoding: tuple[Decoding, ...]
    ) -> dict[str, float]:
        samples = self.parts.val.samples if indices is None else [self.parts.val.samples[i] for i in indices]
        evaluation = self.config.evaluation
        dataset = self.parts.encoding.dataset(samples, with_targets=False)
        device = _device(self.parts.model)
        # Of this device alone: torch would warn of the others that a worker sees.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            return evaluate_split(
                self.parts.model,
                tokenizer=self.parts.encoding.tokenizer,
                vocab=self.parts.encoding.vocab,
                samples=dataset,
                sizes={sample.image_id: (sample.width, sample.height) for sample in samples},
                annotations=self._val_annotations(),
                image_spec=self.parts.encoding.image_spec,
                spec=EvaluationSpec(
                    batch_size=evaluation.batch_size,
                    max_new_tokens=evaluation.max_new_tokens,
                    decoding=decoding,
                    score=evaluation.score,
                    aliases=evaluation.aliases,
                ),
                output=RunFolder.of(self.config).evaluation(at).path,
                rank=ranks.rank(),
                world_size=ranks.world_size(),
                gather=ranks.gather_to_first,
                subset=indices is not None,
                details=indices is None,
                lengths=dataset.lengths,
            )

    def _subset_of_final(self) -> dict[str, float]:
        """Score the final detections on the subset's images: the last point of the curve."""
        image_ids = [self.parts.val.samples[i].image_id for i in self.subset_indices()]
        files = RunFolder.of(self.config).evaluation("final").decoding("constrained")
        ground_truth = read_ground_truth(self._val_annotations())
        metrics: dict[str, float] = {}
        for box in BOX_KINDS:
            detections = read_detections(files.detections(box), ground_truth)
            found = BoxRun(ground_truth, detections, image_ids=image_ids).metrics()
            metrics |= {str(MetricName("constrained", name, box, subset=True)): value for name, value in found.items()}
        return metrics

    def _val_annotations(self) -> Path:
        return annotations_path(self.config.data, "val", data_dir=ExperimentFolder.of(self.config).data)


def _headline(metrics: dict[str, float]) -> str:
    found = {boxes: metrics.get(str(MetricName("constrained", "AP", boxes))) for boxes in BOX_KINDS}
    return ", ".join(f"AP {'-' if value is None else f'{value:.3f}'} {box}" for box, value in found.items())


def _device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device
