"""Section ``experiment``: which experiment a run belongs to, and which of its runs it is."""

from pathlib import Path

from coordexp.config.schema.fields import Name, Section, Seed, key


class Experiment(Section):
    """Which experiment a run belongs to, and which of its runs it is."""

    name: Name = key("experiment", "name")
    """Name of the experiment; a name is bound to one configuration, another one is refused."""
    runs_dir: Path = key(Path("runs"), "machine")
    """Folder of all experiments, relative to where the command starts; on a cluster one that all nodes see."""
    group: Name = key("A", "name")
    """Name of the one group where ablation.groups is empty; set in each run."""
    seed: Seed = key(0, "results", decides=["weights", "tokens"])
    """Seed of weights, order of samples and dropout; an ablation sets it to each of ablation.seeds."""
