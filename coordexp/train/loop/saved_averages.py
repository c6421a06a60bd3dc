"""What a run has added up since its last logging step, kept with a checkpoint that comes in between."""

from pathlib import Path

from safetensors.torch import load_file, save_file

from coordexp.runs import ranks
from coordexp.train.loop.averages import Meter

_PREFIX = "window_"
_SUFFIX = ".safetensors"


def save_window(meter: Meter, checkpoint: Path) -> None:
    """Write this rank's sums into a checkpoint directory; nothing where the checkpoint is at a logging step."""
    state = meter.state()
    if state:
        save_file(state, checkpoint / f"{_PREFIX}{ranks.rank():05d}{_SUFFIX}")


def resume_window(meter: Meter, checkpoint: Path) -> None:
    """Go on from the sums of a checkpoint, so that the next row covers its whole window.

    With as many ranks as before, each takes its own; with fewer or more, all parts are still taken once.
    """
    parts = sorted(checkpoint.glob(f"{_PREFIX}*{_SUFFIX}"))
    for part in parts:
        rank = int(part.name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        if rank % ranks.world_size() == ranks.rank():
            meter.resume(load_file(part))
