"""The day with the blood cells, as ``docs/your-data.md`` prints it: no file by hand, no conversion."""

import json
from pathlib import Path

import pytest

from tests.integration.test_printed_commands import run
from tests.support.commands import ROOT, blocks, lines_not_printed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAY = [block for block in blocks(ROOT / "docs" / "your-data.md") if "a slow test runs these" in block.reason]


OTHERS = [block for block in blocks(ROOT / "docs" / "your-data.md") if "the other slow test runs" in block.reason]


@pytest.mark.parametrize(("name", "place"), [("cards", "cards"), ("yolo", "cases/Y1")])
def test_the_cards_and_a_folder_of_yolo_go_the_same_way(shared_data: Path, tmp_path: Path, name, place) -> None:
    (tmp_path / name).symlink_to(shared_data / place)
    (command,) = (one for block in OTHERS for one in block.commands if f"data.path={name}" in (one.argv or ()))
    assert command.argv is not None
    printed = run(tmp_path, "-m", "coordexp", *command.argv).replace(str(tmp_path), "/home/me")
    assert lines_not_printed(command.output, printed) == []
    run(tmp_path, *("-m", "coordexp", "inspect", f"data.path={name}", "--num", "1", "--output", "seen"))
    assert len(list((tmp_path / "seen").glob("*.png"))) == 1
    trial = (
        "training.max_steps=2",
        "training.checkpoint_steps=2",
        "data.max_train_images=6",
        "evaluation.max_images=1",
    )
    groups = ("cluster.executor=inline", "ablation.groups=[A, C]", f"experiment.name={name}")
    printed = run(tmp_path, *("-m", "coordexp", "ablation", f"data.path={name}"), *trial, *groups)
    assert "AP is on 1 of" in printed
    assert list((tmp_path / "runs" / name).rglob("*.html")), "the page"


def test_the_day_with_the_blood_cells_is_as_printed(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "BCCD_Dataset").symlink_to(shared_data / "bccd")
    for block in DAY:
        for command in block.commands:
            assert command.argv is not None
            printed = run(tmp_path, "-m", "coordexp", *command.argv).replace(str(tmp_path), "/home/me")
            assert lines_not_printed(command.output, printed) == []
    assert len(DAY) == 3
    assert "group has learned to detect anything yet" in printed
    assert list((tmp_path / "runs" / "blood").rglob("*.html")), "the page"
    assert len(list((tmp_path / "seen").glob("*.png"))) == 2
    annotations = tmp_path / "runs" / "blood" / "data" / "val_ground_truth.json"
    truth = json.loads(annotations.read_text())
    assert (len(truth["images"]), len(truth["annotations"])) == (87, 1137)

    stems = {image["id"]: Path(image["file_name"]).stem for image in truth["images"]}
    for name, kept in (("predictions", 1), ("other", 2)):  # as Ultralytics writes them: stems for ids
        results = [
            {"image_id": stems[one["image_id"]], "category_id": one["category_id"], "bbox": one["bbox"], "score": 0.9}
            for one in truth["annotations"][::kept]
        ]
        (tmp_path / f"{name}.json").write_text(json.dumps(results))
    compared = run(
        tmp_path,
        *("-m", "coordexp", "compare", "--annotations", str(annotations)),
        *("yolo=predictions.json", "other=other.json", "--resamples=200"),
    )
    assert "yolo is higher" in compared
