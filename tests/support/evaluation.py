"""Objects and records as an evaluation keeps them."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coordexp.data.sample import Objects as SampleObjects
from coordexp.data.sample import Sample
from coordexp.detection.box_evaluation import MatchedBoxes
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.names.categories import CategoryIndex
from coordexp.evaluate.analysis import Analysis, analyse_boxes
from coordexp.evaluate.answers import ObjectRow, Objects, ReadAnswer
from coordexp.evaluate.evaluation import EvaluationImages, score_answers
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.metrics import BOX_KINDS, TOP_TOKENS
from coordexp.runs.folder import DecodingFolder, EvaluationFolder
from tests.support.detections import Scene


class Item(NamedTuple):
    """One object of an answer."""

    desc: str = "thing 1"
    bins: tuple = (100, 100, 200, 200)
    category_id: int | None = 1
    expected: tuple | None = None
    width: tuple = (1, 2, 3, 4)
    score: float = 0.5


def objects_of(images: Mapping[int, Sequence[Item]]) -> Objects:
    rows = []
    for image_id, items in images.items():
        for item in items:
            means = item.expected or [k / 1000 for k in item.bins]
            served = [means] * len(TOP_TOKENS)
            row = ObjectRow(image_id, item.desc, item.category_id, item.bins, means, item.width, item.score, served)
            rows.append(row)
    return Objects.of(rows)


def answers_of(
    images: Mapping[int, Sequence[Item]],
    *,
    failures: Mapping[int, Sequence[str]] = {},
    truncated: Collection[int] = (),
    coord_mass: Mapping[int, Sequence[float]] = {},
    num_tokens: Mapping[int, int] = {},
) -> list[ReadAnswer]:
    """Answers with these objects; all else by image id."""
    return [
        ReadAnswer(
            image_id,
            np.arange(num_tokens.get(image_id, 0)),
            truncated=image_id in truncated,
            unforced=False,
            objects=objects_of({image_id: items}),
            failures=failures.get(image_id, ()),
            coord_mass=np.array(coord_mass.get(image_id, ()), np.float64),
        )
        for image_id, items in images.items()
    ]


def analyse(annotations_json: Path, folder: Path) -> Analysis:
    """Analyse the files of one decoding, such as ``eval/final/constrained``, over all images of the split."""
    truth, files = read_ground_truth(annotations_json), DecodingFolder(folder)
    boxes = {kind: MatchedBoxes(truth, read_detections(files.detections(kind), truth)) for kind in BOX_KINDS}
    objects = read_objects(files.objects)
    return analyse_boxes(boxes, objects.rows(objects.is_known))


def read_objects(path: Path) -> Objects:
    """Read ``objects.jsonl``, which has the means of whole distributions alone."""
    names = ("desc", "category_id", "bins", "expected", "width", "score")
    rows = []
    for line in map(json.loads, path.read_bytes().removesuffix(b"\n").split(b"\n")):
        for item in line["objects"]:
            served = [item["expected"]] * len(TOP_TOKENS)
            rows.append(ObjectRow(line["image_id"], *(item[name] for name in names), served=served))
    return Objects.of(rows)


def sample_of(image_id: int, size: tuple[int, int]) -> Sample:
    return Sample(
        image=Path(f"{image_id}.jpg"),
        width=size[0],
        height=size[1],
        image_id=image_id,
        objects=SampleObjects((), np.zeros((0, 4))),
    )


def evaluated(folder: Path, given: Scene, images: Mapping[int, Sequence[Item]]) -> dict[str, float]:
    """Write the files of an evaluation under free decoding that found these objects; return its metrics."""
    samples = [sample_of(key, size) for key, size in given.sizes_px.items()]
    data = EvaluationImages(given.truth, samples, CategoryIndex(given.categories))
    answers = answers_of({key: images.get(key, ()) for key in given.sizes_px})
    metrics = score_answers(data, EvaluationSettings(decoding=("free",)), lambda way: answers, EvaluationFolder(folder))
    return {name.removeprefix("free/"): value for name, value in metrics.items()}
