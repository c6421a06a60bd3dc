"""What users hand in: configurations, data, pictures, detections and answers."""

import io
import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from coordexp.config import group_config, load_config
from coordexp.config.keys import known_keys
from coordexp.coord_tokens.codec import int_to_token
from coordexp.coord_tokens.grammar.parse import parse_generated
from coordexp.coord_tokens.vocab import coord_vocab, expand_vocab
from coordexp.data.image_file import read_image
from coordexp.data.sources.coco import read_coco
from coordexp.data.sources.jsonl import read_jsonl
from coordexp.data.sources.lvis import read_lvis
from coordexp.data.sources.shapes import ShapesSpec, write_shapes
from coordexp.detection.ceiling import codec_ceiling
from coordexp.detection.detections import detections_of, read_results
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.evaluate.generate.given import read_given_answers
from coordexp.evaluate.qwen_json import parse_json_answer
from coordexp.model.loading import load
from coordexp.model.tiny.parts import build_tokenizer
from coordexp.statistics import compare
from coordexp.statistics.results import from_json, to_json
from coordexp.sweep.load import load_sweep
from tests.fuzz.mutations import ODD_VALUES, misplace, mutate_bytes, mutate_json_file
from tests.fuzz.support import REPOSITORY, Target, damage_json, tolerate

# Configurations.


def _copy_experiments(folder: Path) -> None:
    shutil.copytree(REPOSITORY / "experiments", folder / "experiments")


def _damage_text(*patterns: str) -> Callable[[Path, random.Random], None]:
    def damage(folder: Path, rng: random.Random) -> None:
        found = sorted(path for pattern in patterns for path in folder.glob(pattern))
        path = rng.choice(found)
        if rng.random() < 0.04:
            misplace(path, rng)
        else:
            path.write_bytes(mutate_bytes(path.read_bytes(), rng))

    return damage


def _odd_text(rng: random.Random) -> str:
    value = rng.choice(ODD_VALUES)
    written = rng.choice((lambda item: json.dumps(item, ensure_ascii=False), str))(value)
    return (
        rng.choice(
            (
                "",
                "",
                "",
                "!!int ",
                "!!float ",
                "!!timestamp ",
                "!!set ",
                "!!binary ",
                "&a ",
                "*",
                "- ",
                "[",
                "{",
                "<<: ",
            )
        )
        + written
    )


def _damage_override(folder: Path, rng: random.Random) -> None:
    key = rng.choice(
        (*known_keys(), "ablation.groups", "ablation.groups.A.objective", "x", "", ".", "a..b", "a" * 2_000)
    )
    overrides = [f"{key}={_odd_text(rng)}" for _ in range(rng.choice((1, 1, 2)))]
    (folder / "overrides.json").write_text(json.dumps(overrides))


def _read_override(folder: Path) -> None:
    config = load_config(REPOSITORY / "experiments" / "tiny.yaml", json.loads((folder / "overrides.json").read_text()))
    group_config(config, next(iter(config.ablation.groups), config.experiment.group), config.ablation.seeds[0])


def _read_sweeps(folder: Path) -> None:
    for path in sorted((folder / "experiments" / "sweeps").glob("*.yaml")):
        tolerate(lambda path=path: load_sweep(path))


# Data.


def make_data(folder: Path) -> None:
    write_shapes(folder, ShapesSpec(num_train=1, num_val=6))
    truth = json.loads((folder / "instances_val.json").read_text())
    for category in truth["categories"]:
        category |= {"frequency": "f", "image_count": 2, "instance_count": 3, "synset": "a.n.01", "synonyms": ["a"]}
    for image in truth["images"]:
        image |= {
            "not_exhaustive_category_ids": [],
            "neg_category_ids": [1],
            "coco_url": f"http://x/val/{image['file_name']}",
        }
    (folder / "lvis.json").write_text(json.dumps(truth))
    by_image: dict[int, list[dict[str, object]]] = {}
    for one in truth["annotations"]:
        by_image.setdefault(one["image_id"], []).append(one)
    names = {category["id"]: category["name"] for category in truth["categories"]}
    records = [
        {
            "image": image["file_name"],
            "width": image["width"],
            "height": image["height"],
            "image_id": image["id"],
            "objects": [
                {
                    "desc": names[one["category_id"]],
                    "bbox_2d": [
                        one["bbox"][0],
                        one["bbox"][1],  # type: ignore[index]
                        one["bbox"][0] + one["bbox"][2],
                        one["bbox"][1] + one["bbox"][3],
                    ],
                }
                for one in by_image.get(image["id"], [])
            ],
        }
        for image in truth["images"]
    ]
    (folder / "samples.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    found = [
        {"image_id": one["image_id"], "category_id": one["category_id"], "bbox": one["bbox"], "score": 0.5}
        for one in truth["annotations"]
    ]
    for name in ("found.json", "others.json"):
        (folder / name).write_text(json.dumps(found[name == "others.json" :]))
    answers = [
        {"image_id": image["id"], "text": f'[{{"bbox_2d": [1, 2, 3, 4], "label": "{names[1]}"}}]'}
        for image in truth["images"]
    ]
    (folder / "answers.jsonl").write_text("".join(f"{json.dumps(answer)}\n" for answer in answers))


def _read_coco(folder: Path) -> None:
    path = folder / "instances_val.json"
    read_ground_truth(path)
    read_coco(path, folder / "val")
    codec_ceiling(path)


def _read_lvis(folder: Path) -> None:
    read_ground_truth(folder / "lvis.json")
    read_lvis(folder / "lvis.json", folder / "val")


def _read_jsonl(folder: Path) -> None:
    read_jsonl(folder / "samples.jsonl", folder / "val", bbox_format="pixels")


def _damage_images(folder: Path, rng: random.Random) -> None:
    path = folder / "picture"
    form = rng.choice(("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"))
    out = io.BytesIO()
    side = rng.choice((1, 7, 64, 300))
    mode = rng.choice(("RGB", "L", "1") if form in ("JPEG", "WEBP") else ("RGB", "L", "P", "1"))
    Image.new(mode, (side, rng.choice((1, 64)))).save(out, form)
    content = out.getvalue()
    for _ in range(rng.choice((1, 3, 10))):
        content = mutate_bytes(content, rng)
    path.write_bytes(content)


def _read_found(folder: Path) -> None:
    truth = read_ground_truth(folder / "instances_val.json")
    for name in ("found.json", "others.json"):
        detections_of(read_results(folder / name), truth)
    files = {"A": {0: folder / "found.json"}, "B": {0: folder / "others.json"}}
    stored = to_json(compare(folder / "instances_val.json", files, resamples=20))
    from_json(stored)


def _read_answers(folder: Path) -> None:
    ids = [image["id"] for image in json.loads((folder / "instances_val.json").read_text())["images"]]
    answers = read_given_answers(folder / "answers.jsonl", known=ids, wanted=ids)
    tokenizer, vocab = _tokenizer_with_coords()
    for answer in answers.values():
        text = (
            answer.text
            if answer.text is not None
            else tokenizer.decode([i for i in answer.token_ids or () if 0 <= i < len(tokenizer)])
        )
        parse_json_answer(text)
        parse_generated(tokenizer.encode(text), vocab)


_KNOWN: list[tuple[object, object]] = []


def _tokenizer_with_coords():
    if not _KNOWN:
        tokenizer = build_tokenizer()
        model = load("embedded").model
        expand_vocab(model, tokenizer, structure="native")
        _KNOWN.append((tokenizer, coord_vocab(tokenizer)))
    return _KNOWN[0]


def _damage_answers(folder: Path, rng: random.Random) -> None:
    """Text of an answer is damaged more often than the file around it."""
    path = folder / "answers.jsonl"
    if rng.random() < 0.4:
        mutate_json_file(path, rng, each_line=True)
        return
    pieces = [
        int_to_token(rng.randrange(1000)),
        "<|object_ref_start|>",
        "<|box_start|>",
        "<|box_end|>",
        "cat",
        " ",
        "[",
        "{",
        '"bbox_2d": ',
        "[1, 2, 3, 4]",
        "[" * 5_000,
        '"label": "x"',
        "}",
        "]",
        "```json",
        "<think>",
        "</think>",
        "1e999",
        "9" * 5_000,
        "\\u12",
        "\ud800",
    ]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["text"] = "".join(rng.choice(pieces) for _ in range(rng.randrange(40)))
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


GIVEN: Mapping[str, Target] = {
    "yaml": Target(
        _copy_experiments,
        _damage_text("experiments/tiny.yaml", "experiments/base.yaml", "experiments/groups/A.yaml"),
        lambda folder: load_config(folder / "experiments" / "tiny.yaml"),
    ),
    "override": Target(lambda folder: None, _damage_override, _read_override, 1.5),
    "sweep": Target(_copy_experiments, _damage_text("experiments/sweeps/*.yaml"), _read_sweeps, 0.15),
    "coco": Target(make_data, damage_json("instances_val.json"), _read_coco, 1.5),
    "lvis": Target(make_data, damage_json("lvis.json"), _read_lvis),
    "jsonl": Target(make_data, damage_json(lines=("samples.jsonl",)), _read_jsonl),
    "image": Target(lambda folder: None, _damage_images, lambda folder: np.asarray(read_image(folder / "picture"))),
    "detections": Target(make_data, damage_json("found.json", "others.json"), _read_found),
    "answers": Target(make_data, _damage_answers, _read_answers),
}
