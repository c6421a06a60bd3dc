"""Search the weights of one group, on this machine or on a Ray cluster.

    python ray_jobs/sweep.py --config experiments/sweeps/lambda_coord.yaml
    python ray_jobs/sweep.py --config experiments/sweeps/alpha_beta.yaml --dry-run sweep.search.num_trials=8
    ray job submit --working-dir . -- python ray_jobs/sweep.py --config experiments/sweeps/sigma_w1.yaml

KEY=VALUE goes to the experiment, sweep.KEY=VALUE to the sweep. The same command again goes on where the last one
stopped.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a submitted working directory is not installed

from rich.console import Console  # noqa: E402

from coordexp.cli.main import add_config_arguments, launch  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, load, run; return the exit code."""
    return launch(_parser(), argv, _run)


def _run(options: argparse.Namespace, console: Console) -> int:
    from coordexp.runs.interrupts import is_temporary
    from coordexp.sweep.load import load_sweep

    overrides = list(options.overrides)
    if options.executor:
        overrides.append(f"cluster.executor={options.executor}")
    sweep = load_sweep(options.config, overrides)
    if is_temporary(sweep.config.experiment.runs_dir):
        runs_dir = Path.home() / "coordexp-runs"
        console.print(f"runs go to {runs_dir}: the submitted working directory is temporary", highlight=False)
        sweep = load_sweep(options.config, [*overrides, f"experiment.runs_dir={runs_dir}"])
    if options.dry_run:
        from coordexp.sweep.describe import describe_sweep

        describe_sweep(sweep, console)
        return 0
    from coordexp.cli.sweep import run_and_report

    return run_and_report(sweep, fresh=options.fresh, console=console, debug=options.debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config_arguments(parser)
    parser.set_defaults(config=ROOT / "experiments" / "sweeps" / "lambda_coord.yaml")
    parser.add_argument("--fresh", action="store_true", help="start over; the old sweep is moved aside")
    parser.add_argument("--executor", choices=("tune", "inline"), help="tune: on Ray; inline: here, one by one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
