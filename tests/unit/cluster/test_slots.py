import pytest

from coordexp.cluster.slots import count_slots
from coordexp.config.schema import Cluster
from coordexp.errors import ResourceError


@pytest.mark.parametrize(
    ("cluster", "nodes", "slots"),
    [
        ({}, [{"CPU": 2.0}], 2),
        ({"max_concurrent_runs": 1}, [{"CPU": 2.0}], 1),
        ({"max_concurrent_runs": 9}, [{"CPU": 2.0}], 2),
        ({"num_workers": 2}, [{"CPU": 3.0}], 1),
        # two workers of 4 CPUs fit on two nodes, one each
        ({"num_workers": 2, "cpus_per_worker": 4}, [{"CPU": 6.0}, {"CPU": 6.0}], 1),
        ({"num_workers": 8, "cpus_per_worker": 4, "gpus_per_worker": 1.0}, [{"CPU": 128.0, "GPU": 8.0}] * 2, 2),
        # CPUs run out before GPUs
        ({"cpus_per_worker": 4, "gpus_per_worker": 1.0}, [{"CPU": 10.0, "GPU": 8.0}], 2),
        # 0.4 of a GPU: two on each device, not five on two
        ({"gpus_per_worker": 0.4}, [{"CPU": 64.0, "GPU": 2.0}], 4),
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
        ({"gpus_per_worker": 1.0}, [{"CPU": 64.0}]),
        ({}, []),
    ],
)
def test_what_never_fits_is_refused_with_what_is_there(cluster, nodes):
    has = r"\(.* CPUs, .* GPUs\)" if nodes else "no nodes"
    with pytest.raises(ResourceError, match=rf"one run needs \d x \(.*\), but the cluster has {has}"):
        count_slots(Cluster.model_validate(cluster), nodes)
