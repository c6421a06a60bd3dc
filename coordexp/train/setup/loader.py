"""What a data loader's processes must not do to a run: garble an error, die without a word, or draw random numbers."""

import contextlib
from collections.abc import Callable, Generator, Sequence

import torch
from torch.utils.data import DataLoader, Dataset

from coordexp.data.batch import Batch, EncodedSample
from coordexp.errors import CoordExpError

ItemOrError = EncodedSample | CoordExpError


class LoaderDiedError(RuntimeError):
    """A loader process was killed. The input is not at fault: the run may be started again."""


class ErrorsAsItems(Dataset[ItemOrError]):
    """A data set whose errors are items.

    Torch would turn an error that a loader process raises into another one, whose message is a traceback. An item
    arrives as it is, and the trainer raises it.
    """

    def __init__(self, samples: Dataset[EncodedSample]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)  # pyright: ignore[reportArgumentType]  # Dataset declares no length

    def __getitem__(self, index: int) -> ItemOrError:
        try:
            return self._samples[index]
        except CoordExpError as error:
            return error


def collate_or_error(
    collate: Callable[[Sequence[EncodedSample]], Batch], items: Sequence[ItemOrError]
) -> Batch | CoordExpError:
    """Batch samples with ``collate``; if there is an error among them, return the error in place of a batch."""
    samples: list[EncodedSample] = []
    for item in items:
        if isinstance(item, CoordExpError):
            return item
        samples.append(item)
    return collate(samples)


def give_own_seed(loader: DataLoader[object], seed: int) -> None:
    """Give a loader its own random numbers.

    A loader draws a number each time it starts its processes. If that came from the global generator, from which
    dropout draws, losses would depend on the number of processes, and on whether the run was resumed.
    """
    loader.generator = torch.Generator().manual_seed(seed)


@contextlib.contextmanager
def explained_loader_death() -> Generator[None]:
    """Turn torch's report of a dead loader process into one sentence.

    Raises:
        LoaderDiedError: if a loader process died inside the block. Other errors pass.
    """
    try:
        yield
    except RuntimeError as error:
        first_line = str(error).strip().split("\n")[0]
        first_sentence = first_line.split(". ")[0].rstrip(".")
        if not first_sentence.startswith("DataLoader worker (pid"):
            raise
        raise LoaderDiedError(
            f"a data-loader process died ({first_sentence}); most likely memory or shared memory (/dev/shm) ran "
            "out: lower data.num_workers or data.image_cache_mib; a restart continues from the last checkpoint"
        ) from error
