"""Where AP is lost, by hand, under repeated images, and against the numbers that are computed elsewhere."""

import numpy as np
import pytest

from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.decomposition import BURST, Decomposed
from coordexp.detection.metrics import measure
from coordexp.detection.precision.average_precision import unit_weights
from tests.support.detections import DtRow, Scene, as_detections, crowded_scene, found, random_case, repeated, scene

A, B, FAR = [0, 0, 40, 40], [60, 0, 40, 40], [120, 50, 40, 40]
NEAR_B = [60, 24, 40, 40]  # shares 16 of 64 rows with B: IoU .25


def parts(given: Scene, rows: list[DtRow]) -> dict[str, float]:
    return Decomposed(given.truth, as_detections(rows)).values


@pytest.mark.parametrize(
    ("name", "rows", "fixed"),
    [
        # One object of category 1 at A and one at B. A is found second; the row before it is wrong in one way.
        # AP50 as it is: precision 1/2 up to recall 1/2: 51 of 101 levels.
        ("localisation", [(1, 1, NEAR_B, 0.9)], 1.0),  # both found
        ("classification", [(1, 2, B, 0.9)], 1.0),
        ("both", [(1, 2, NEAR_B, 0.9)], 51 / 101),  # deleted: precision 1 up to recall 1/2
        ("background", [(1, 1, FAR, 0.9)], 51 / 101),
    ],
)
def test_each_error_by_hand(name: str, rows: list[tuple], fixed: float) -> None:
    given = scene((1, 1, A), (1, 1, B), (2, 2, A), num_images=2)
    other = (2, 2, A, 1.0)  # category 2 is found exactly, above whatever is claimed of it
    values = parts(given, found(*rows, (1, 1, A, 0.5), other))
    wrong_category = rows[0][1] == 2
    own = 51 / 101 * (1.0 if wrong_category else 0.5)
    assert values["AP50"] == pytest.approx((own + 1.0) / 2)
    assert values[f"tide_{name}"] == pytest.approx((fixed - own) / 2 if name != "both" else 0.0)
    # B is missed where nothing means it; without it in the ground truth the recall is whole.
    whole = 1.0 if wrong_category else 0.5
    missed = (whole - own) / 2 if name in ("both", "background") else 0.0
    assert values["tide_missed"] == pytest.approx(missed)


def test_a_second_box_of_an_object_and_a_better_claim() -> None:
    # The second box at A stands before the one at B: precision 1, 1/2, 2/3. Deleted: 1, 1.
    given = scene((1, 1, A), (1, 1, B))
    values = parts(given, found((1, 1, A, 0.9), (1, 1, A, 0.8), (1, 1, B, 0.7)))
    assert values["AP50"] == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert values["tide_duplicate"] == pytest.approx(1 - values["AP50"])
    assert values["repeated_fraction"] == pytest.approx(1 / 3)
    # Two boxes mean B: only the one with the higher score becomes it, the other is deleted with it.
    values = parts(given, found((1, 1, A, 0.9), (1, 1, NEAR_B, 0.8), (1, 1, [60, 20, 40, 40], 0.7)))
    assert values["tide_localisation"] == pytest.approx(1 - values["AP50"])
    # So it is where the file has the lower score first: then what is far stands after both hits, not between them.
    values = parts(given, found((1, 1, [60, 20, 40, 40], 0.6), (1, 1, FAR, 0.7), (1, 1, NEAR_B, 0.8), (1, 1, A, 0.9)))
    assert values["tide_localisation"] == pytest.approx(1 - values["AP50"])


def test_a_category_missed_whole_is_found_whole_once_none_is() -> None:
    assert parts(scene((1, 1, A)), [])["tide_missed"] == 1.0
    values = parts(scene((1, 1, A)), found((1, 1, FAR, 0.5)))
    assert (values["AP50"], values["tide_missed"], values["tide_background"]) == (0.0, 1.0, 0.0)


def test_a_burst_and_the_rank_of_objects_by_hand() -> None:
    # Image 1 repeats B ten times; image 2 has one box. B is first from the top, though the missed one is left of it.
    low = [0, 50, 40, 40]
    given = scene((1, 1, low), (1, 1, B), (2, 1, B), num_images=2)
    rows = [(1, 1, B, 0.9)] * (BURST + 1) + [(2, 1, B, 0.5)]
    values = parts(given, found(*rows))
    assert values["repeated_fraction"] == pytest.approx(BURST / 12)
    assert values["burst_fraction"] == pytest.approx(11 / 12)
    assert parts(given, found(*rows[1:]))["burst_fraction"] == 0.0
    assert (values["recall_rank_1"], values["recall_rank_2"]) == (1.0, 0.0)
    assert "recall_rank_3_to_4" not in values
    assert values["mean_iou"] == 1.0


@pytest.mark.parametrize("seed", range(12))
def test_weights_are_repeated_images_and_shared_numbers_agree(seed: int) -> None:
    given, rows = crowded_scene(seed, ties=seed % 2 == 0) if seed < 5 else random_case(np.random.default_rng(seed))
    ours = Decomposed(given.truth, as_detections(rows))
    metrics = measure(MatchedBoxes(given.truth, as_detections(rows)))
    for name in ("AP50", "calibration_error"):
        assert ours.values.get(name) == pytest.approx(metrics.get(name), abs=1e-12)
    images = sorted(given.sizes_px)
    weights = np.random.default_rng(seed).integers(0, 4, len(images)).astype(np.uint16)
    copies = repeated(given, rows, dict(zip(images, weights.tolist(), strict=True)))
    again = Decomposed(copies[0].truth, as_detections(copies[1]))
    expected = again.measure(unit_weights(again.num_images)[None])
    assert ours.measure(weights[None]) == pytest.approx(expected, nan_ok=True, abs=1e-12)
