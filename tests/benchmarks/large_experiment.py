"""A large experiment on disk, as finished runs on COCO leave one: groups x seeds on 5,000 images, seeded, in minutes.

    python tests/benchmarks/large_experiment.py FOLDER [GROUPS] [SEEDS] [IMAGES] [DETECTIONS]

Run folders, detections, objects, analyses, distributions, fingerprints and MLflow's rows are written by the product's
own functions; only the boxes are made up. Of each run there are the final evaluation (both decodings, both kinds of
boxes) and five during training on 500 images, and 180 rows of losses. What a report does not read is left out:
checkpoints, answers, objects of the other evaluations, MLflow's copies of files that lie in the run's folder.
"""

import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.config import load_config, to_yaml
from coordexp.config.identity.fingerprint import fingerprint
from coordexp.config.keys import identity
from coordexp.config.schema import ExperimentConfig
from coordexp.coord_tokens.bins import NUM_BINS
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import write_detections
from coordexp.detection.ground_truth import GroundTruth, read_ground_truth
from coordexp.detection.metrics import measure
from coordexp.evaluate.analysis import analyse_boxes
from coordexp.evaluate.answers import Objects, ReadAnswer, distributions_of, write_objects
from coordexp.evaluate.distributions import BinCurve, images_with_curves
from coordexp.metrics import BOX_KINDS, LOSS_NAMES, TOP_TOKENS, BoxKind
from coordexp.runs.folder import DecodingFolder
from coordexp.runs.plan import RunPlan, plan_runs
from coordexp.runs.reporter import Row
from coordexp.tracking import Tracker, open_tracker
from coordexp.tracking.payload import last_values
from coordexp.tracking.publish import shared_identity, tracking_uri
from coordexp.tracking.store import READING, RUN_DIR

ROOT = Path(__file__).resolve().parents[2]
NAME = "large"
GROUPS = ("A", "B", "C", "D", "B_gate", "D_gauss", "D_exp", "D_two_bin", "D_ordinal", "C_diou", "C_ciou", "C_centre")
OBJECTS_PER_IMAGE = 7
NUM_CATEGORIES = 80
SUBSET = 500
SIZE_PX = (640, 480)
_MIXED = ("num_images", "num_supervised_tokens", "grad_norm", "mean_grad_norm", "clipped_fraction", "learning_rate")


def write_data(folder: Path, num_images: int) -> Path:
    """Write pictures (one file under all names) and COCO-like annotations; return the annotation file."""
    draw, pictures = np.random.default_rng(0), folder / "val"
    pictures.mkdir(parents=True)
    first = pictures / "000000.jpg"
    Image.fromarray(draw.integers(0, 255, (12, 16, 3), np.uint8)).resize(SIZE_PX).save(first)
    for number in range(1, num_images):
        os.link(first, pictures / f"{number:06d}.jpg")
    counts = np.minimum(draw.geometric(1 / OBJECTS_PER_IMAGE, num_images), 60)
    image = np.repeat(np.arange(num_images), counts)
    frequency = 1 / (np.arange(NUM_CATEGORIES) + 2)  # a few common categories, many rare ones
    category = draw.choice(NUM_CATEGORIES, len(image), p=frequency / frequency.sum())
    side = np.exp(draw.uniform(np.log(12), np.log(300), (len(image), 2)))
    corner = draw.uniform(0, 1, side.shape) * (np.array(SIZE_PX) - side)
    boxes = np.hstack([corner, side]).tolist()
    annotations = [
        {"id": n + 1, "image_id": i, "category_id": c + 1, "bbox": b, "area": b[2] * b[3], "iscrowd": 0}
        for n, (i, c, b) in enumerate(zip(image.tolist(), category.tolist(), boxes, strict=True))
    ]
    for crowd in annotations[::100]:
        crowd["iscrowd"] = 1
    images = [
        {"id": i, "width": SIZE_PX[0], "height": SIZE_PX[1], "file_name": f"{i:06d}.jpg"} for i in range(num_images)
    ]
    path = folder / "instances_val.json"
    categories = [{"id": c + 1, "name": f"category {c + 1}"} for c in range(NUM_CATEGORIES)]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def made_up(truth: GroundTruth, image_ids: list[int], *, skill: float, per_image: float, seed: int) -> list[ReadAnswer]:
    """Make up the answers of one model: it finds more objects, and their boxes fit better, the more skill it has."""
    draw = np.random.default_rng(seed)
    chosen = np.isin(truth.image_ids, image_ids) & ~truth.is_crowd
    found = np.flatnonzero(chosen)[draw.random(int(chosen.sum())) < 0.35 + 0.5 * skill]
    boxes, sides = truth.boxes_px_xywh[found], np.tile(truth.boxes_px_xywh[found, 2:], 2)
    off = draw.normal(0, 0.16 - 0.12 * skill, boxes.shape) * draw.exponential(1, (len(found), 1)) * sides
    num_false = max(0, round(per_image * len(image_ids)) - len(found))
    false = np.hstack([draw.uniform(0, 340, (num_false, 2)), np.exp(draw.uniform(2.5, 4.8, (num_false, 2)))])
    xywh = np.concatenate([boxes + off, false])
    quality = np.concatenate([1 / (1 + 4 * np.abs(off / sides).mean(axis=1)), np.full(num_false, 0.45)])
    score = 1 / (1 + np.exp(-(draw.normal(6 * quality - 3, 1.2))))
    size = np.array([*SIZE_PX, *SIZE_PX])
    xyxy = np.clip(np.hstack([xywh[:, :2], xywh[:, :2] + np.maximum(xywh[:, 2:], 1.0)]) / size, 0, 0.9989)
    bins = np.clip(np.rint(xyxy * NUM_BINS + draw.normal(0, 4, xyxy.shape)), 0, NUM_BINS - 1).astype(int)
    image = np.concatenate([truth.image_ids[found], draw.choice(image_ids, num_false)])
    category = np.concatenate([truth.category_ids[found], draw.choice(list(truth.categories), num_false)])
    width = draw.exponential(8, xyxy.shape)
    descs = np.array([truth.categories[key] for key in category.tolist()], np.object_)
    served = np.repeat(xyxy[:, None], len(TOP_TOKENS), axis=1)
    objects = Objects(image, descs, category, np.ones(len(image), np.bool_), bins, xyxy, width, score, served)
    return [
        ReadAnswer(
            image_id,
            np.zeros(0, np.int64),
            truncated=image_id % 97 == 0,
            unforced=False,
            objects=objects.rows(image == image_id),
            failures=(),
            coord_mass=np.zeros(0),
        )
        for image_id in sorted(image_ids)
    ]


def write_evaluation(folder: DecodingFolder, found: list[ReadAnswer]) -> None:
    """Write detections of both kinds, and the objects."""
    folder.path.mkdir(parents=True)
    sizes = {answer.image_id: SIZE_PX for answer in found}
    objects = Objects.joined([answer.objects for answer in found])
    for kind in BOX_KINDS:
        write_detections(folder.detections(kind), objects.detections(kind, sizes))
    write_objects(folder.objects, found)


def write_run(plan: RunPlan, annotations: Path, number: int, num_groups: int, per_image: float) -> dict[str, float]:
    """Write the folder of one run and return the metrics of its end."""
    truth = read_ground_truth(annotations)
    every, subset = sorted(truth.sizes_px), sorted(truth.sizes_px)[:: max(1, len(truth.sizes_px) // SUBSET)][:SUBSET]
    group, seed, run = number % num_groups, plan.seed, plan.folder
    skill = 0.5 + 0.03 * (group // 2) + 0.004 * np.random.default_rng([seed, group]).normal()  # twins do not differ
    run.path.mkdir(parents=True)
    for step in range(600, 3600, 600):
        made = made_up(truth, subset, skill=skill * step / 3600, per_image=per_image, seed=10_000 * step + number)
        write_evaluation(run.evaluation(step).decoding("constrained"), made)
    final = run.evaluation("final")
    write_evaluation(
        final.decoding("free"), made_up(truth, every, skill=skill - 0.1, per_image=per_image, seed=number + 500)
    )
    made = made_up(truth, every, skill=skill, per_image=per_image, seed=number)
    constrained = final.decoding("constrained")
    write_evaluation(constrained, made)
    objects, sizes = Objects.joined([answer.objects for answer in made]), dict.fromkeys(every, SIZE_PX)
    evaluated: dict[BoxKind, MatchedBoxes] = {
        kind: MatchedBoxes(truth, objects.detections(kind, sizes)) for kind in BOX_KINDS
    }
    analyse_boxes(evaluated, objects).write(constrained.path)
    kept = images_with_curves(truth, every)
    made = [replace(answer, curves=_curves(answer.objects, group)) for answer in made if answer.image_id in kept]
    distributions_of(made).write(constrained.path)
    run.config.write_text(to_yaml(plan.config))
    own = fingerprint(plan.config, data="data", weights="weights", tokens=f"tokens {seed}")
    run.fingerprint.write_text(own.to_json())
    return {
        f"constrained/{kind}/{name}": value
        for kind, boxes in evaluated.items()
        for name, value in measure(boxes).items()
    }


def _curves(objects: Objects, group: int) -> list[tuple[BinCurve, ...]]:
    """Make up the four distributions of each object, wider in some groups."""
    bins = np.arange(NUM_BINS)
    return [
        tuple(
            BinCurve.of((p := np.exp(-0.5 * ((bins - NUM_BINS * x) / (3 + group)) ** 2) + 1e-7) / p.sum()) for x in box
        )
        for box in objects.expected.tolist()
    ]


def log_run(tracker: Tracker, parent: str, plan: RunPlan, final: dict[str, float], number: int) -> None:
    """Write a run's rows to MLflow."""
    run_id = tracker.start_run(
        plan.key, parent_id=parent, group=plan.group, seed=plan.seed, fingerprint=plan.name,
        params=identity(plan.config), tags={RUN_DIR: str(plan.run_dir), READING: plan.config.reading},
    )  # fmt: skip
    draw, rows = np.random.default_rng(number), list[Row]()
    for step in range(20, 3601, 20):
        metrics = {name: float(10 / step + draw.exponential(0.01)) for name in _MIXED}
        metrics |= {f"train_{name}": float(100 / (step + 50) + draw.exponential(0.01)) for name in LOSS_NAMES}
        metrics |= {"num_images": 1280.0, "num_supervised_tokens": 90_000.0}
        if step % 600 == 0:
            metrics |= {f"eval_{name}": float(100 / (step + 40)) for name in LOSS_NAMES}
            metrics["subset/constrained/expected/AP"] = final["constrained/expected/AP"] * step / 3600
        rows.append(Row(step=step, time=1e9 + step, metrics=metrics))
    rows.append(Row(step=3600, time=1e9 + 3700, metrics=final | {"final/steps": 3600.0, "final/train_seconds": 9e3}))
    tracker.append_rows(run_id, rows)
    tracker.log_measured(run_id, last_values(rows))
    tracker.finish(run_id, "FINISHED")


def experiment_config(folder: Path, groups: int, seeds: int) -> ExperimentConfig:
    """Return the shipped COCO experiment with so many groups and seeds, its data and runs below a folder."""
    data = {f"{split}_{what}": folder / "data" for split in ("train", "val") for what in ("annotations", "images")}
    data["val_annotations"], data["val_images"] = folder / "data/instances_val.json", folder / "data/val"
    return load_config(
        ROOT / "experiments" / "coco_qwen3vl_4b.yaml",
        [
            f"experiment.name={NAME}",
            f"experiment.runs_dir={folder}",
            f"ablation.groups=[{','.join(GROUPS[:groups])}]",
            f"ablation.seeds={list(range(seeds))}",
            *(f"data.{key}={path}" for key, path in data.items()),
        ],
    )


def make_experiment(
    folder: Path, *, groups: int = 12, seeds: int = 5, images: int = 5000, per_image: float = 10
) -> str:
    """Write the whole experiment and return MLflow's URI.

    Args:
        folder: the runs' directory; to be empty.
        groups: at most twelve.
        seeds: of each group.
        images: of the validation split.
        per_image: detections of an image, on average.
    """
    config = experiment_config(folder, groups, seeds)
    annotations = write_data(folder / "data", images)
    plans = plan_runs(config)
    size = len(plans)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        arguments = (plans, [annotations] * size, range(size), [groups] * size, [per_image] * size)
        finals = list(pool.map(write_run, *arguments))
    uri = tracking_uri(config)
    tracker = open_tracker(uri, experiment=NAME, artifact_root=folder / "mlartifacts")
    parent = tracker.start_parent(NAME, shared_identity(config), {})
    for number, (plan, final) in enumerate(zip(plans, finals, strict=True)):
        log_run(tracker, parent, plan, final, number)
    tracker.finish(parent, "FINISHED")
    return uri


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[2:]]
    keys = ("groups", "seeds", "images", "per_image")
    started = time.perf_counter()
    print(make_experiment(Path(sys.argv[1]).absolute(), **dict(zip(keys, given, strict=False))))
    print(f"{time.perf_counter() - started:.0f} s")
