"""The batches of every rank, through the library code that the Trainer uses."""

from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader


class Indices:
    """A data set whose items are their own indices, fillers included."""

    def __init__(self, num):
        self._num = num

    def __len__(self):
        return self._num

    def __getitem__(self, index):
        return index


def batches_of_ranks(sampler, *, num, num_ranks, size):
    """Return for each rank the index lists it gets in an epoch: accelerate's own sharding, as HF's Trainer calls it."""
    loader = DataLoader(Indices(num), batch_size=size, sampler=sampler, collate_fn=list)
    return [list(prepare_data_loader(loader, num_processes=num_ranks, process_index=rank)) for rank in range(num_ranks)]
