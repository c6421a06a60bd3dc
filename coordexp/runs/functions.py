"""What an executor executes."""

from collections.abc import Callable
from typing import Protocol

from coordexp.config.schema import ExperimentConfig
from coordexp.runs.reporter import Reporter


class TrainFunction(Protocol):
    """One run from its configuration to its last row."""

    def __call__(self, config: ExperimentConfig, *, reporter: Reporter, announce: Callable[[str], None]) -> None:
        """Train, evaluate and commit."""
        ...


def train(config: ExperimentConfig, *, reporter: Reporter, announce: Callable[[str], None]) -> None:
    """Run the trainer core; transformers is imported here, in the process that needs it."""
    from coordexp.train.run import train_run

    train_run(config, reporter=reporter, announce=announce)
