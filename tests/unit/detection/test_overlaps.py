import numpy as np
import pytest

from coordexp.detection.coco_matches import CocoMatches
from coordexp.detection.overlaps import Overlaps
from tests.unit.evaluate.scene_support import found, random_scene, truth

# Two boxes side by side and one detection that overlaps both: 40 x 10 against 40 x 10 moved by 10 is
# an intersection of 30 and a union of 50: IoU .6. Moved by 20: 20 / 60 = 1/3.
LEFT, RIGHT = [0, 0, 40, 10], [20, 0, 40, 10]
BETWEEN = [10, 0, 40, 10]


def test_pairs_by_hand() -> None:
    scene = truth((1, 1, LEFT), (1, 1, RIGHT), (1, 2, LEFT))
    overlaps = Overlaps(scene, found((1, 1, BETWEEN, 0.9), (1, 1, LEFT, 0.8), (1, 2, RIGHT, 0.7), (1, 1, BETWEEN, 0.1)))
    assert overlaps.best_iou() == pytest.approx([0.6, 1.0, 1 / 3, 0.6])
    # The best score comes first and takes, of equal IoUs, the last box; the next finds LEFT free.
    half = overlaps.match(0.5)
    assert half.gt_of_dt.tolist() == [1, 0, -1, -1]
    assert half.iou_of_dt == pytest.approx([0.6, 1.0, 0, 0])
    assert half.matched.tolist() == [True, True, False, False]
    assert half.num_gt == 3
    assert overlaps.match(0.3).gt_of_dt.tolist() == [1, 0, 2, -1]
    assert overlaps.match(0.7).gt_of_dt.tolist() == [-1, 0, -1, -1]


def test_a_crowd_is_neither_found_nor_missed() -> None:
    scene = truth((1, 1, [0, 0, 100, 100], True), (1, 1, [150, 0, 20, 20]))
    # Over a crowd the IoU is the share of the detection inside it.
    overlaps = Overlaps(scene, found((1, 1, [10, 10, 10, 10], 0.9), (1, 1, [95, 0, 10, 10], 0.8)))
    half = overlaps.match(0.5)
    assert half.ignored.tolist() == [True, True]  # the second lies inside by half
    assert overlaps.match(0.75).ignored.tolist() == [True, False]
    assert half.num_gt == 1
    assert overlaps.best_iou().tolist() == [0.0, 0.0]


def test_nothing_at_all() -> None:
    empty = Overlaps(truth(), [])
    assert empty.match(0.5).num_gt == 0
    assert empty.best_iou().shape == (0,)
    assert Overlaps(truth((1, 1, LEFT)), []).match(0.5).num_gt == 1
    assert Overlaps(truth(), found((1, 1, LEFT, 1.0))).match(0.5).gt_of_dt.tolist() == [-1]


def test_images_outside_do_not_count() -> None:
    scene = truth((1, 1, LEFT), (2, 1, LEFT), num_images=2)
    assert Overlaps(scene, [], image_ids=[2]).num_gt == 1


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_matching_is_that_of_pycocotools(seed: int, ties: bool) -> None:
    scene, detections = random_scene(seed, ties=ties)
    overlaps = Overlaps(scene, detections)
    evaluation = CocoMatches.of(scene, detections, areas="all")._evaluation
    num_matched = 0
    for at, threshold in ((0, 0.5), (5, 0.75), (9, 0.95)):
        matching = overlaps.match(threshold)
        for found_there in filter(None, evaluation.evalImgs):
            ids = np.array(found_there["dtIds"], int) - 1
            ignored = found_there["dtIgnore"][at].astype(bool)
            theirs = np.where(ignored, 0, found_there["dtMatches"][at]).astype(int) - 1
            assert matching.gt_of_dt[ids].tolist() == theirs.tolist()
            assert matching.ignored[ids].tolist() == ignored.tolist()
        num_matched += int(matching.matched.sum())
    assert num_matched > 20
