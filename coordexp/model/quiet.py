"""Keep transformers from drawing a bar and PEFT from repeating a deprecation, for one block."""

import contextlib
import warnings
from collections.abc import Generator

from transformers.utils import logging


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Load or wrap a model without third-party noise; errors and our own messages pass."""
    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # PEFT 0.21 asks transformers 5.23 by the name that transformers 6 will drop.
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
            yield
    finally:
        if drawn:
            logging.enable_progress_bar()
