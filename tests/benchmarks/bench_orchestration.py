"""What orchestration costs: the tiny ablation through Ray against the sum of its runs executed inline.

    python tests/benchmarks/bench_orchestration.py --steps 500      # the whole tiny ablation

Both in one invocation, with the same steps, threads and evaluation; each run executes the same trainer core, whose
reporter is timed. The target is a ratio of at most 1.25 for the whole tiny ablation.
"""

import argparse
import io
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
CONSOLE = Console(highlight=False)


def timed_train(config, *, reporter, print_line):
    """Train as ever, and leave how long it took and how much of that was waiting for commits."""
    import time as clock  # this function travels to Ray's workers by value

    from coordexp.runs.folder import RunFolder
    from coordexp.train import train

    began, waited = clock.time(), []
    commit = reporter.commit

    def timed_commit(rows, *, step, checkpoint):
        started = clock.monotonic()
        commit(rows, step=step, checkpoint=checkpoint)
        waited.append(clock.monotonic() - started)

    reporter.commit = timed_commit
    train(config, reporter=reporter, print_line=print_line)
    found = {"began": began, "ended": clock.time(), "commits": len(waited), "commit_seconds": sum(waited)}
    (RunFolder.of(config).path / "bench.json").write_text(json.dumps(found))


@dataclass(frozen=True)
class Measured:
    """One way of executing the ablation.

    Attributes:
        wall_seconds: of the whole command, from configuration to report.
        runs: by name, what each left.
        began: Unix time of the command.
        slots: runs at once.
        code: of the command.
    """

    wall_seconds: float
    runs: dict[str, dict[str, float]]
    began: float
    slots: int
    code: int

    @property
    def sum_of_runs(self) -> float:
        """Return the seconds of all runs added up."""
        return sum(run["ended"] - run["began"] for run in self.runs.values())


def main() -> int:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="of each run; the tiny ablation has 500")
    parser.add_argument("--config", type=Path, default=ROOT / "experiments" / "tiny.yaml")
    options = parser.parse_args()
    temporary = Path(tempfile.mkdtemp(prefix="cx-bench-", dir="/tmp"))
    os.environ["RAY_TMPDIR"] = str(temporary / "ray")
    os.environ.pop("RAY_ADDRESS", None)
    try:
        inline = measure(options, temporary / "inline", executor="inline")
        through_ray = measure(options, temporary / "tune", executor="tune")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    report(inline, through_ray)
    return max(inline.code, through_ray.code)


def measure(options: argparse.Namespace, runs_dir: Path, *, executor: str) -> Measured:
    """Run the ablation with one executor."""
    from coordexp.cli.ablation import run_and_report
    from coordexp.cluster.capacity import local_slots
    from coordexp.config import load_config
    from coordexp.runs.plan import plan_runs

    (runs_dir.parent / "ray").mkdir(exist_ok=True)
    every = max(1, options.steps // 4)
    config = load_config(
        options.config,
        [
            f"experiment.runs_dir={runs_dir}",
            f"cluster.executor={executor}",
            f"training.max_steps={options.steps}",
            f"training.checkpoint_steps={every}",
            f"evaluation.every_steps={every}",
        ],
    )
    output = io.StringIO()
    began = time.time()
    code = run_and_report(config, console=Console(file=output, width=120), function=timed_train)
    wall = time.time() - began
    if code:
        CONSOLE.print(output.getvalue(), markup=False)
    found = {plan.name: json.loads((plan.run_dir / "bench.json").read_text()) for plan in plan_runs(config)}
    return Measured(wall, found, began, local_slots(config), code)


def report(inline: Measured, through_ray: Measured) -> None:
    """Print both, the ratio, and where time goes that is no run."""
    runs = sorted(through_ray.runs.values(), key=lambda run: run["began"])
    ends = sorted(run["ended"] for run in runs)
    slots = min(through_ray.slots, len(runs))
    gaps = [runs[number]["began"] - ends[number - slots] for number in range(slots, len(runs))]
    first, last = runs[0]["began"] - through_ray.began, through_ray.began + through_ray.wall_seconds - ends[-1]
    CONSOLE.print(
        f"inline: sum of {len(inline.runs)} runs {inline.sum_of_runs:.0f} s, command {inline.wall_seconds:.0f} s"
    )
    CONSOLE.print(f"Ray:    command {through_ray.wall_seconds:.0f} s, {slots} runs at once")
    CONSOLE.print(
        f"ratio of Ray's command to the sum of inline runs: {through_ray.wall_seconds / inline.sum_of_runs:.2f} "
        f"(target at most 1.25); to the inline command: {through_ray.wall_seconds / inline.wall_seconds:.2f}"
    )
    CONSOLE.print(f"before the first run (Ray's start, preparation, its workers): {first:.1f} s")
    between = f"{sum(gaps) / len(gaps):.1f} s on average" if gaps else "none: all at once"
    CONSOLE.print(f"from the end of a run to the begin of the next on its slot: {between}")
    CONSOLE.print(f"after the last run (its workers, tracking, Ray's end, report): {last:.1f} s")
    for name, measured in (("inline", inline), ("Ray", through_ray)):
        commits = sum(run["commits"] for run in measured.runs.values())
        waited = sum(run["commit_seconds"] for run in measured.runs.values())
        CONSOLE.print(f"{name}: {commits:.0f} commits, {waited:.1f} s in all, {waited / commits:.2f} s each")
    CONSOLE.print(
        f"a run takes {through_ray.sum_of_runs / inline.sum_of_runs:.2f} times as long through Ray, "
        f"{slots} sharing the machine"
    )


if __name__ == "__main__":
    sys.exit(main())
