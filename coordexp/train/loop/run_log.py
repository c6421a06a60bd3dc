"""The log of a run: rows of metrics, committed with checkpoints, and progress and alarms, shown at once."""

import contextlib
import json
import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict

import torch

from coordexp.config.schema import RunConfig
from coordexp.errors import counted
from coordexp.files import write_json
from coordexp.losses.criterion import Criterion
from coordexp.losses.term import UNITS
from coordexp.metrics import (
    BOX_KINDS,
    LOSS_NAMES,
    PLACE_MEASURES,
    PLACES,
    SUBSET,
    MetricName,
    Split,
    loss_head,
    loss_metric,
    loss_names,
)
from coordexp.runs import ranks
from coordexp.runs.folder import CheckpointFolder, RunFolder
from coordexp.runs.live import EventKind, EventTail, LiveWriter, Phase, RunEvent, last_ap
from coordexp.runs.progress import clock_time
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.rows import Row
from coordexp.train.loop.measures import ALL_GRAD_NORMS, HIDDEN_GRADIENT, NAMES, P90_NAME, StepLog
from coordexp.train.loop.messages import is_warning
from coordexp.train.loop.throughput import FlopCounter

_GRADIENT_SUMS = ("num_steps", "num_clipped", ALL_GRAD_NORMS)
_QUIET_SECONDS = 5.0  # a person waits ten without doubting, and a batch of answers takes some
_WORTH_A_LINE = 0.1  # of the time, waiting for data
_NEGLIGIBLE = 1e-3  # losses below are too small to be compared as a ratio


class AlarmState(TypedDict):
    """What a resumed run has to know: alarms so far, and how long each term has been silent."""

    raised: int
    silent: dict[str, int]


@dataclass(frozen=True)
class TrainingState:
    """What a checkpoint keeps besides weights, optimizer, schedule, random states and running averages."""

    train_seconds: float  # wall time of training up to the last logging step
    seconds_since_log: float  # training time since then
    train_means: dict[str, float]  # of the last logging step, with which validation is compared
    gradients: dict[str, float]  # steps, clipped ones and the sum of their gradient norms, up to the last logging step
    alarms: AlarmState


class RunLog:
    """Rows, progress and alarms of one run, and its commits; every rank has one, and rank 0's is shown."""

    def __init__(
        self,
        config: RunConfig,
        *,
        criterion: Criterion,
        flops: FlopCounter | None,
        reporter: LocalReporter,
        print_line: Callable[[str], None],
    ) -> None:
        self.name = RunFolder.of(config).name
        self.train_seconds = 0.0
        self.rows: list[Row] = []
        self.reporter = reporter
        self._config = config
        self._criterion = criterion
        self._flops = flops
        self._print_line = print_line
        self._alarms = Alarms(criterion, patience=config.training.alarm_patience, factor=config.training.alarm_factor)
        self._train_means: dict[str, float] = {}
        self._gradients: dict[str, float] = dict.fromkeys(_GRADIENT_SUMS, 0.0)
        self._last_log = self._last_line = time.monotonic()
        self._paused_seconds = 0.0
        self._pause_started: float | None = None
        self._logged_steps = 0
        self._paced_step = 0  # the last logging step, by whose time the rest is foretold
        self._warned_of_waiting = False
        self._last_ap: float | None = None
        is_first = ranks.rank() == 0
        self._live = LiveWriter(RunFolder.of(config), writes=is_first, peak_memory_bytes=_peak_memory_bytes)
        self._live.show(replace(self._live.now, num_steps=config.training.num_steps))

    def start(self, lines: Sequence[str], *, step: int) -> None:
        """Print what trains, and on what, and at which step the run resumes (0: at its beginning)."""
        if step:
            self.note(f"resumes at step {step}", kind="note")
        for line in lines:
            self.note(line)
        warnings = tuple(line for line in lines if is_warning(line))
        self._live.tell(RunEvent("start", time.time(), step=step, lines=tuple(lines), warnings=warnings))
        if step:
            events = EventTail(RunFolder.of(self._config))
            events.new()
            self._last_ap = last_ap(events.evaluations)[0]
        self.enter("trains")
        self.show_step(step)

    def enter(self, phase: Phase) -> None:
        """Say what the run does from now on."""
        self._live.show(replace(self._live.now, phase=phase, done=0, total=0))
        self._live.tell(RunEvent("phase", time.time(), phase, step=self._live.now.step))

    def show_step(self, step: int) -> None:
        """Say that a step was taken; its loss is read at logging steps alone, since that waits for the device."""
        seconds_left: float | None = None
        if self._paced_step:
            num_steps = self._config.training.num_steps
            seconds_left = self.train_seconds / self._paced_step * (num_steps - step)
        self._live.show(replace(self._live.now, step=step, seconds_left=seconds_left))

    def start_clock(self) -> None:
        """Start the training clock; set-up does not count."""
        self._last_log = time.monotonic()

    def on_step_log(self, log: StepLog) -> None:
        """Make a row and a progress line of a logging step."""
        log = replace(log, seconds=log.seconds - self._paused_seconds)
        self._paused_seconds = 0.0
        self._last_log = time.monotonic()
        self.train_seconds += log.seconds
        self._train_means = log.means
        self._gradients = {name: total + log.sums[name] for name, total in self._gradients.items()}
        steps, clipped, norms = (self._gradients[name] for name in _GRADIENT_SUMS)  # of all steps so far
        metrics = train_metrics(log, config=self._config, criterion=self._criterion, flops=self._flops)
        metrics |= {"clipped_fraction": clipped / steps, "mean_grad_norm": norms / steps}
        units = {unit: log.sums[f"num_{unit}"] for unit in UNITS}
        prefix = HIDDEN_GRADIENT  # each term's, summed over the microbatches of this step
        gradients = {name.removeprefix(prefix): norm for name, norm in log.sums.items() if name.startswith(prefix)}
        self._raise_alarms(log.step, self._alarms.silent_terms(gradients, units))
        self.add_row(log.step, metrics | {"alarms": float(self._alarms.raised)})
        max_steps = self._config.training.num_steps
        seconds_left = self.train_seconds / log.step * (max_steps - log.step)
        self.note(progress_line(log, metrics=metrics, max_steps=max_steps, seconds_left=seconds_left, ap=self._last_ap))
        self._logged_steps += 1
        self._paced_step = log.step
        self._live.now = replace(
            self._live.now, loss=metrics["train_total_loss"], images_per_second=log.per_second("num_images")
        )
        self.show_step(log.step)
        waited = metrics["throughput/data_wait_fraction"]
        # Once, and not at the first logging step, when loader processes start.
        if waited >= _WORTH_A_LINE and self._logged_steps > 1 and not self._warned_of_waiting:
            self._warned_of_waiting = True
            num_workers = self._config.data.num_workers
            self.note(
                f"waits for data {waited:.0%} of the time; raise data.num_workers (now {num_workers})", kind="warning"
            )

    def add_validation(self, step: int, means: Mapping[str, float], sums: Mapping[str, float]) -> None:
        """Make a row of teacher-forced losses on validation samples."""
        metrics = means_to_metrics(means, split="eval", config=self._config, criterion=self._criterion)
        metrics["eval_coord_diag/coord_tokens"] = sums["num_coord_tokens"]
        if sums["num_coord_tokens"]:  # without an object the end of the answer is all that there is to compare
            self._raise_alarms(step, self._alarms.apart(self._train_means, means))
        self.add_row(step, metrics | {"alarms": float(self._alarms.raised)})

    def add_evaluation(self, step: int, metrics: Mapping[str, float], *, num_images: int, is_final: bool) -> None:
        """Make a row of an evaluation by generation: of the final one on all images, or of one on the subset."""
        if ranks.rank() != 0:  # the others have no metrics
            return
        self.add_row(step, {("" if is_final else SUBSET) + name: value for name, value in metrics.items()})
        found = {box: metrics.get(str(MetricName("constrained", "AP", box))) for box in BOX_KINDS}
        # The final evaluation is on all images, which no evaluation before it was.
        ap_before = None if is_final else self._last_ap
        self._last_ap = found[self._config.reading]
        aps = ", ".join(f"AP {'undefined' if value is None else f'{value:.3f}'} {box}" for box, value in found.items())
        line = f"{'final' if is_final else f'step {step}'}  {aps} on {'all ' * is_final}{counted(num_images, 'image')}"
        self.note(line)
        self._live.tell(RunEvent("evaluation", time.time(), line, step=step, ap=self._last_ap, ap_before=ap_before))

    def show_answers(self, done: int, total: int) -> None:
        """Say how far an evaluation is; a line for a person only where none came for a while."""
        self._live.show(replace(self._live.now, done=done, total=total))
        if time.monotonic() - self._last_line >= _QUIET_SECONDS:
            self.note(f"has written {done:,} of {total:,} answers")

    def add_row(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep a row until the next commit; what is not finite raises an alarm and is left out."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        row = Row(step=step, time=time.time(), metrics=finite)
        self.rows.append(row)
        if ranks.rank() == 0:
            self.reporter.observe(row)
        if len(finite) < len(metrics):
            self._raise_alarms(step, self._alarms.not_finite(sorted(metrics.keys() - finite.keys())))

    def commit(self, step: int, checkpoint: Path | None = None, *, is_final: bool = False) -> None:
        """Hand rows, and a checkpoint, to the reporter; ``is_final`` rows are kept by whoever resumes the run."""
        if checkpoint is not None and ranks.rank() == 0:
            # Without pauses, also the one that goes on.
            now = time.monotonic() if self._pause_started is None else self._pause_started
            state = TrainingState(
                train_seconds=self.train_seconds,
                seconds_since_log=now - self._last_log - self._paused_seconds,
                train_means={name: mean for name, mean in self._train_means.items() if math.isfinite(mean)},
                gradients=self._gradients,
                alarms=self._alarms.state,
            )
            write_json(CheckpointFolder(checkpoint).training_state, asdict(state))
        self.reporter.commit(self.rows, step=step, checkpoint=checkpoint, is_final=is_final)
        self.rows = []

    def resume(self, checkpoint: Path) -> None:
        """Go on from a checkpoint's training time, means and alarms."""
        text = CheckpointFolder(checkpoint).training_state.read_text(encoding="utf-8")
        state = TrainingState(**json.loads(text))
        self.train_seconds = state.train_seconds
        self._paused_seconds = -state.seconds_since_log  # the next row covers that time too
        self._train_means = state.train_means
        self._gradients = state.gradients
        self._alarms.resume(state.alarms)

    @contextlib.contextmanager
    def pause(self) -> Generator[None]:
        """Keep what happens inside out of the training time."""
        started = self._pause_started = time.monotonic()
        try:
            yield
        finally:
            self._paused_seconds += time.monotonic() - started
            self._pause_started = None

    def note(self, line: str, *, kind: EventKind | None = None) -> None:
        """Print a line for a person; it is an event, too, where it is of a kind that whoever watches should see."""
        self._last_line = time.monotonic()
        if ranks.rank() == 0:
            self._print_line(f"{self.name}  {line}")
        if kind is not None:
            self._live.tell(RunEvent(kind, time.time(), line))

    def _raise_alarms(self, step: int, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self.note(f"ALARM at step {step}: {sentence}", kind="alarm")


def _peak_memory_bytes() -> int:
    """Return the most memory that was in use: of this GPU's tensors, or of this process where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB


class Alarms:
    """A term that is on and teaches nothing; losses of one term that do not fit together; values that are not finite.

    ``patience`` is logging steps in a row before silence raises an alarm, ``factor`` how far apart training and
    validation loss of a term may be.
    """

    def __init__(self, criterion: Criterion, *, patience: int, factor: float) -> None:
        self.raised = 0  # alarms so far
        self._on = [weighted for weighted in criterion.terms if weighted.weight != 0]
        self._patience = patience
        self._factor = factor
        self._silent: Counter[str] = Counter()

    @property
    def state(self) -> AlarmState:
        return {"raised": self.raised, "silent": dict(self._silent)}

    def resume(self, state: AlarmState) -> None:
        self.raised, self._silent = state["raised"], Counter(state["silent"])

    def silent_terms(self, gradients: Mapping[str, float], units: Mapping[str, float]) -> list[str]:
        """Return a sentence for each term that has been without units or gradient for ``patience`` logging steps now.

        A second sentence comes only after it has had units and gradient again. ``gradients`` are norms at the head's
        input, ``units`` what there was to count since the last logging step.
        """
        sentences: list[str] = []
        for weighted in self._on:
            name, unit = weighted.term.name, weighted.term.unit
            self._silent[name] = 0 if units[unit] and gradients[name] else self._silent[name] + 1
            if self._silent[name] == self._patience:
                missing = f"no {unit.replace('_', ' ')} to count" if not units[unit] else "zero gradient"
                sentences.append(
                    f"the term {name} is on (weight {weighted.weight:g}) but had {missing} in the last "
                    f"{self._patience} logging steps"
                )
        self.raised += len(sentences)
        return sentences

    def not_finite(self, names: list[str]) -> list[str]:
        self.raised += 1
        return [f"not finite, and left out of the record: {', '.join(names)}"]

    def apart(self, train: Mapping[str, float], validation: Mapping[str, float]) -> list[str]:
        """Return a sentence for each term whose means of training and validation differ by more than ``factor``."""
        sentences: list[str] = []
        for name in (weighted.term.name for weighted in self._on):
            if name not in train or name not in validation:
                continue
            low, high = sorted((train[name], validation[name]))
            if high > _NEGLIGIBLE and high > self._factor * low:
                sentences.append(
                    f"the term {name} is {train[name]:.4g} in training and {validation[name]:.4g} on validation "
                    f"images, more than a factor {self._factor:g} apart: overfitting, or normalised differently"
                )
        self.raised += len(sentences)
        return sentences


def progress_line(
    log: StepLog, *, metrics: Mapping[str, float], max_steps: int, seconds_left: float, ap: float | None = None
) -> str:
    """Return e.g. ``step 120/400  loss 2.31 (text 0.80, coord ce 1.51, box 0.61)  AP 0.412  93 img/s  1:20 left``."""
    labels = {"train_text_loss": "text", "train_coord_ce_loss": "coord ce", "train_coord_loss": "box"}
    labels |= {f"train_{name}": loss_head(name) for name in loss_names(metrics) if name not in LOSS_NAMES}
    parts = ", ".join(f"{label} {metrics[key]:.3f}" for key, label in labels.items() if key in metrics)
    so_far = "" if ap is None else f"AP {ap:.3f}  "
    return (
        f"step {log.step}/{max_steps}  loss {metrics['train_total_loss']:.3f} ({parts})  {so_far}"
        f"{log.per_second('num_images'):.0f} img/s  {clock_time(seconds_left)} left"
    )


def means_to_metrics(
    means: Mapping[str, float], *, split: Split, config: RunConfig, criterion: Criterion
) -> dict[str, float]:
    """Name mean values, e.g. ``train_text_loss`` and ``coord_diag/w1``, and add what sums them up.

    ``*_coord_loss`` is alpha L1 + beta (1 - GIoU) for every group, whatever its weight there;
    ``coord_diag/loss`` is the weighted sum of the distribution terms. A value whose terms had
    nothing to count is absent; to the total such a term adds 0.
    """
    objective, distribution = config.objective, config.custom.coord_soft_ce_w1
    sums = {
        "coord_loss": {"box_l1": objective.alpha_l1, "box_giou": objective.beta_giou},
        "coord_diag/loss": {
            "soft_ce": distribution.soft_ce_weight,
            "w1": distribution.w1_weight,
            "gate": distribution.gate_weight,
        },
    }
    names = {weighted.term.name: weighted.term.metric_name() for weighted in criterion.terms}
    by_place = [f"{measure}/{place}" for measure in PLACE_MEASURES for place in PLACES]
    names |= {name: f"coord_diag/{name}" for name in (*NAMES, P90_NAME, *by_place)}
    values = {metric: means[name] for name, metric in names.items() if name in means}
    for metric, parts in sums.items():
        if all(part in means for part in parts):
            values[metric] = sum(weight * means[part] for part, weight in parts.items())
    values["total_loss"] = criterion.total(means)
    values["coord_diag/enabled"] = float(distribution.enabled)
    return {loss_metric(split, metric): value for metric, value in values.items()}


def train_metrics(
    log: StepLog, *, config: RunConfig, criterion: Criterion, flops: FlopCounter | None
) -> dict[str, float]:
    """Return the metrics of a logging step."""
    metrics = means_to_metrics(log.means, split="train", config=config, criterion=criterion)
    metrics["coord_diag/coord_tokens"] = log.sums["num_coord_tokens"]
    if flops is not None:
        metrics["throughput/mfu"] = flops.utilisation(log.sums, seconds=log.seconds)
    return metrics | {
        "learning_rate": log.learning_rate,
        "grad_norm": log.grad_norm,
        "epoch": log.epoch,
        "num_supervised_tokens": log.sums["num_tokens"],
        "num_images": log.sums["num_images"],
        "throughput/images_per_second": log.per_second("num_images"),
        "throughput/tokens_per_second": log.per_second("num_sequence_tokens"),
        "throughput/data_wait_fraction": log.per_second("data_wait_seconds"),
    }
