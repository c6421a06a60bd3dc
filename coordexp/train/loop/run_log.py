"""The log of a run: rows of metrics, committed with checkpoints, and progress and alarms, shown at once.

The way of a measurement::

    measures ──► row ──► kept in memory ──► commit(step, checkpoint) ──► metrics.jsonl
                   │
                   └──► progress line, live.json, events.jsonl: at once, for whoever watches

Rows wait for the next checkpoint. If the run dies before it, the rows are lost with the weights: the resumed run
repeats those steps, and makes the same rows again.
"""

import contextlib
import json
import math
import resource
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

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
from coordexp.train.loop.alarms import Alarms, AlarmState
from coordexp.train.loop.measures import ALL_GRAD_NORMS, HIDDEN_GRADIENT, NAMES, P90_NAME, StepLog
from coordexp.train.loop.messages import is_warning
from coordexp.train.loop.throughput import FlopCounter

_GRADIENT_SUMS = ("num_steps", "num_clipped", ALL_GRAD_NORMS)
_QUIET_SECONDS = 5.0  # a person waits ten seconds before doubting, and a batch of answers takes some of them
_WORTH_A_LINE = 0.1  # fraction of the time spent waiting for data


@dataclass(frozen=True)
class TrainingState:
    """What a checkpoint keeps besides weights, optimizer, schedule, random states and running averages."""

    train_seconds: float  # wall time of training up to the last logging step
    seconds_since_log: float  # training time since then
    train_means: dict[str, float]  # of the last logging step; validation is compared with them
    gradients: dict[
        str, float
    ]  # number of steps and of clipped ones, sum of gradient norms, up to the last logging step
    alarms: AlarmState


class TrainingLog:
    """Rows, progress and alarms of one run, and its commits. Every rank has one; only rank 0's is shown."""

    def __init__(
        self,
        config: RunConfig,
        *,
        criterion: Criterion,
        flops: FlopCounter | None,
        reporter: LocalReporter,
        print_line: Callable[[str], None],
    ) -> None:
        """Begin the log of a run.

        Args:
            config: the run.
            criterion: names the terms.
            flops: measures the utilisation of the devices; None if the model's operations are not counted.
            reporter: takes rows and checkpoints when they are committed.
            print_line: prints a line for a person.
        """
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
        self._last_log = time.monotonic()
        self._last_line = time.monotonic()
        self._paused_seconds = 0.0  # since the last logging step; negative if a resumed run owes time from before
        self._pause_started: float | None = None
        self._logged_steps = 0  # by this process
        self._paced_step = 0  # the last logging step, up to which train_seconds counts
        self._warned_of_waiting = False
        self._last_ap: float | None = None
        is_first = ranks.rank() == 0
        self._live = LiveWriter(RunFolder.of(config), writes=is_first, peak_memory_bytes=_peak_memory_bytes)
        self._live.show(replace(self._live.now, num_steps=config.training.num_steps))

    def start(self, lines: Sequence[str], *, step: int) -> None:
        """Print the lines of a run's start, and the step at which it resumes (0: it begins)."""
        if step:
            self.note(f"resumes at step {step}", kind="note")
        for line in lines:
            self.note(line)
        warnings = tuple(line for line in lines if is_warning(line))
        self._live.tell(RunEvent("start", time.time(), step=step, lines=tuple(lines), warnings=warnings))
        if step:
            # The start event just written drops evaluations after the checkpoint; the AP of the one before it is shown
            # again.
            events = EventTail(RunFolder.of(self._config))
            events.new()
            self._last_ap, _ = last_ap(events.evaluations)
        self.enter("trains")
        self.show_step(step)

    def enter(self, phase: Phase) -> None:
        """Show what the run does from now on."""
        self._live.show(replace(self._live.now, phase=phase, done=0, total=0))
        self._live.tell(RunEvent("phase", time.time(), phase, step=self._live.now.step))

    def show_step(self, step: int) -> None:
        """Show that a step was taken. Its loss is read at logging steps only, because that waits for the device."""
        seconds_left = None if self._paced_step == 0 else self._seconds_left(step)
        self._live.show(replace(self._live.now, step=step, seconds_left=seconds_left))

    def _seconds_left(self, step: int) -> float:
        """Return the training time that is left after a step, at the pace up to the last logging step."""
        seconds_per_step = self.train_seconds / self._paced_step
        return seconds_per_step * (self._config.training.num_steps - step)

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
        metrics = train_metrics(log, config=self._config, criterion=self._criterion, flops=self._flops)
        metrics |= self._gradients_so_far(log)
        self._raise_alarms(log.step, self._alarms.silent_terms(_gradients_at_hidden(log), _units(log)))
        self.add_row(log.step, metrics | {"alarms": float(self._alarms.raised)})

        self._logged_steps += 1
        self._paced_step = log.step
        num_steps = self._config.training.num_steps
        seconds_left = self._seconds_left(log.step)
        self.note(progress_line(log, metrics=metrics, max_steps=num_steps, seconds_left=seconds_left, ap=self._last_ap))
        self._live.now = replace(
            self._live.now, loss=metrics["train_total_loss"], images_per_second=log.per_second("num_images")
        )
        self.show_step(log.step)
        self._warn_of_waiting(metrics["throughput/data_wait_fraction"])

    def _gradients_so_far(self, log: StepLog) -> dict[str, float]:
        """Return the metrics of gradient norms over all steps of the run, after those of a logging step."""
        self._gradients = {name: total + log.sums[name] for name, total in self._gradients.items()}
        num_steps, num_clipped, norms = (self._gradients[name] for name in _GRADIENT_SUMS)
        return {"clipped_fraction": num_clipped / num_steps, "mean_grad_norm": norms / num_steps}

    def _warn_of_waiting(self, waited: float) -> None:
        """Warn if a fraction of the time is spent waiting for data: once, and not while loader processes start."""
        is_starting = self._logged_steps == 1
        if waited < _WORTH_A_LINE or is_starting or self._warned_of_waiting:
            return
        self._warned_of_waiting = True
        num_workers = self._config.data.num_workers
        self.note(
            f"waits for data {waited:.0%} of the time; raise data.num_workers (now {num_workers})", kind="warning"
        )

    def add_validation(self, step: int, means: Mapping[str, float], sums: Mapping[str, float]) -> None:
        """Make a row of teacher-forced losses on validation samples, from means and sums by name."""
        metrics = means_to_metrics(means, split="eval", config=self._config, criterion=self._criterion)
        metrics["eval_coord_diag/coord_tokens"] = sums["num_coord_tokens"]
        if sums["num_coord_tokens"]:  # without an object there is only the end of the answer to compare
            self._raise_alarms(step, self._alarms.apart(self._train_means, means))
        self.add_row(step, metrics | {"alarms": float(self._alarms.raised)})

    def add_evaluation(self, step: int, metrics: Mapping[str, float], *, num_images: int, is_final: bool) -> None:
        """Make a row and a line of an evaluation by generation; does nothing on a rank other than 0.

        Args:
            step: the step of the weights.
            metrics: by name, without the prefix of the subset.
            num_images: images that were answered.
            is_final: whether they are all images, and not the subset.
        """
        if ranks.rank() != 0:  # the other ranks have no metrics
            return
        prefix = "" if is_final else SUBSET
        self.add_row(step, {prefix + name: value for name, value in metrics.items()})

        ap_by_box = {box: metrics.get(str(MetricName("constrained", "AP", box))) for box in BOX_KINDS}
        # The final AP is measured on other images than the AP of the subset, and is not shown as a change of it.
        ap_before = None if is_final else self._last_ap
        self._last_ap = ap_by_box[self._config.reading]
        aps: list[str] = []
        for box, ap in ap_by_box.items():
            value = "undefined" if ap is None else f"{ap:.3f}"
            aps.append(f"AP {value} {box}")
        images = counted(num_images, "image")
        head, which = ("final", "all ") if is_final else (f"step {step}", "")
        line = f"{head}  {', '.join(aps)} on {which}{images}"
        self.note(line)
        self._live.tell(RunEvent("evaluation", time.time(), line, step=step, ap=self._last_ap, ap_before=ap_before))

    def show_answers(self, done: int, total: int) -> None:
        """Show how far an evaluation is, and print a line if none was printed for a while."""
        self._live.show(replace(self._live.now, done=done, total=total))
        if time.monotonic() - self._last_line >= _QUIET_SECONDS:
            self.note(f"has written {done:,} of {total:,} answers")

    def add_row(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep a row until the next commit. A value that is not finite is left out, and raises an alarm."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        row = Row(step=step, time=time.time(), metrics=finite)
        self.rows.append(row)
        if ranks.rank() == 0:
            self.reporter.observe(row)
        if len(finite) < len(metrics):
            self._raise_alarms(step, self._alarms.not_finite(sorted(metrics.keys() - finite.keys())))

    def commit(self, step: int, checkpoint: Path | None = None, *, is_final: bool = False) -> None:
        """Hand the rows since the last commit to the reporter.

        Args:
            step: the step of the weights.
            checkpoint: folder with the weights, committed with the rows; this writes its training state. Without one,
                the rows are dropped if the run is resumed from an earlier checkpoint.
            is_final: whether a resumed run keeps the rows all the same.
        """
        if checkpoint is not None and ranks.rank() == 0:
            write_json(CheckpointFolder(checkpoint).training_state, asdict(self._training_state()))
        self.reporter.commit(self.rows, step=step, checkpoint=checkpoint, is_final=is_final)
        self.rows = []

    def _training_state(self) -> TrainingState:
        # Training time stands still during a pause, so while one goes on, time is counted up to its start.
        now = time.monotonic() if self._pause_started is None else self._pause_started
        return TrainingState(
            train_seconds=self.train_seconds,
            seconds_since_log=now - self._last_log - self._paused_seconds,
            train_means={name: mean for name, mean in self._train_means.items() if math.isfinite(mean)},
            gradients=self._gradients,
            alarms=self._alarms.state,
        )

    def resume(self, checkpoint: Path) -> None:
        """Continue with a checkpoint's training time, means and alarms."""
        text = CheckpointFolder(checkpoint).training_state.read_text(encoding="utf-8")
        state = TrainingState(**json.loads(text))
        self.train_seconds = state.train_seconds
        self._paused_seconds = -state.seconds_since_log  # the next row covers that time too
        self._train_means = state.train_means
        self._gradients = state.gradients
        self._alarms.resume(state.alarms)

    @contextlib.contextmanager
    def pause(self) -> Generator[None]:
        """Keep what happens inside the block out of the training time."""
        started = time.monotonic()
        self._pause_started = started
        try:
            yield
        finally:
            self._paused_seconds += time.monotonic() - started
            self._pause_started = None

    def note(self, line: str, *, kind: EventKind | None = None) -> None:
        """Print a line for a person; with a ``kind`` it is an event too, which every watching command shows."""
        self._last_line = time.monotonic()
        if ranks.rank() == 0:
            self._print_line(f"{self.name}  {line}")
        if kind is not None:
            self._live.tell(RunEvent(kind, time.time(), line))

    def _raise_alarms(self, step: int, sentences: Sequence[str]) -> None:
        for sentence in sentences:
            self.note(f"ALARM at step {step}: {sentence}", kind="alarm")


def _units(log: StepLog) -> dict[str, float]:
    return {unit: log.sums[f"num_{unit}"] for unit in UNITS}


def _gradients_at_hidden(log: StepLog) -> dict[str, float]:
    """Return the norm of each term's gradient at the head, summed over the microbatches of the logging step."""
    return {
        name.removeprefix(HIDDEN_GRADIENT): norm for name, norm in log.sums.items() if name.startswith(HIDDEN_GRADIENT)
    }


def _peak_memory_bytes() -> int:
    """Return the most memory that was in use: by tensors on this GPU, or by this process if there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB


def progress_line(
    log: StepLog, *, metrics: Mapping[str, float], max_steps: int, seconds_left: float, ap: float | None = None
) -> str:
    """Return e.g. ``step 120/400  loss 2.31 (text 0.80, coord ce 1.51, box 0.61)  AP 0.412  93 img/s  1:20 left``."""
    labels = {"train_text_loss": "text", "train_coord_ce_loss": "coord ce", "train_coord_loss": "box"}
    labels |= {f"train_{name}": loss_head(name) for name in loss_names(metrics) if name not in LOSS_NAMES}
    losses = ", ".join(f"{label} {metrics[name]:.3f}" for name, label in labels.items() if name in metrics)
    last_ap_text = "" if ap is None else f"AP {ap:.3f}  "
    return (
        f"step {log.step}/{max_steps}  loss {metrics['train_total_loss']:.3f} ({losses})  {last_ap_text}"
        f"{log.per_second('num_images'):.0f} img/s  {clock_time(seconds_left)} left"
    )


def means_to_metrics(
    means: Mapping[str, float], *, split: Split, config: RunConfig, criterion: Criterion
) -> dict[str, float]:
    """Turn means of terms and diagnostics into metrics, e.g. ``train_text_loss`` and ``coord_diag/w1``.

    Added are the total and two sums: ``*_coord_loss`` is alpha L1 + beta (1 - GIoU) for every group, whatever its
    weight there, and ``coord_diag/loss`` is the weighted sum of the distribution terms. A sum is absent if one of its
    terms had nothing to count. To the total such a term adds 0.

    Args:
        means: mean values since the last logging step, by the name of a term or diagnostic.
        split: prefix of the metrics.
        config: has the weights.
        criterion: has the metric name of each term.
    """
    objective = config.objective
    distribution = config.custom.coord_soft_ce_w1
    weights_of_sums = {
        "coord_loss": {"box_l1": objective.alpha_l1, "box_giou": objective.beta_giou},
        "coord_diag/loss": {
            "soft_ce": distribution.soft_ce_weight,
            "w1": distribution.w1_weight,
            "gate": distribution.gate_weight,
        },
    }
    by_place = [f"{measure}/{place}" for measure, place in product(PLACE_MEASURES, PLACES)]
    metric_names = {weighted.term.name: weighted.term.metric_name() for weighted in criterion.terms}
    metric_names |= {name: f"coord_diag/{name}" for name in (*NAMES, P90_NAME, *by_place)}
    values = {metric: means[name] for name, metric in metric_names.items() if name in means}
    for metric, weights in weights_of_sums.items():
        if all(name in means for name in weights):
            values[metric] = sum(weight * means[name] for name, weight in weights.items())
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
