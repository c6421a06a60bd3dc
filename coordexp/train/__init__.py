"""The trainer core: one run, from a resolved config to a merged checkpoint. Knows nothing of Ray."""

from collections.abc import Callable

from coordexp.config.schema import RunConfig
from coordexp.runs.reporter import LocalReporter
from coordexp.runs.status import Ended


def train(
    config: RunConfig, *, reporter: LocalReporter, print_line: Callable[[str], None], merges: bool = True
) -> Ended:
    """Do one run in this process; see :func:`coordexp.train.run.train_run`."""
    # Imported here: torch and transformers take seconds, and the command that starts runs needs neither.
    from coordexp.train.run import train_run

    return train_run(config, reporter=reporter, print_line=print_line, merges=merges)
