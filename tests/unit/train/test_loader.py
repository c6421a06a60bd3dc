"""Errors that travel like samples, the line about waiting, and the sentence of a dead process."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from coordexp.config.schema import ExperimentConfig
from coordexp.data.sampler import LengthBucketSampler
from coordexp.errors import CoordExpError, DataError
from coordexp.train.loader import (
    CarriesErrors,
    CollateCarried,
    LoaderDiedError,
    WaitNotice,
    loader_lines,
    named_death,
    seed_apart,
)


class _Samples:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise DataError("c.jpg: image not found\nand a second line")
        if index == 3:
            raise KeyError(index)
        return index


def test_an_error_is_the_batch_of_its_sample():
    carried = CarriesErrors(_Samples())
    assert len(carried) == 4
    collate = CollateCarried(sum)
    assert collate([carried[0], carried[1]]) == 1
    error = collate([carried[0], carried[2], carried[1]])
    assert isinstance(error, DataError)
    assert str(error) == "c.jpg: image not found\nand a second line"


@pytest.mark.parametrize("workers", [0, 1])
def test_it_keeps_its_words_through_a_process(workers):
    loader = DataLoader(
        CarriesErrors(_Samples()), batch_size=3, num_workers=workers, collate_fn=CollateCarried(sum),
        multiprocessing_context="fork" if workers else None,
    )  # fmt: skip
    first = next(iter(loader))
    assert isinstance(first, CoordExpError)
    assert str(first) == "c.jpg: image not found\nand a second line"


def test_what_is_no_input_error_is_raised_where_it_happens():
    with pytest.raises(KeyError):
        CarriesErrors(_Samples())[3]


def test_waiting_is_told_once_and_not_at_the_start():
    notice = WaitNotice(3)
    assert notice.line(0.9) is None
    assert notice.line(0.02) is None
    assert notice.line(0.35) == "waits for data 35% of the time; raise data.num_workers (now 3)"
    assert notice.line(0.35) is None


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match="^CUDA error"), named_death():
        raise RuntimeError("CUDA error")
    expected = r"\(DataLoader worker \(pid 7\) is killed by signal: Bus error\); most"
    with pytest.raises(LoaderDiedError, match=expected), named_death():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible\nthat ...")


def test_a_loader_draws_nothing_from_the_global_generator():
    loader = DataLoader([1, 2, 3])
    before = torch.get_rng_state()
    list(loader)
    assert not torch.equal(torch.get_rng_state(), before)
    seed_apart(loader, 0)
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("num", "num_ranks", "packing", "expected"),
    [
        (8, 1, False, ["batches: 100.0% full; 2 steps of 4 samples an epoch"]),
        (9, 1, True, ["batches: packed to one row, no padding; 3 steps of 4 samples an epoch, the last one of 1"]),
        (
            9,
            2,
            False,
            [
                "batches: 100.0% full; 2 steps of 8 samples an epoch, the last one of 1",
                "batches: 3 fillers complete the last one for 2 workers: images with nothing to learn, not counted; "
                "each sample counts once an epoch",
            ],
        ),
    ],
)
def test_a_run_says_how_an_epoch_ends(num, num_ranks, packing, expected):
    training = {"per_device_batch_size": 2, "gradient_accumulation_steps": 2}
    config = ExperimentConfig.model_validate({"training": training, "data": {"packing": packing}})
    multiple = 2 * num_ranks if num_ranks > 1 else 1
    sampler = LengthBucketSampler([3] * num, batch_size=4 * num_ranks, seed=0, multiple_of=multiple)
    assert loader_lines(config, sampler, num_ranks=num_ranks) == expected
