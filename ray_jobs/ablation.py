"""Run an ablation: every group with every seed, on this machine or on a Ray cluster.

    python ray_jobs/ablation.py
    python ray_jobs/ablation.py --config experiments/coco_qwen3vl_4b.yaml --dry-run
    ray job submit --working-dir . -- python ray_jobs/ablation.py training.max_steps=100

The same command again goes on where the last one stopped.
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
    from coordexp.config import load_config
    from coordexp.runs.interrupts import is_temporary

    overrides = list(options.overrides)
    if options.executor:
        overrides.append(f"cluster.executor={options.executor}")
    if options.allow_differences:
        overrides.append("ablation.allow_differences=true")
    config = load_config(options.config, overrides)
    if is_temporary(config.experiment.runs_dir):
        runs_dir = Path.home() / "coordexp-runs"
        console.print(f"runs go to {runs_dir}: the submitted working directory is temporary", highlight=False)
        config = load_config(options.config, [*overrides, f"experiment.runs_dir={runs_dir}"])
    if options.dry_run:
        from coordexp.ablation.describe import describe

        describe(config, console)
        return 0
    from coordexp.cli.ablation import run_and_report

    return run_and_report(config, fresh=options.fresh, console=console, debug=options.debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_config_arguments(parser)
    parser.set_defaults(config=ROOT / "experiments" / "tiny.yaml")
    parser.add_argument("--fresh", action="store_true", help="start over; the old experiment is moved aside")
    parser.add_argument("--executor", choices=("tune", "inline"), help="tune: on Ray; inline: here, one by one")
    parser.add_argument(
        "--allow-differences",
        action="store_true",
        help="compare runs that differ in more than ablation.factor, and show the differences in the report's header",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
