"""The comparison against statistics.json, and statistics.json against its derivation by plain pycocotools."""

import json
import runpy
from pathlib import Path

import pytest

from coordexp.statistics import compare

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "statistics.json").read_text(encoding="utf-8"))
EXACT = {"rel": 0, "abs": 1e-9}


@pytest.mark.slow
def test_the_file_is_what_its_script_derives() -> None:
    derived = json.loads(json.dumps(runpy.run_path(str(HERE / "derive_statistics.py"))["derive"]()))
    assert {key: derived[key] for key in ("truth", "detections", "p_swap")} == {
        key: GOLDEN[key] for key in ("truth", "detections", "p_swap")
    }
    for part in (*GOLDEN["groups"].items(), ("difference", GOLDEN["difference"])):
        name, expected = part
        found = derived["difference"] if name == "difference" else derived["groups"][name]
        assert found.pop("interval") == pytest.approx(expected["interval"], **EXACT)
        assert found == pytest.approx({k: v for k, v in expected.items() if k != "interval"}, **EXACT)


@pytest.mark.ci
def test_the_comparison_is_that_of_images_really_repeated_and_swapped(tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(GOLDEN["truth"]))
    groups: dict[str, dict[int, Path]] = {"A": {}, "B": {}}
    for name, entries in GOLDEN["detections"].items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(entries))
        groups[name[0]][int(name[1])] = path
    found = compare(truth, groups, resamples=GOLDEN["resamples"], seed=GOLDEN["seed"])
    pair = found.pairs[0]
    for got, expected in (
        *((found.value[g], GOLDEN["groups"][g]) for g in "AB"),
        (pair.difference, GOLDEN["difference"]),
    ):
        assert got.value == pytest.approx(expected["value"], **EXACT)
        assert (got.low, got.high) == tuple(pytest.approx(end, **EXACT) for end in expected["interval"])
    assert pair.image_std == pytest.approx(GOLDEN["difference"]["image_std"], **EXACT)
    assert pair.seed_std == pytest.approx(GOLDEN["difference"]["seed_std"], **EXACT)
    assert pair.p_swap == GOLDEN["p_swap"]
