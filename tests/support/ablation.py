"""An ablation with a stand-in for the trainer core: everything around it is real."""

import io
from pathlib import Path

from rich.console import Console

from coordexp.cli.ablation import run_and_report
from coordexp.config.schema import ExperimentConfig
from coordexp.metrics import BOX_KINDS
from coordexp.runs.folder import RunFolder
from coordexp.runs.reporter import Row

GEOMETRY = {"objective": {"use_coordexp_loss": True, "use_geom_loss": True}}


def make_config(base: Path, runs_dir: Path, name: str, **sections: dict[str, object]) -> ExperimentConfig:
    return ExperimentConfig.model_validate(
        {
            "experiment": {"name": name, "runs_dir": str(runs_dir)},
            "model": {"path": str(base)},
            "data": {"shapes": {"num_train": 4, "num_val": 3}},
            "cluster": {"executor": "inline"},
            "ablation": {"groups": {"A": {}, "C": GEOMETRY}},
            **sections,
        }
    )


class StandIn:
    """Commits what a run commits, and remembers which runs it did."""

    def __init__(self, broken: dict[str, BaseException] | None = None) -> None:
        self.done: list[str] = []
        self.broken = broken or {}

    def __call__(self, config, *, reporter, print_line):
        group = config.experiment.group
        self.done.append(group)
        print_line(f"{group}-s0  step 1/1")
        if group in self.broken:
            raise self.broken[group]
        merged = RunFolder.of(config).merged
        merged.mkdir(exist_ok=True)
        (merged / "model.safetensors").write_bytes(b"0" * 1000)
        final = RunFolder.of(config).evaluation("final").path / "constrained"
        final.mkdir(parents=True, exist_ok=True)
        metrics = {"final/steps": 1.0}
        for kind in BOX_KINDS:
            (final / f"detections.{kind}.json").write_text("[]")
            metrics[f"constrained/{kind}/AP"] = 0.25 if group == "A" else 0.5
        reporter.commit([Row(step=1, time=1.0, metrics=metrics)], step=1, checkpoint=None)


def run(config: ExperimentConfig, function: StandIn, *, fresh: bool = False) -> tuple[int, str]:
    text = io.StringIO()
    console = Console(file=text, width=160)
    code = run_and_report(config, fresh=fresh, console=console, function=function, everything=True)
    return code, text.getvalue()
