"""Labels of YOLO and Pascal VOC are refused with what converts them, wherever one points at them."""

import pytest

from coordexp.cli.main import main
from coordexp.data.sources.foreign import refuse_foreign
from coordexp.errors import DataError


@pytest.mark.parametrize(("name", "kind"), [("labels/train/a.txt", "YOLO"), ("Annotations/a.xml", "Pascal VOC")])
def test_labels_and_their_folders_are_refused(name, kind, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text("0 0.5 0.5 0.2 0.1")
    for path in (file, file.parent, tmp_path):
        with pytest.raises(DataError, match=f"labels of {kind}.*supervision"):
            refuse_foreign(path)
    (tmp_path / "instances.json").write_text("{}")
    refuse_foreign(tmp_path / "instances.json")
    refuse_foreign(tmp_path / "gone.txt")


def test_verbs_say_so(tmp_path, capsys, monkeypatch):
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.1")
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", "coco", "--annotations", "labels", "--images", "labels", "--output", "out"]) == 2
    assert "labels looks like labels of YOLO" in capsys.readouterr().err
    keys = [f"data.{split}_{what}=labels" for split in ("train", "val") for what in ("annotations", "images")]
    assert main(["train", "data.format=coco", *keys]) == 2
    assert "looks like labels of YOLO" in capsys.readouterr().err
