"""Labels of YOLO and of Pascal VOC are not read yet: the error that names the cure."""

from itertools import islice
from pathlib import Path

from coordexp.errors import DataError

_KINDS = {
    ".txt": ("YOLO", "from_yolo(IMAGES, LABELS, DATA_YAML)"),
    ".xml": ("Pascal VOC", "from_pascal_voc(IMAGES, XML)"),
}


def refuse_foreign(path: Path) -> None:
    """Refuse labels of YOLO or Pascal VOC, or a folder of them, as annotations.

    Raises:
        DataError: with what converts them.
    """
    if (problem := foreign_problem(path)) is not None:
        raise DataError(problem)


def foreign_problem(path: Path) -> str | None:
    """Return how labels in another format become COCO's; None for what is none of them."""
    files = islice(path.rglob("*.*"), 1_000) if path.is_dir() else [path]
    suffix = next((file.suffix for file in files if file.suffix in _KINDS), None)
    if suffix is None or not path.exists():
        return None
    kind, read = _KINDS[suffix]
    return (
        f"{path} looks like labels of {kind}; expected COCO's instances format, into which the package supervision "
        f"converts them: supervision.DetectionDataset.{read}.as_coco(annotations_path=FILE)"
    )
