"""Errors that travel like samples, and the sentence of a dead process."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from coordexp.config.schema import ExperimentConfig
from coordexp.errors import DataError
from coordexp.train.forward import count_units
from coordexp.train.loop.measures import RunningAverages
from coordexp.train.schedule import Schedule
from coordexp.train.setup.arguments import training_arguments
from coordexp.train.setup.loader import (
    ErrorsAsItems,
    LoaderDiedError,
    collate_or_error,
    explained_loader_death,
    give_own_seed,
)
from coordexp.train.trainer import CoordTrainer
from tests.support.batches import CUT, ONE, TWO, padded


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
    carried = ErrorsAsItems(_Samples())
    assert len(carried) == 4
    assert collate_or_error(sum, [carried[0], carried[1]]) == 1
    error = collate_or_error(sum, [carried[0], carried[2], carried[1]])
    assert isinstance(error, DataError)
    assert str(error) == "c.jpg: image not found\nand a second line"


def test_the_wait_of_all_ranks_is_their_mean(monkeypatch):
    """Four ranks wait two seconds each; the averages add the ranks up."""
    clock = iter([10.0, 12.0])
    monkeypatch.setattr("coordexp.train.trainer.time.monotonic", lambda: next(clock))
    started_clocks = []
    trainer = SimpleNamespace(
        averages=RunningAverages(), args=SimpleNamespace(world_size=4), _last_log=None, _mean_units_U=None,
        _run_log=SimpleNamespace(start_clock=lambda: started_clocks.append("training time")),
        is_deepspeed_enabled=False,
    )  # fmt: skip
    batches = [padded([ONE]), padded([TWO]), padded([CUT])]
    taken, counts = CoordTrainer.get_batch_samples(trainer, iter(batches), 2, torch.device("cpu"))
    assert taken == batches[:2]
    assert counts.tolist() == count_units(batches[:2]).tolist()
    assert 4 * trainer.averages.read()[1]["data_wait_seconds"] == 2.0
    assert started_clocks == ["training time"]
    assert trainer._last_log == 10.0


@pytest.mark.parametrize(("done", "expected"), [(None, 0), (0.0, 0), (0.99, 0), (1.0, 1), (2.5, 2)])
def test_data_set_and_sampler_learn_of_each_epoch(done, expected):
    """Also in the middle of one, where a run resumes; both would be equally stale in a comparison of two runs."""
    epochs = []
    recorder = SimpleNamespace(set_epoch=epochs.append)
    schedule = Schedule(None, SimpleNamespace(samples=recorder, sampler=recorder), log=None, evaluator=None)
    schedule.on_epoch_begin(None, SimpleNamespace(epoch=done), None)
    assert epochs == [expected, expected]


def test_loader_processes_live_on_and_are_forked(tmp_path):
    """Forked in whatever way this process began, and kept over epochs, with the images that they decoded."""
    config = ExperimentConfig.model_validate({"data": {"num_workers": 3}})
    with_workers = training_arguments(config, output_dir=tmp_path)
    assert with_workers.dataloader_num_workers == 3
    assert with_workers.dataloader_multiprocessing_context == "fork"
    assert with_workers.dataloader_persistent_workers
    assert with_workers.dataloader_prefetch_factor == 4
    without = training_arguments(ExperimentConfig(), output_dir=tmp_path)
    assert without.dataloader_num_workers == 0
    assert without.dataloader_multiprocessing_context is None
    assert not without.dataloader_persistent_workers


def test_a_loader_draws_nothing_from_the_global_generator():
    loader = DataLoader([1, 2, 3])
    before = torch.get_rng_state()
    list(loader)
    assert not torch.equal(torch.get_rng_state(), before)
    give_own_seed(loader, 0)
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dead_loader_process_is_named_and_other_errors_pass():
    with pytest.raises(RuntimeError, match="^CUDA error$") as caught, explained_loader_death():
        raise RuntimeError("CUDA error")
    assert type(caught.value) is RuntimeError
    with pytest.raises(LoaderDiedError, match=r"pid 7.*Bus error.*data\.num_workers") as died, explained_loader_death():
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible\nthat ...")
    assert "It is possible" not in str(died.value)
