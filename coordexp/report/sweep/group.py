"""The chosen weights as a group file, and the commands that use it."""

import os
import shlex
from pathlib import Path

import yaml

from coordexp.config import group_names
from coordexp.config.trees import Tree, with_value
from coordexp.data.splits.tuning_split import TuningSplit
from coordexp.sweep.results import Winner
from coordexp.sweep.trials import SweepTrials


def tuned_group(sweep_trials: SweepTrials) -> str:
    """Return the name of the new group."""
    return f"{sweep_trials.sweep.settings.group}_tuned"


def group_file(sweep_trials: SweepTrials, chosen: Winner, split: TuningSplit) -> str:
    """Return the text of ``groups/GROUP_tuned.yaml``: the tuned group with the chosen weights.

    Args:
        sweep_trials: of the sweep.
        chosen: its best winner.
        split: what it was chosen on.
    """
    settings = sweep_trials.sweep.settings
    tree: Tree = dict(sweep_trials.sweep.overlay)
    for key, value in chosen.point.items():
        tree = with_value(tree, key.split("."), value, place=settings.name)
    spread = f" (standard deviation {chosen.spread:.4f})" if chosen.spread is not None else ""
    seeds = f"seeds {', '.join(str(seed) for seed in chosen.aps)}" if chosen.aps else f"seed {sweep_trials.seed}"
    comment = (
        f"# Group {settings.group} with the weights that sweep {settings.name} chose: trial {chosen.name}.\n"
        f"# AP {chosen.mean or 0.0:.4f}{spread} over {seeds}, on {split.num_val} images held out from the "
        f"{split.num_val + split.num_train + split.num_excluded} training images (seed {settings.tuning_split.seed});\n"
        "# the final validation images had no part in it.\n"
    )
    return comment + yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=120)


def next_commands(sweep_trials: SweepTrials) -> list[str]:
    """Return the commands that take the new group into the experiment, beside those it has."""
    sweep = sweep_trials.sweep
    group = tuned_group(sweep_trials)
    source = sweep.config.experiment.runs_dir / sweep.settings.name / f"{group}.yaml"
    target = sweep.settings.experiment.parent / "groups" / f"{group}.yaml"
    groups = ",".join(dict.fromkeys([*group_names(sweep.experiment), group]))
    overrides = [text for text in sweep.overrides if not text.startswith("ablation.groups=")]
    ablation = ["python", "ray_jobs/ablation.py", "--config", _shown(sweep.settings.experiment)]
    return [
        shlex.join(["cp", _shown(source), _shown(target)]),
        shlex.join([*ablation, *overrides, f"ablation.groups=[{groups}]"]),
    ]


def _shown(path: Path) -> str:
    """Return a path as it would be typed here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
