"""What a run has added up since its last logging step, kept with a checkpoint that comes in between."""

from pathlib import Path

from safetensors.torch import load_file, save_file

from coordexp.runs import ranks
from coordexp.runs.folder import CheckpointFolder
from coordexp.train.loop.averages import Meter


def save_window(meter: Meter, checkpoint: Path) -> None:
    """Write this rank's sums into a checkpoint directory; nothing where the checkpoint is at a logging step."""
    state = meter.state()
    if state:
        save_file(state, CheckpointFolder(checkpoint).averages(ranks.rank()))


def resume_window(meter: Meter, checkpoint: Path) -> None:
    """Go on from the sums of a checkpoint, so that the next row covers its whole window.

    With as many ranks as before, each takes its own; with fewer or more, all parts are still taken once.
    """
    for rank, part in CheckpointFolder(checkpoint).all_averages().items():
        if rank % ranks.world_size() == ranks.rank():
            meter.resume(load_file(part))
