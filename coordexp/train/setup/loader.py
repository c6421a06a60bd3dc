"""What a data loader's processes do to a run: errors that keep their sentence, and a death that is named."""

import contextlib
from collections.abc import Callable, Generator, Sequence

import torch
from torch.utils.data import DataLoader, Dataset

from coordexp.data.batch import Batch, EncodedSample
from coordexp.errors import CoordExpError

ItemOrError = EncodedSample | CoordExpError


class LoaderDiedError(RuntimeError):
    """A loader process was killed. No error of the input: the run may be started again."""


class ErrorsAsItems(Dataset[ItemOrError]):
    """A data set whose errors are items: of one that a loader process raises, torch makes a traceback in a message."""

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
    """Batch samples; a batch with an error among its samples is that error."""
    samples: list[EncodedSample] = []
    for item in items:
        if isinstance(item, CoordExpError):
            return item
        samples.append(item)
    return collate(samples)


def give_own_seed(loader: DataLoader[object], seed: int) -> None:
    """Give a loader its own random numbers, of which it draws one each time it starts its processes.

    From the global generator, where dropout draws too, that would make losses depend on their number and on a resume.
    """
    loader.generator = torch.Generator().manual_seed(seed)


@contextlib.contextmanager
def explained_loader_death() -> Generator[None]:
    """Turn torch's report that a loader process died inside into a LoaderDiedError of one sentence."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
        if not text.startswith("DataLoader worker (pid"):
            raise
        raise LoaderDiedError(
            f"a data-loader process died ({text}); most likely memory or shared memory (/dev/shm) ran "
            "out: lower data.num_workers or data.image_cache_mib; a restart continues from the last checkpoint"
        ) from error
