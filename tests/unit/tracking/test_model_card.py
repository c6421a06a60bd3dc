"""The card of a merged checkpoint: its AP with an interval, its loss, and the configuration that makes it again."""

from pathlib import Path

import pytest

from coordexp.config import load_config
from coordexp.config.keys import identity
from coordexp.config.schema import ExperimentConfig
from coordexp.data.sources.shapes import Shapes, write_shapes
from coordexp.metrics import headline
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.tracking.model_card import write_model_card


@pytest.fixture
def run(tmp_path: Path) -> ExperimentConfig:
    keys = ["data.shapes.num_train=1", "data.shapes.num_val=6", f"experiment.runs_dir={tmp_path}"]
    server = "tracking.uri=http://host:5000"
    config = load_config(Path("experiments/tiny.yaml"), [*keys, server]).run("C", 3)
    write_shapes(ExperimentFolder.of(config).data, Shapes(num_train=1, num_val=6))
    RunFolder.of(config).merged.mkdir(parents=True)
    return config


def card_of(config: ExperimentConfig, value: float | None) -> str:
    write_model_card(config, metrics={} if value is None else {headline(config.reading): value})
    return (RunFolder.of(config).merged / "README.md").read_text(encoding="utf-8")


def test_it_says_how_good_the_checkpoint_is(run: ExperimentConfig) -> None:
    assert "the mean of each distribution: 0.500, one seed, on shapes" in card_of(run, 0.5)
    assert "not defined" in card_of(run, None)


def test_what_it_holds_makes_the_run_again(run: ExperimentConfig, tmp_path: Path) -> None:
    card = card_of(run, 0.5)
    kept = tmp_path / "run.yaml"
    kept.write_text(card.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    assert identity(load_config(kept)) == identity(run)
    assert "host:5000" not in card
    assert "run `coordexp train --config run.yaml`" in card
