"""Random states of a checkpoint that was made by another number of workers."""

import random
from pathlib import Path

import numpy as np
import torch
from transformers.trainer_pt_utils import safe_globals

from coordexp.errors import CheckpointError


def restore_generators(checkpoint: Path) -> None:
    """Set this process's generators to what rank 0, or the only process, had when the checkpoint was made.

    Raises:
        CheckpointError: if the checkpoint holds no random state.
    """
    names = ("rng_state_0.pth", "rng_state.pth")
    file = next((checkpoint / name for name in names if (checkpoint / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{checkpoint}: no random state; expected {names[0]} or {names[1]}")
    with safe_globals():
        states = torch.load(file, weights_only=True)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    cuda = states.get("cuda")  # of every device a rank saw, or of the only one
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.random.set_rng_state(cuda[0] if isinstance(cuda, list) else cuda)
