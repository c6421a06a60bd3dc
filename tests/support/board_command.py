"""A command with a stand-in for the trainer, for tests that look at its terminal: BASE RUNS_DIR WHAT [--plain].

WHAT is what group C does after its first evaluation: it ends, fails, stops at a breakpoint, or waits to be stopped.
"""

import sys
import time
from pathlib import Path

from coordexp.cli.ablation import run_and_report
from coordexp.cli.console import runs_console
from coordexp.errors import TrainingError
from coordexp.metrics import BOX_KINDS
from coordexp.runs.folder import RunFolder
from coordexp.runs.live import Live, LiveWriter, RunEvent
from coordexp.runs.reporter import Row
from coordexp.runs.stop import RunStoppedError, agreed_stop_reason
from tests.support.ablation import make_config

_LOOK_SECONDS = 0.05
_BOARD_SECONDS = 1.2  # longer than it takes until the board has read a record


class Run:
    """Writes what a run writes, slowly enough to be seen."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, config, *, reporter, print_line):
        folder = RunFolder.of(config)
        writer = LiveWriter(folder, writes=True, peak_memory_bytes=lambda: 2**30)
        writer.tell(RunEvent("start", time.time(), step=0, lines=("starts: one process", f"of {folder.name}")))
        for step, ap in ((1, 0.25), (2, 0.5)):
            print_line(f"{folder.name}  step {step}/2  loss {3 - step}.000")
            writer.show(Live("trains", step, num_steps=2, loss=3.0 - step, images_per_second=9.0, seconds_left=1.0))
            before = 0.25 if step == 2 else None
            text = f"step {step}  AP {ap:.3f} expected"
            writer.tell(RunEvent("evaluation", time.time(), text, step=step, ap=ap, ap_before=before))
            time.sleep(_BOARD_SECONDS)
            writer.show(Live("evaluates", step, num_steps=2, done=1, total=3))
            if step == 1 and config.experiment.group == "C":
                self.act(folder)
        metrics = {f"constrained/{kind}/AP": 0.5 for kind in BOX_KINDS} | {"final/steps": 2.0}
        for kind in BOX_KINDS:
            detections = folder.evaluation("final").decoding("constrained").detections(kind)
            detections.parent.mkdir(parents=True, exist_ok=True)
            detections.write_text("[]")
        reporter.commit([Row(step=2, time=1.0, metrics=metrics)], step=2, checkpoint=None)

    def act(self, folder: RunFolder) -> None:
        """Do in the middle of the run what the test asked for."""
        if self.what == "fail":
            raise TrainingError("the loss is nan")
        if self.what == "breakpoint":
            breakpoint()
        while self.what == "wait":
            reason = agreed_stop_reason(folder.path)
            if reason is not None:
                raise RunStoppedError(reason)
            time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    base, runs_dir, what, *options = sys.argv[1:]
    config = make_config(Path(base), Path(runs_dir), "tiny")
    console = runs_console(is_plain="--plain" in options)
    sys.exit(run_and_report(config, console=console, function=Run(what)))
