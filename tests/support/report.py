"""A small experiment as an ablation leaves it: a real sqlite store, run directories, pictures, detections."""

import functools
import json
import random
import shutil
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from PIL import Image

from coordexp.config.identity.fingerprint import Fingerprint
from coordexp.detection import evaluate_detections
from coordexp.runs.reporter import Row
from coordexp.tracking import Tracker, open_tracker
from coordexp.tracking.payload import last_values
from tests.support.evaluation import analyse

SPITEFUL = "<script>document.title='broken'</script>"
CATEGORIES = {1: "red circle", 2: f"blue & {SPITEFUL}"}
SIZE_PX = (120, 90)
STEPS = (20, 40)
LAST = 60
_KEPT = tempfile.TemporaryDirectory(prefix="coordexp-test-evaluations-")
# How far boxes are off, in pixels, and how many objects are left out, by group.
ERRORS = {"A": (3.0, 0.2), "B<i>": (14.0, 0.4), "C": (1.0, 0.05), "B": (14.0, 0.4)}


def write_data(folder: Path, *, num_images: int = 14, seed: int = 0) -> Path:
    """Write pictures and annotations; return the annotation file."""
    draw = random.Random(seed)
    images, annotations = [], []
    (folder / "val").mkdir(parents=True)
    for image_id in range(1, num_images + 1):
        picture = Image.new("RGB", SIZE_PX, (200, 200, 195))
        for _ in range(1 + image_id % 3):
            width, height = draw.randint(15, 50), draw.randint(15, 50)
            x, y = draw.randint(0, SIZE_PX[0] - width), draw.randint(0, SIZE_PX[1] - height)
            category = draw.choice(list(CATEGORIES))
            picture.paste((180, 40, 40) if category == 1 else (40, 60, 180), (x, y, x + width, y + height))
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image_id, "category_id": category, "iscrowd": 0,
                 "bbox": [x, y, width, height], "area": width * height}
            )  # fmt: skip
        picture.save(folder / "val" / f"{image_id:03d}.jpg")
        images.append({"id": image_id, "file_name": f"{image_id:03d}.jpg", "width": SIZE_PX[0], "height": SIZE_PX[1]})
    categories = [{"id": key, "name": name} for key, name in CATEGORIES.items()]
    path = folder / "instances_val.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def write_evaluation(folder: Path, annotations: Path, *, off_px: float, missed: float, seed: int) -> None:
    """Write what an evaluation of one decoding leaves, all images or the even ones below ``step_``."""
    draw = random.Random(seed)
    data = json.loads(annotations.read_text())
    ids = [image["id"] for image in data["images"] if "step_" not in str(folder) or image["id"] % 2 == 0]
    found = []
    for box in data["annotations"]:
        if box["image_id"] in ids and draw.random() >= missed:
            x, y, w, h = (value + draw.gauss(0, off_px) for value in box["bbox"])
            found.append({"image_id": box["image_id"], "category_id": box["category_id"],
                          "bbox": [x, y, max(w, 1.0), max(h, 1.0)], "score": round(draw.random(), 3)})  # fmt: skip
    folder.mkdir(parents=True)
    snapped = [{**dt, "bbox": [2.0 * round(value / 2) for value in dt["bbox"]]} for dt in found]
    for kind, entries in (("argmax", snapped), ("expected", found)):
        (folder / f"detections.{kind}.json").write_text(json.dumps(entries))
    lines: list[str] = []
    for key in ids:
        objects = [_object(dt) for dt in found if dt["image_id"] == key]
        answer = {"image_id": key, "objects": objects, "failures": [], "truncated": key == 2}
        lines.append(json.dumps(answer))
    (folder / "objects.jsonl").write_text("\n".join(lines) + "\n")
    if folder.parent.name == "final":
        analyse(annotations, folder).write(folder)


def _object(detection: dict) -> dict:
    x, y, w, h = detection["bbox"]
    corners = [x / SIZE_PX[0], y / SIZE_PX[1], (x + w) / SIZE_PX[0], (y + h) / SIZE_PX[1]]
    inside = [min(max(corner, 0.0), 0.999) for corner in corners]
    return {
        "desc": CATEGORIES[detection["category_id"]],
        "category_id": detection["category_id"],
        "bins": [int(corner * 1000) for corner in inside],
        "expected": inside,
        "width": [1.0, 1.0, 1.0, 1.0],
        "score": detection["score"],
    }


def fingerprint_of(group: str, seed: int, *, code: str = "c", **changed: str) -> Fingerprint:
    values = {"data": "d", "weights": "w", "tokens": f"t{seed}", "evaluation": "e", **changed}
    config = {"experiment": {"seed": seed}, "objective": {"use_geom_loss": group != "A"}}
    return Fingerprint(config=config, code={"coordexp/losses/head.py": code}, packages={"python": "3.11"}, **values)


def write_run_files(run_dir: Path, annotations: Path, group: str, seed: int, **changed: str) -> None:
    shutil.copytree(_evaluations(annotations.read_text(), group, seed), run_dir / "eval")
    (run_dir / "config.yaml").write_text("ablation:\n  factor: [objective]\nevaluation:\n  aliases: {}\n")
    (run_dir / "fingerprint.json").write_text(fingerprint_of(group, seed, **changed).to_json())


@functools.cache
def _evaluations(truth: str, group: str, seed: int) -> Path:
    """Write all evaluations of a run once for each session; half of the tests need the same ones."""
    folder = Path(tempfile.mkdtemp(dir=_KEPT.name))
    annotations = folder / "instances_val.json"
    annotations.write_text(truth)
    off, missed = ERRORS[group]
    for step in STEPS:
        name = f"eval/step_{step:06d}/constrained"
        write_evaluation(folder / name, annotations, off_px=off * (3 - step / 30), missed=missed, seed=seed)
    for decoding, worse in (("constrained", 1.0), ("free", 1.5)):
        place = folder / "eval" / "final" / decoding
        write_evaluation(place, annotations, off_px=off * worse, missed=missed, seed=seed)
    return folder / "eval"


def _digest(run_dir: Path) -> str:
    return sha256((run_dir.parent / "data" / "instances_val.json").read_bytes()).hexdigest()[:32]


@functools.cache
def _final_ap(truth: str, group: str, seed: int) -> dict[str, float]:
    folder = _evaluations(truth, group, seed)
    names = [f"{decoding}/{kind}" for decoding in ("constrained", "free") for kind in ("argmax", "expected")]
    files = {name: folder / "final" / name.replace("/", "/detections.") for name in names}
    return {
        f"{name}/AP": evaluate_detections(folder.parent / "instances_val.json", file.with_name(f"{file.name}.json")).AP
        for name, file in files.items()
    }


def reading_of(group: str) -> str:
    return "argmax" if group == "A" else "expected"


def rows_of(group: str, seed: int, *, last: int = LAST, ap: dict[str, float] | None = None) -> list[Row]:
    level = ERRORS[group][0] + 0.1 * seed
    rows = [
        Row(
            step=step,
            time=1000.0 + step,
            metrics={
                "train_total_loss": level / step,
                "train_text_loss": 1.0 / step,
                "num_images": 40.0,
                "num_supervised_tokens": 900.0,
                **({f"subset/constrained/{kind}/AP": 0.1 for kind in ("argmax", "expected")} if step in STEPS else {}),
            },
        )
        for step in range(10, last + 1, 10)
    ]
    if ap is not None:
        final = {**ap, "final/steps": float(LAST), "free/num_objects": 20.0}
        rows.append(Row(step=LAST, time=2000.0, metrics=final))
    return rows


def write_experiment(
    runs_dir: Path,
    name: str = "paired",
    *,
    groups: Iterable[str] = ("A", "B<i>", "C"),
    seeds: Iterable[int] = (0,),
    unfinished: Iterable[str] = (),
    data_seed: int = 0,
    changed: dict[str, dict[str, str]] | None = None,
    uri: str = "",
    instance: str = "one",
) -> str:
    """Write an experiment and return MLflow's URI.

    ``unfinished`` names runs (``C-s0``) that stop at step 20; ``changed`` gives a run another hash in its fingerprint.
    """
    uri = uri or f"sqlite:///{runs_dir.absolute()}/mlflow.db"
    tracker = open_tracker(uri, experiment=name, artifact_root=runs_dir / "mlartifacts")
    annotations = write_data(runs_dir / name / "data", seed=data_seed)
    parent = tracker.start_parent(f"{name}/{instance}", {"data": {"format": "shapes"}}, {})
    for number, group in enumerate(groups):
        for seed in seeds:
            run_dir = runs_dir / name / f"{'ABC'[number]}-s{seed}"
            is_whole = f"{group}-s{seed}" not in unfinished
            write_run_files(run_dir, annotations, group, seed, **(changed or {}).get(f"{group}-s{seed}", {}))
            _record(tracker, parent, name, group, seed, run_dir, is_whole=is_whole)
    if uri.startswith("http"):  # as the report of an ablation leaves them
        tracker.log_file(parent, annotations, "data")
    tracker.finish(parent, "FINISHED")
    return uri


def _record(tracker: Tracker, parent: str, name: str, group: str, seed: int, run_dir: Path, *, is_whole: bool) -> None:
    run_id = tracker.start_run(
        f"{name}/{group}/s{seed}/{parent}",
        parent_id=parent,
        group=group,
        seed=seed,
        fingerprint=f"{group}{seed}",
        params={"data": {"format": "shapes"}, "training": {"max_steps": LAST}},
        tags={"run_dir": str(run_dir), "reading": reading_of(group), "annotations_sha256": _digest(run_dir)},
    )
    ap = _final_ap((run_dir.parent / "data" / "instances_val.json").read_text(), group, seed)
    rows = rows_of(group, seed, last=LAST if is_whole else 20, ap=ap if is_whole else None)
    tracker.append_rows(run_id, rows)
    if is_whole:
        tracker.log_measured(run_id, last_values(rows))
        for file in ("config.yaml", "fingerprint.json"):
            tracker.log_file(run_id, run_dir / file)
        tracker.log_directory(run_id, run_dir / "eval" / "final", "eval/final")
        tracker.finish(run_id, "FINISHED")
