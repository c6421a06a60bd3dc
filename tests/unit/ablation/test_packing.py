import pytest

from coordexp.ablation.packing import hint, pack
from coordexp.config.schema import Cluster

NODES_64 = [{"CPU": 128.0, "GPU": 8.0}] * 8


def cluster(**values: object) -> Cluster:
    return Cluster.model_validate({"gpus_per_worker": 1.0, **values})


@pytest.mark.parametrize(
    ("asked", "runs", "slots", "waves", "busy"),
    [
        # 25 runs of 12 GPUs: 5 at once are 60 of 64, in 5 whole waves
        ({"num_workers": 12}, 25, 5, 5, 60 / 64),
        # 8 at once fill all 64, but the fourth wave has one run
        ({"num_workers": 8}, 25, 8, 4, 25 * 8 / (4 * 64)),
        ({"num_workers": 1}, 25, 64, 1, 25 / 64),
        ({"num_workers": 64}, 25, 1, 25, 1.0),
        ({"num_workers": 12, "max_concurrent_runs": 2}, 25, 2, 13, 25 * 12 / (13 * 64)),
    ],
)
def test_waves_and_the_busy_share(asked, runs, slots, waves, busy):
    packing = pack(cluster(**asked), NODES_64, runs=runs)
    assert (packing.slots, packing.waves) == (slots, waves)
    assert packing.busy_fraction == pytest.approx(busy)


def test_without_gpus_it_counts_cpus():
    packing = pack(Cluster(), [{"CPU": 2.0, "GPU": 8.0}], runs=3)
    assert packing.sentence() == "2 runs at once, 2 waves; 75% of 2 CPUs busy"


def test_a_cluster_half_idle_gets_a_hint_that_holds():
    found = hint(cluster(num_workers=1), NODES_64, runs=25)
    assert found is not None
    # 2 to 6 workers leave more idle; 64 would fill all, but runs rarely scale that far
    assert found.startswith("with cluster.num_workers: 7: 9 runs at once, 3 waves; 91% of 64 GPUs busy")


def test_the_hint_is_the_nearest_of_what_is_busy_enough():
    # 4 runs: 15 workers keep 60 of 64 busy; 16, 32 and 64 all of them
    assert "cluster.num_workers: 15:" in (hint(cluster(num_workers=8), NODES_64, runs=4) or "")


def test_where_nothing_is_busy_enough_the_best_is_named():
    # 5 GPUs hold two workers of 2: 3 runs of one worker take two waves (6 of 10), of two workers three (12 of 15)
    found = hint(cluster(num_workers=1, gpus_per_worker=2.0), [{"CPU": 64.0, "GPU": 5.0}], runs=3)
    assert (found or "").startswith("with cluster.num_workers: 2: 1 run at once, 3 waves; 80% of 5 GPUs busy")


def test_a_limit_of_the_user_is_named_first():
    found = hint(cluster(num_workers=12, max_concurrent_runs=2), NODES_64, runs=25)
    assert found == "without cluster.max_concurrent_runs: 5 runs at once, 5 waves; 94% of 64 GPUs busy"


@pytest.mark.parametrize(
    ("asked", "runs"),
    [({"num_workers": 12}, 25), ({"gpus_per_worker": 0.5}, 3)],  # busy enough; parts of a GPU cannot be more workers
)
def test_no_hint_where_none_helps(asked, runs):
    assert hint(cluster(**asked), NODES_64, runs=runs) is None
