"""The order and the limit of objects, and samples as arrays."""

from pathlib import Path

import numpy as np

from coordexp.data.sample import Objects, Sample, Samples
from tests.support.samples import content, pairs_of, things


def test_order_is_y1_then_x1_then_the_original_index():
    objects = things(
        ("d", (0.1, 0.5, 0.9, 0.9)),
        ("b", (0.2, 0.1, 0.3, 0.3)),
        ("a", (0.1, 0.1, 0.9, 0.2)),
        ("c1", (0.2, 0.3, 0.9, 0.9)),
        ("c2", (0.2, 0.3, 0.4, 0.4)),
    )
    assert objects.ordered().descs == ("a", "b", "c1", "c2", "d")
    assert objects.take(np.arange(5)[::-1]).ordered().descs == ("a", "b", "c2", "c1", "d")


def test_left_top_is_x1_then_y1_then_the_original_index():
    objects = things(
        ("d", (0.5, 0.1, 0.9, 0.9)),
        ("b", (0.1, 0.2, 0.3, 0.3)),
        ("a", (0.1, 0.1, 0.2, 0.9)),
        ("c1", (0.3, 0.2, 0.9, 0.9)),
        ("c2", (0.3, 0.2, 0.4, 0.4)),
    )
    assert objects.ordered("left_top").descs == ("a", "b", "c1", "c2", "d")
    assert objects.by_corner("left_top").descs == ("a", "b", "c1", "c2", "d")
    assert objects.ordered("top_left").descs == ("a", "d", "b", "c1", "c2")


def test_random_order_depends_on_all_of_the_seed():
    objects = things(*((str(i), (0, i / 20, 1, 1)) for i in range(20)))
    orders = {
        objects.ordered("random", seed=seed).descs for seed in [(0, 0, 5), (0, 0, 5), (1, 0, 5), (0, 1, 5), (0, 0, 6)]
    }
    assert len(orders) == 4
    assert all(sorted(order, key=int) == [str(i) for i in range(20)] for order in orders)


def test_the_cap_keeps_the_largest_in_their_given_order():
    objects = things(
        ("small", (0, 0, 0.1, 0.1)),
        ("large", (0, 0, 0.9, 0.9)),
        ("equal 1", (0, 0, 0.5, 0.2)),
        ("equal 2", (0, 0, 0.5, 0.2)),
        ("middle", (0, 0, 0.5, 0.5)),
    )
    assert objects.largest(3).descs == ("large", "equal 1", "middle")
    assert objects.largest(5) is objects
    assert len(things().largest(1)) == 0
    assert len(things().ordered()) == 0


def test_a_box_goes_with_its_description():
    objects = things(("b", (0.2, 0.5, 0.9, 0.9)), ("a", (0.1, 0.1, 0.2, 0.2)))
    assert pairs_of(objects.ordered()) == pairs_of(objects)[::-1]
    assert pairs_of(objects.largest(1)) == [("b", (0.2, 0.5, 0.9, 0.9))]


THING = ("chat noir", (0, 0.1, 0.2, 1 / 3))
SAMPLES = [
    Sample(Path(f"/images/é{num}.jpg"), 640, 480 + num, num - 2, things(*[THING, ("cat", (0, 0, 1, 1))][:num]))
    for num in range(5)
]


def test_each_access_gives_an_equal_sample():
    samples = Samples.of(SAMPLES)
    assert [*map(content, samples)] == [*map(content, SAMPLES)]
    assert len(samples) == 5
    assert content(samples[-1]) == content(SAMPLES[-1])
    assert [*map(content, samples[1:4:2])] == [*map(content, SAMPLES[1:4:2])]
    assert type(samples[3].width) is type(samples[3].image_id) is int


def test_the_largest_or_the_most_central_first():
    boxes = [(0.0, 0.0, 0.2, 0.2), (0.3, 0.3, 0.9, 0.9), (0.4, 0.4, 0.6, 0.6), (0.5, 0.0, 0.7, 0.2)]
    objects = Objects(tuple("abcd"), np.array(boxes))
    assert "".join(objects.ordered("size").descs) == "badc"  # of three equal ones y1, then x1
    # Centres (.1, .1), (.6, .6), (.5, .5) and (.6, .1).
    assert "".join(objects.ordered("centre").descs) == "cbda"
