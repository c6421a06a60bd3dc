"""The loader under the real trainer: exact resume, epochs that reach workers, fillers, errors and deaths."""

import os
import signal
from dataclasses import replace

import psutil
import pytest
from torch import multiprocessing

from coordexp.data import dataset as dataset_module
from coordexp.data.images.pixels import read_image
from coordexp.data.sample import Samples
from coordexp.errors import DataError
from coordexp.runs import ranks
from coordexp.runs.folder import ExperimentFolder, RunFolder
from coordexp.runs.reporter import LocalReporter, read_rows
from coordexp.train import run as run_module
from coordexp.train.setup.components import build_components
from coordexp.train.setup.loader import LoaderDiedError
from tests.support.loader_runs import names_in, numbers, reads_in, resuming_rank, train
from tests.support.metrics import unregistered
from tests.support.ranks import environment_of_ranks, run_ranks
from tests.support.training import prepared, small_config, with_changes

NUM, SIZE, ACCUMULATION = 22, 2, 2  # 11 microbatches, 6 steps an epoch, the last one of a single microbatch
STEPS = 9


@pytest.fixture(scope="module")
def make_config(base, tmp_path_factory):
    """A run over an epoch and a half, with all that could depend on the loader: dropout, random order."""
    runs = tmp_path_factory.mktemp("runs")
    steps = {"max_steps": STEPS, "checkpoint_steps": 1, "keep_checkpoints": 9}
    batch = {"per_device_batch_size": SIZE, "gradient_accumulation_steps": ACCUMULATION}
    first = small_config(base, runs / "first", **steps, **batch, lora={"dropout": 0.1})
    data = {"shapes": {"num_train": NUM, "num_val": 2}, "ordering": "random"}
    config = prepared(with_changes(first, data=data, evaluation={"loss_images": 0}))

    def make(name, *, training=None, **data):
        made = with_changes(config, data=data, training=training or {}, experiment={"runs_dir": runs / name})
        if not RunFolder.of(made).path.parent.exists():
            RunFolder.of(made).path.parent.mkdir(parents=True)
            prepared_files = list(RunFolder.of(config).path.parent.iterdir())
            assert prepared_files, "the experiment was prepared"
            for path in prepared_files:
                (RunFolder.of(made).path.parent / path.name).symlink_to(path)
        return made

    return make


@pytest.fixture(scope="module")
def undisturbed(make_config, tmp_path_factory):
    log = tmp_path_factory.mktemp("reads") / "log"
    config = make_config("undisturbed")
    with reads_in(log):
        train(config)
    assert not RunFolder.of(config).merged.exists()  # as a search asks for
    return numbers(config), names_in(log)


def test_an_epoch_reads_every_image_once(undisturbed):
    found, reads = undisturbed
    assert sorted(found) == list(range(1, STEPS + 1))
    assert len(set(reads[:NUM])) == NUM
    assert [found[step]["num_images"] for step in range(1, 8)] == [4, 4, 4, 4, 4, 2, 4]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning")  # on two cores
@pytest.mark.parametrize(
    ("stop", "workers_before", "workers_after"),
    [
        (3, 0, 2),
        pytest.param(3, 2, 0, marks=pytest.mark.slow),
        pytest.param(6, 1, 3, marks=pytest.mark.slow),
        pytest.param(7, 3, 1, marks=pytest.mark.slow),
        pytest.param(8, 0, 0, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_goes_on_with_the_same_bits(
    undisturbed, make_config, tmp_path, stop, workers_before, workers_after
):
    """Within an epoch (3), at its end (6) and within the next (7, 8), with any number of loader processes."""
    expected, reads = undisturbed
    before = set(psutil.Process().children())  # of other tests
    name = f"stop-{stop}-{workers_before}-{workers_after}"
    train(make_config(name, num_workers=workers_before), stop=stop)
    with reads_in(tmp_path / "log"):
        config = make_config(name, num_workers=workers_after)
        train(config)
    assert numbers(config) == expected
    assert set(psutil.Process().children()) <= before, "the next collection of garbage waits five seconds for each"
    # No image of a skipped batch was decoded: what was read is what was left of the epoch, and what came after.
    done = {3: 12, 6: NUM, 7: NUM + 4, 8: NUM + 8}[stop]
    if workers_after == 0:
        assert names_in(tmp_path / "log") == reads[done:]
    else:  # several processes note in any order, and read ahead
        epoch_end = NUM if done <= NUM else 2 * NUM
        found = names_in(tmp_path / "log")
        assert set(reads[done:]) <= set(found)
        assert len(found) <= epoch_end - done + (NUM if done < NUM else 0) + (NUM if done == NUM else 0)


@pytest.mark.slow  # the resumed run above ends with workers, over an epoch's end
def test_workers_change_no_number(undisturbed, make_config):
    """Over an epoch's end: the next epoch's order of objects reaches processes that live on."""
    config = make_config("workers", num_workers=2)
    train(config)
    assert numbers(config) == undisturbed[0]


def test_a_trainer_of_two_ranks_has_fillers_and_samples_that_processes_share(make_config, tmp_path, monkeypatch):
    config = make_config("two-ranks-wired", num_workers=1)
    reporter = LocalReporter(RunFolder.of(config).path)
    run = run_module.TrainingRun.of(config, build_components(config), reporter=reporter, print_line=lambda line: None)
    alone = run_module.make_trainer(run, tmp_path)
    assert alone.sampler.num_fillers == 0
    assert isinstance(alone.train_dataset._samples, Samples)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    run = replace(run, config=with_changes(config, cluster={"num_workers": 2}))
    assert run_module.make_trainer(run, tmp_path).sampler.num_fillers == -NUM % (2 * SIZE) == 2


def test_rows_say_how_long_training_waited(undisturbed, make_config):
    rows = read_rows(RunFolder.of(make_config("undisturbed")).metrics)
    name = "throughput/data_wait_fraction"
    waits = [row.metrics[name] for row in rows if name in row.metrics]
    assert waits
    assert all(0 < wait < 1 for wait in waits)
    assert not unregistered({name for row in rows for name in row.metrics})


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_arrives_as_its_own_sentence(make_config, monkeypatch, workers):
    def broken(path, **sizes):
        if path.name == victim.name:
            raise DataError(f"{path}: image does not decode (planted)")
        return read_image(path, **sizes)

    config = make_config(f"broken-{workers}", num_workers=workers)
    victim = sorted(ExperimentFolder.of(config).data.rglob("train*/*.*"))[5]
    monkeypatch.setattr(dataset_module, "read_image", broken)
    before = set(psutil.Process().children(recursive=True))  # of other tests
    with pytest.raises(DataError) as error:
        train(config)
    assert set(psutil.Process().children(recursive=True)) <= before
    assert str(error.value) == f"{victim}: image does not decode (planted)"


@pytest.mark.slow
def test_two_ranks_resume_and_count_every_image_once(make_config, tmp_path, monkeypatch):
    """22 samples and 2 fillers, 3 steps an epoch; stopped in the first and in the second epoch."""
    for name, value in environment_of_ranks(2).items():
        monkeypatch.setitem(os.environ, name, value)
    lora = {"rank": 16, "alpha": 32.0, "dropout": 0.0, "vision": True}
    five, plain = {"max_steps": 5}, {"max_steps": 5, "lora": lora}
    configs = [
        make_config("two-ranks", training=five),
        make_config("two-ranks-plain", training=plain),
        make_config("two-ranks-2", training=five, num_workers=1),
        make_config("two-ranks-4", training=five),
    ]
    stops = [None, 2, 4]
    args = (str(tmp_path / "store"), [config.model_dump_json() for config in configs], stops, str(tmp_path / "log"))
    run_ranks(resuming_rank, args)
    expected = numbers(configs[0])
    assert [expected[step]["num_images"] for step in range(1, 6)] == [8, 8, 6, 8, 8]
    assert numbers(configs[2]) == numbers(configs[3]) == expected
    # The last run went on at step 5, with two microbatches a rank, and looked one ahead.
    reads = [names_in(tmp_path / f"log-two-ranks-4-{rank}") for rank in range(2)]
    assert [len(own) for own in reads] == [3 * SIZE, 3 * SIZE]
    # One process with the same steps: fillers change nothing, although the second rank had nothing else in step 3.
    monkeypatch.undo()
    alone = make_config("one-rank", training={**plain, "gradient_accumulation_steps": 2 * ACCUMULATION})
    train(alone)
    one, two = numbers(alone), numbers(configs[1])
    assert sorted(one) == sorted(two)
    for step in one:
        assert two[step]["num_images"] == one[step]["num_images"]
        assert two[step]["num_supervised_tokens"] == one[step]["num_supervised_tokens"]
        assert two[step]["train_total_loss"] == pytest.approx(one[step]["train_total_loss"], rel=1e-4), step


def test_a_killed_loader_process_is_named_and_ends_the_run(make_config, monkeypatch):
    def deadly(path, **sizes):
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_image(path, **sizes)

    monkeypatch.setattr(dataset_module, "read_image", deadly)
    before = set(psutil.Process().children(recursive=True))  # of other tests
    with pytest.raises(LoaderDiedError, match=r"/dev/shm.*data\.num_workers"):
        train(make_config("killed", num_workers=1))
    assert set(psutil.Process().children(recursive=True)) <= before
