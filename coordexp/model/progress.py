"""Progress of long work, and a way to silence the bars and warnings of other libraries."""

import contextlib
import warnings
from collections.abc import Callable, Generator

from transformers.utils import logging

# Called with the name of a stage, how much of it is done and how much there is.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Ignore progress."""


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Load or wrap a model without third-party bars and deprecations; errors and our own messages pass."""
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
