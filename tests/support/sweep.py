"""A sweep with a stand-in for the trainer core, whose AP is a known function of the searched weight."""

import io
import math
import shutil
import tempfile
from pathlib import Path

from rich.console import Console

from coordexp.cli.sweep import run_and_report
from coordexp.metrics import headline, subset_headline
from coordexp.runs.folder import RunFolder, step_of
from coordexp.runs.reporter import Row
from coordexp.runs.stop import RunStoppedError, stop_reason
from coordexp.sweep.load import Sweep, load_sweep
from coordexp.tracking import open_tracker
from tests.support.training import write_base

BEST = 2.0
STEPS = 4


def make_places(root: Path) -> Path:
    """Make a base model, and beside it a migrated database: a new one costs seconds."""
    open_tracker(f"sqlite:///{root}/mlflow.db", experiment="template", artifact_root=root / "artifacts")
    return write_base(root / "base")


def write_files(root: Path, base: Path, *, space: str, search: str = "", asha: str = "", steps: int = STEPS) -> Path:
    """Write an experiment and a sweep of it; return the sweep's path."""
    (root / "runs").mkdir()
    shutil.copy(base.parent / "mlflow.db", root / "runs" / "mlflow.db")
    (root / "experiment.yaml").write_text(
        f"experiment: {{name: exp, runs_dir: {root}/runs}}\n"
        f"model: {{path: {base}}}\n"
        "data: {shapes: {num_train: 24, num_val: 4}}\n"
        f"training: {{max_steps: {steps}}}\n"
        "evaluation: {every_steps: 1, subset_images: 4}\n"
        "ablation:\n"
        "  groups:\n"
        "    C: {objective: {use_coordexp_loss: true, use_geom_loss: true}}\n"
    )
    path = root / "sweep.yaml"
    path.write_text(
        f"name: find\nexperiment: experiment.yaml\ngroup: C\nspace: {space}\n{search}\n{asha}\n"
        "winners: {num: 2, seeds: [1, 2]}\ntuning_split: {num_images: 6}\n"
    )
    return path


def true_ap(weight: float, seed: int = 0) -> float:
    """AP after every step: best at ``BEST``, steeper above it, with a little of the seed in it."""
    decades = math.log10(weight / BEST)
    return 0.5 - max(-0.1 * decades, 0.15 * decades) + 0.001 * seed


class StandIn:
    """Steps with a row, an AP and a checkpoint each; the AP grows to its end value. Resumes as a trainer does."""

    def __init__(self, *, stop_at: tuple[str, int] | None = None, broken: str = "") -> None:
        self.stop_at = stop_at
        self.broken = broken

    def __call__(self, config, *, reporter, print_line):
        newest = reporter.newest
        done = step_of(newest) if newest else 0
        directory = RunFolder.of(config).path
        with (directory / "attempts").open("a") as handle:
            handle.write(f"{done}\n")
        ap = true_ap(config.objective.lambda_coord, config.experiment.seed)
        steps = config.training.max_steps
        for step in range(done + 1, steps + 1):
            reason = stop_reason(directory)
            if reason is not None:
                raise RunStoppedError(reason)
            if self.stop_at == (directory.name, step):
                raise KeyboardInterrupt
            if self.broken == directory.name and step == 2:
                raise ValueError("shapes do not match")
            self.wait(step)
            scratch = Path(tempfile.mkdtemp(dir=directory)) / "checkpoint"
            scratch.mkdir()
            (scratch / "weights").write_text(str(step))
            metrics = {"train_total_loss": 1.0 / step}
            if step < steps:
                metrics[subset_headline(config.reading)] = ap * (0.5 + 0.5 * step / steps)
            reporter.commit([Row(step=step, time=float(step), metrics=metrics)], step=step, checkpoint=scratch)
        (directory / "merged").mkdir(exist_ok=True)
        last = {headline(config.reading): ap, subset_headline(config.reading): ap, "final/steps": float(steps)}
        reporter.commit([Row(step=steps, time=9.0, metrics=last)], step=steps, checkpoint=None)

    def wait(self, step: int) -> None:
        """Take no time; on Ray a stand-in takes some."""


def run(path: Path, function: StandIn, *overrides: str, fresh: bool = False) -> tuple[int, str, Sweep]:
    """Load and run a sweep; return exit code, what was printed, and the sweep."""
    sweep = load_sweep(path, overrides)
    text = io.StringIO()
    code = run_and_report(sweep, fresh=fresh, console=Console(file=text, width=160), function=function)
    return code, text.getvalue(), sweep
