"""An experiment whose workers confirm what they compute with, and train nothing; or one of them as its own process."""

import sys
from collections.abc import Callable
from pathlib import Path

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import ComparisonError
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import TrainingRun, make_trainer, set_up_process
from coordexp.train.setup.comparable import confirm_comparable
from coordexp.train.setup.components import build_components
from tests.support.ablation import GEOMETRY, StandIn, make_config

GROUPS = {"A": {}, "C": GEOMETRY}


class Confirming(StandIn):
    """Does what a run does before its first step, then commits."""

    def __init__(
        self, before: Callable[[], object] = lambda: None, *, broken: dict[str, BaseException] | None = None
    ) -> None:
        super().__init__(broken)
        self.before = before

    def __call__(self, config, *, reporter, print_line):
        self.before()
        confirm(config)
        super().__call__(config, reporter=reporter, print_line=print_line)


def confirm(config: ExperimentConfig) -> None:
    """Set up this process, build what trains, and confirm it."""
    set_up_process(config)
    folder, parts = RunFolder.of(config).path, build_components(config)
    run = TrainingRun.of(config, parts, reporter=LocalReporter(folder), print_line=lambda line: None)
    confirm_comparable(config, parts, make_trainer(run, folder / "scratch").accelerator)


def config_of(base: Path, runs_dir: Path, groups: str, **ablation: object) -> ExperimentConfig:
    """Return the experiment with some of its groups."""
    chosen = {name: GROUPS[name] for name in groups.split(",")}
    return make_config(base, runs_dir, "planted", ablation={"groups": chosen, **ablation})


if __name__ == "__main__":
    one = config_of(Path(sys.argv[1]), Path(sys.argv[2]), "A,C").run("C", 0)
    try:
        confirm(one)
    except ComparisonError as error:
        sys.stdout.write(f"{error}\n")
