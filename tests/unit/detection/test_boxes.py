import numpy as np
import pytest

from coordexp.detection.boxes import iou, iou_table, to_boxes_norm_xyxy, to_boxes_px_xywh


def test_iou_by_hand() -> None:
    # 10 x 10 shifted by 5: 50 shared of 150; side by side: nothing shared.
    a = np.array([[0.0, 0, 10, 10]])
    b = np.array([[5.0, 0, 10, 10], [10, 0, 10, 10], [0, 0, 10, 10], [0, 0, 0, 10]])
    assert iou_table(a, b).tolist() == [[pytest.approx(1 / 3), 0, 1, 0]]
    assert iou(np.repeat(a, 4, axis=0), b).tolist() == iou_table(a, b)[0].tolist()
    assert iou_table(np.zeros((0, 4)), b).shape == (0, 4)
    point = np.array([[3.0, 3.0, 0.0, 0.0]])
    assert iou_table(point, point).tolist() == [[0.0]]


def test_iou_is_symmetric_and_the_same_at_any_scale() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 50, (20, 4)), rng.uniform(1, 50, (30, 4))
    table = iou_table(a, b)
    assert np.array_equal(table, iou_table(b, a).T)
    np.testing.assert_allclose(iou_table(3 * a, 3 * b), table, rtol=1e-12)
    assert 0 < np.count_nonzero(table) < table.size


def test_corners_are_ordered_on_the_way_to_pixels() -> None:
    boxes = np.array([[0.6, 0.1, 0.2, 0.5], [0.2, 0.5, 0.6, 0.1]])
    sizes = np.array([[100.0, 200.0], [100.0, 200.0]])
    assert to_boxes_px_xywh(boxes, sizes) == pytest.approx(np.array([[20, 20, 40, 80]] * 2))
    assert to_boxes_norm_xyxy(np.array([[20.0, 20, 40, 80]]), sizes[:1]) == pytest.approx(
        np.array([[0.2, 0.1, 0.6, 0.5]])
    )
