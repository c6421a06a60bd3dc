"""``coordexp`` with a small trainer in place of the real one: a second of work a run, everything around it is real."""

import sys
import time
from collections.abc import Callable

import ray

from coordexp.cli import ablation
from coordexp.cli.main import main
from coordexp.config.schema import ExperimentConfig
from coordexp.runs.reporter import Reporter
from tests.integration.fault_support import small_sgd

STEP_SECONDS = 0.7


def paced(config: ExperimentConfig, *, reporter: Reporter, print_line: Callable[[str], None]) -> None:
    """Train slowly enough to be hit in the middle."""

    def slowly(line: str) -> None:
        print_line(line)
        time.sleep(STEP_SECONDS)

    small_sgd(config, reporter=reporter, print_line=slowly)


def with_paced(config: ExperimentConfig, **more: object) -> int:
    """Run an ablation with it."""
    return _run_and_report(config, function=paced, **more)


_run_and_report = ablation.run_and_report

if __name__ == "__main__":
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ablation.run_and_report = with_paced
    sys.exit(main())
