"""An ablation that tunes its groups, with a stand-in for the trainer core, whose AP is known at every point."""

import io
import math
import tempfile
from pathlib import Path

from rich.console import Console

from coordexp.cli.ablation import run_and_report
from coordexp.config.schema import ExperimentConfig, RunConfig
from coordexp.metrics import BOX_KINDS, headline, subset_headline
from coordexp.runs.folder import RunFolder, step_of
from coordexp.runs.reporter import Row
from coordexp.runs.stop import RunStoppedError, stop_reason
from tests.support.ablation import GEOMETRY

RATES = (1.0e-4, 3.0e-4, 1.0e-3)
BEST_RATE = {"A": 1.0e-3, "C": 3.0e-4}
TRIAL_STEPS, STEPS = 2, 4


def make_config(base: Path, runs_dir: Path, name: str, **sections: dict[str, object]) -> ExperimentConfig:
    """Return an experiment of A and C, which both search three rates, one of them their own."""
    tune = {
        "space": {"training.learning_rate": list(RATES)},
        "max_steps": TRIAL_STEPS,
        "tuning_split": {"num_images": 4},
    }
    given: dict[str, dict[str, object]] = {
        "experiment": {"name": name, "runs_dir": str(runs_dir)},
        "model": {"path": str(base)},
        "data": {"shapes": {"num_train": 16, "num_val": 3}},
        "training": {"max_steps": STEPS},
        "cluster": {"executor": "inline"},
        "ablation": {"groups": {"A": {}, "C": GEOMETRY}, "tune": tune},
        **sections,
    }
    return ExperimentConfig.model_validate(given)


def true_ap(config: RunConfig) -> float:
    """AP after every step: best at the group's own best rate, with a little of the seed in it."""
    group = config.experiment.group.partition(".t")[0]
    decades = abs(math.log10(config.training.learning_rate / BEST_RATE[group]))
    return round(0.5 - 0.1 * decades + 0.001 * config.experiment.seed / 1000, 6)


class StandIn:
    """Steps with a row and a checkpoint each. Resumes as a trainer does, and remembers what it did."""

    def __init__(self, *, stop_at: tuple[str, int] | None = None, broken: tuple[str, ...] = ()) -> None:
        """Be interrupted before a step of a run, or fail in runs of these names."""
        self.stop_at = stop_at
        self.broken = broken
        self.done: list[str] = []

    def __call__(self, config, *, reporter, print_line):
        newest, folder = reporter.newest, RunFolder.of(config)
        name, steps, ap = folder.name, config.training.max_steps, true_ap(config)
        self.done.append(name)
        for step in range((step_of(newest) if newest else 0) + 1, steps + 1):
            reason = stop_reason(folder.path)
            if reason is not None:
                raise RunStoppedError(reason)
            if self.stop_at == (name, step):
                raise KeyboardInterrupt
            if name in self.broken:
                raise ValueError("shapes do not match")
            self.wait(step)
            scratch = Path(tempfile.mkdtemp(dir=folder.path)) / "checkpoint"
            scratch.mkdir()
            (scratch / "weights").write_text(str(step))
            metrics = {"train_total_loss": 1.0 / step}
            if step < steps:
                metrics[subset_headline(config.reading)] = ap * (0.5 + 0.5 * step / steps)
            reporter.commit([Row(step=step, time=float(step), metrics=metrics)], step=step, checkpoint=scratch)
        final = folder.evaluation("final").path / "constrained"
        final.mkdir(parents=True, exist_ok=True)
        last = {"final/steps": float(steps), subset_headline(config.reading): ap, headline(config.reading): ap}
        for kind in BOX_KINDS:
            (final / f"detections.{kind}.json").write_text("[]")
            last[f"constrained/{kind}/AP"] = ap
        reporter.commit([Row(step=steps, time=9.0, metrics=last)], step=steps, checkpoint=None)

    def wait(self, step: int) -> None:
        """Take no time; on Ray a stand-in takes some."""


def run(config: ExperimentConfig, function: StandIn, *, fresh: bool = False) -> tuple[int, str]:
    text = io.StringIO()
    console = Console(file=text, width=160)
    code = run_and_report(config, fresh=fresh, console=console, function=function, everything=True)
    return code, text.getvalue()
