import pytest

from coordexp.cluster.capacity import count_slots
from coordexp.config.schema import Cluster
from coordexp.errors import ResourceError


@pytest.mark.parametrize(
    ("cluster", "nodes", "slots"),
    [
        ({}, [{"CPU": 2.0}], 2),
        ({"max_concurrent_runs": 1}, [{"CPU": 2.0}], 1),
        ({"max_concurrent_runs": 9}, [{"CPU": 2.0}], 2),
        ({"num_workers": 2}, [{"CPU": 3.0}], 1),
        # shares of a CPU: three runs on two, five on one
        ({"cpus_per_worker": 0.66}, [{"CPU": 2.0}], 3),
        ({"cpus_per_worker": 0.2}, [{"CPU": 1.0}], 5),
        # two workers of 4 CPUs fit on two nodes, one each
        ({"num_workers": 2, "cpus_per_worker": 4}, [{"CPU": 6.0}, {"CPU": 6.0}], 1),
        ({"num_workers": 8, "cpus_per_worker": 4, "gpus_per_worker": 1.0}, [{"CPU": 128.0, "GPU": 8.0}] * 2, 2),
        # CPUs run out before GPUs
        ({"cpus_per_worker": 4, "gpus_per_worker": 1.0}, [{"CPU": 10.0, "GPU": 8.0}], 2),
        # 0.4 of a GPU: two on each device, not five on two
        ({"gpus_per_worker": 0.4}, [{"CPU": 64.0, "GPU": 2.0}], 4),
        # tenths and fifths fill a device
        ({"gpus_per_worker": 0.2}, [{"CPU": 64.0, "GPU": 2.0}], 10),
        ({"gpus_per_worker": 0.1}, [{"CPU": 64.0, "GPU": 1.0}], 10),
        # a run of 8 spans nodes of 6, whose rests join
        ({"num_workers": 8, "gpus_per_worker": 1.0}, [{"CPU": 64.0, "GPU": 6.0}] * 4, 3),
        # workers of 4 GPUs do not: each node loses 2
        ({"num_workers": 2, "gpus_per_worker": 4.0}, [{"CPU": 64.0, "GPU": 6.0}] * 4, 2),
        # mixed: the CPU node holds no worker, the small one two
        (
            {"num_workers": 2, "cpus_per_worker": 2, "gpus_per_worker": 1.0},
            [{"CPU": 64.0}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 4.0, "GPU": 4.0}],
            5,
        ),
    ],
)
def test_slots_are_what_fits_on_nodes(cluster, nodes, slots):
    assert count_slots(Cluster.model_validate(cluster), nodes) == slots


@pytest.mark.parametrize(
    ("cluster", "nodes"),
    [
        ({"num_workers": 3}, [{"CPU": 2.0}]),
        # 8 CPUs in all, but no node has 5
        ({"cpus_per_worker": 5}, [{"CPU": 4.0}, {"CPU": 4.0}]),
        # 8 GPUs in all, but a worker of 8 needs one node
        ({"gpus_per_worker": 8.0}, [{"CPU": 64.0, "GPU": 4.0}, {"CPU": 64.0, "GPU": 4.0}]),
        # GPUs and CPUs enough, but not together
        ({"cpus_per_worker": 8, "gpus_per_worker": 1.0}, [{"CPU": 64.0}, {"CPU": 4.0, "GPU": 8.0}]),
        ({"gpus_per_worker": 1.0}, [{"CPU": 64.0}]),
        ({}, []),
    ],
)
def test_what_never_fits_is_refused_with_what_is_there(cluster, nodes):
    has = r"\(.* CPUs?, .* GPUs?\)" if nodes else "no nodes"
    with pytest.raises(ResourceError, match=rf"needs \d x \(.*\).* {has}"):
        count_slots(Cluster.model_validate(cluster), nodes)
