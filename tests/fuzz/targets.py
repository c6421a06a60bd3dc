"""What a user, a disk or another tool hands in, by name: a good input, its damage, and what reads it."""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import load_file, save_file

from coordexp.config import load_config
from coordexp.config.keys import known_keys
from coordexp.config.schema.data import Shapes
from coordexp.coord_tokens.codec import int_to_token
from coordexp.coord_tokens.grammar.constrain import plain_text_ids
from coordexp.coord_tokens.grammar.parse import parse_generated
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.coord_tokens.vocab import coord_vocab, expand_vocab
from coordexp.data.images.pixels import read_image
from coordexp.data.sources.coco.source import CocoSource, LvisSource
from coordexp.data.sources.shapes import write_shapes
from coordexp.detection.detections import read_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.errors import CoordExpError
from coordexp.evaluate.generate.given import read_given_answers
from coordexp.evaluate.generate.qwen_json import parse_json_answer
from coordexp.files import read_content
from coordexp.model.checkpoint.adapter import read_adapter, save_adapter
from coordexp.model.checkpoint.directory import TINY_BASE
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.tiny.parts import build_tokenizer
from coordexp.runs.experiment import open_experiment
from coordexp.runs.folder import ExperimentFolder
from coordexp.runs.reporter import Row, append_rows, commit_checkpoint, drop_uncommitted, read_rows
from coordexp.runs.status import read_status
from coordexp.statistics import compare
from coordexp.statistics.results import from_json, to_json
from coordexp.sweep.load import load_sweep
from tests.fuzz.mutations import ODD_VALUES, misplace, mutate_bytes, mutate_json_file, mutate_weights
from tests.support.samples import read_jsonl

REPOSITORY = Path(__file__).parents[2]
Damage = Callable[[Path, random.Random], None]


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        make: writes a good input into an empty folder.
        damage: changes a copy of it.
        read: does what the product does with it.
        share: of all inputs, relative to the others; what takes seconds has less.
    """

    make: Callable[[Path], object]
    damage: Damage
    read: Callable[[Path], object]
    share: float = 1.0


def damaged(*patterns: str) -> Damage:
    """Return what damages one of the files that match, by what its name ends in."""

    def damage(folder: Path, rng: random.Random) -> None:
        path = rng.choice(sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file()))
        if rng.random() < 0.05:
            misplace(path, rng)
        elif path.suffix in (".json", ".jsonl"):
            mutate_json_file(path, rng, each_line=path.suffix == ".jsonl")
        elif path.suffix == ".safetensors":
            mutate_weights(path, rng)
        else:
            path.write_bytes(mutate_bytes(path.read_bytes(), rng))

    return damage


def each(*reads: Callable[[], object]) -> None:
    """Read several files; a refusal of one must not keep the next from being read."""
    for read in reads:
        with contextlib.suppress(CoordExpError, OSError):
            read()


# Configurations.


def _copy_experiments(folder: Path) -> None:
    shutil.copytree(REPOSITORY / "experiments", folder / "experiments")


def _damage_override(folder: Path, rng: random.Random) -> None:
    key = rng.choice((*known_keys(), "ablation.groups", "ablation.groups.A.objective", "x", ""))
    value = rng.choice(ODD_VALUES)
    written = rng.choice((json.dumps(value, ensure_ascii=False), str(value)))
    (folder / "override").write_text(f"{key}={written}", encoding="utf-8")


def _read_override(folder: Path) -> None:
    override = (folder / "override").read_text(encoding="utf-8")
    config = load_config(REPOSITORY / "experiments" / "tiny.yaml", [override])
    config.run(next(iter(config.ablation.groups), config.experiment.group), config.ablation.seeds[0])


def _read_yaml(folder: Path) -> None:
    sweeps = sorted((folder / "experiments" / "sweeps").glob("*.yaml"))
    each(
        lambda: load_config(folder / "experiments" / "tiny.yaml"),
        *(lambda path=path: load_sweep(path) for path in sweeps),
    )


# Data.


def _make_data(folder: Path) -> None:
    write_shapes(folder, Shapes(num_train=1, num_val=6))
    truth = json.loads((folder / "instances_val.json").read_text())
    names = {category["id"]: category["name"] for category in truth["categories"]}
    lvis = {"frequency": "f", "image_count": 2, "instance_count": 3, "synset": "a.n.01", "synonyms": ["a"]}
    of_image = {"not_exhaustive_category_ids": [], "neg_category_ids": [1]}
    document = truth | {
        "categories": [category | lvis for category in truth["categories"]],
        "images": [i | of_image | {"coco_url": f"http://x/val/{i['file_name']}"} for i in truth["images"]],
    }
    (folder / "lvis.json").write_text(json.dumps(document))
    records = [
        {
            "image": image["file_name"],
            "width": image["width"],
            "height": image["height"],
            "objects": [
                {"desc": names[one["category_id"]], "bbox_2d": [x, y, x + width, y + height]}
                for one in truth["annotations"]
                if one["image_id"] == image["id"]
                for x, y, width, height in [one["bbox"]]
            ],
        }
        for image in truth["images"]
    ]
    _write_lines(folder / "samples.jsonl", records)
    found = [
        {key: one[key] for key in ("image_id", "category_id", "bbox")} | {"score": 0.5} for one in truth["annotations"]
    ]
    (folder / "found.json").write_text(json.dumps(found))
    (folder / "others.json").write_text(json.dumps(found[1:]))


def _write_lines(path: Path, values: list[dict]) -> None:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))


def _read_coco(folder: Path) -> None:
    read_ground_truth(folder / "instances_val.json")
    CocoSource(folder / "instances_val.json", folder / "val").read()


def _read_lvis(folder: Path) -> None:
    read_ground_truth(folder / "lvis.json")
    LvisSource(folder / "lvis.json", folder / "val").read()


def _damage_picture(folder: Path, rng: random.Random) -> None:
    """Cut a picture, or write it in another form than its name says; Pillow's reading of pixels is not ours."""
    form, mode = rng.choice(("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")), rng.choice(("RGB", "L", "1"))
    out = io.BytesIO()
    Image.new(mode if form not in ("JPEG", "WEBP") else "RGB", (rng.choice((1, 64)), 7)).save(out, form)
    (folder / "picture.png").write_bytes(mutate_bytes(out.getvalue(), rng))


def _read_found(folder: Path) -> None:
    truth = read_ground_truth(folder / "instances_val.json")
    for name in ("found.json", "others.json"):
        read_detections(folder / name, truth)
    files = {"A": {0: folder / "found.json"}, "B": {0: folder / "others.json"}}
    compare(folder / "instances_val.json", files, resamples=20)


# Answers.

_PIECES = (
    int_to_token(0), int_to_token(999), "<|object_ref_start|>", "<|box_start|>", "<|box_end|>", "cat", " ", "[", "{",
    "}", "]", '"bbox_2d": ', "[1, 2, 3, 4]", '"label": "x"', "```json", "<think>", "</think>", "1e9", "-1", "[[", "\\",
)  # fmt: skip


def _make_answers(folder: Path) -> None:
    _make_data(folder)
    images = json.loads((folder / "instances_val.json").read_text())["images"]
    text = '[{"bbox_2d": [1, 2, 3, 4], "label": "red circle"}]'
    _write_lines(folder / "answers.jsonl", [{"image_id": image["id"], "text": text} for image in images])


def _damage_answers(folder: Path, rng: random.Random) -> None:
    """The text of an answer is damaged more often than the file around it."""
    path = folder / "answers.jsonl"
    if rng.random() < 0.4:
        mutate_json_file(path, rng, each_line=True)
        return
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    _write_lines(path, [line | {"text": "".join(rng.choices(_PIECES, k=rng.randrange(40)))} for line in lines])


@cache
def _tokenizer_with_coords():
    tokenizer = build_tokenizer()
    expand_vocab(load("embedded").model, tokenizer, structure="native")
    return tokenizer, coord_vocab(tokenizer)


def _read_answers(folder: Path) -> None:
    ids = [image["id"] for image in json.loads((folder / "instances_val.json").read_text())["images"]]
    tokenizer, vocab = _tokenizer_with_coords()
    text_ids = frozenset(plain_text_ids(tokenizer))
    for answer in read_given_answers(folder / "answers.jsonl", known=ids, wanted=ids).by_image.values():
        text = answer.text or ""
        parse_json_answer(text)
        parse_generated(tokenizer.encode(text), vocab, text_ids=text_ids)


# Checkpoints and adapters.


def _make_adapter(folder: Path) -> None:
    loaded = load("embedded")
    vocab = expand_vocab(loaded.model, loaded.processor.tokenizer, structure="native")
    install_coord_offset_adapter(loaded.model, coord_ids=vocab.coord_ids, tie_head=False)
    tuned = apply_tuning(loaded.model, tuning="lora", rank=2, alpha=4.0, dropout=0.0, vision=False, seed=0)
    save_adapter(tuned, folder / "adapter")


def _damage_adapter(folder: Path, rng: random.Random) -> None:
    """Damage its files, or give one tensor another shape or name, as one of another model has."""
    if rng.random() < 0.6:
        damaged("adapter/*.json", "adapter/*.safetensors")(folder, rng)
        return
    path = folder / "adapter" / "adapter_model.safetensors"
    tensors = load_file(path)
    name = rng.choice(sorted(tensors))
    tensor = tensors.pop(name)
    if rng.random() < 0.8:
        tensors[rng.choice((name, f"{name}x"))] = rng.choice((tensor, tensor[:-1], tensor.flatten())).contiguous()
    save_file(tensors, path)


def _read_adapter(folder: Path) -> None:
    read_adapter(folder / "adapter")
    load("embedded", adapter=folder / "adapter")


# What a run leaves.


def _config(folder: Path):
    keys = [f"experiment.runs_dir={folder}", "data.shapes.num_train=2", "data.shapes.num_val=2"]
    return load_config(REPOSITORY / "experiments" / "tiny.yaml", keys)


def _make_run(folder: Path) -> None:
    config = _config(folder)
    open_experiment(config)
    run = ExperimentFolder.of(config).run("A", 0)
    for step in (2, 4):
        append_rows(run.metrics, [Row(step=step, time=1.0, metrics={"train_total_loss": 0.5})])
        checkpoint = run.checkpoint(step)
        checkpoint.path.mkdir(parents=True)
        (checkpoint.path / "weights").write_bytes(bytes(range(100)))
        commit_checkpoint(checkpoint.path, rows=len(read_rows(run.metrics)))


def _read_run(folder: Path) -> None:
    config = _config(folder)
    run = ExperimentFolder.of(config).run("A", 0)
    each(lambda: open_experiment(config), lambda: read_status(run.path))
    drop_uncommitted(run.path)
    append_rows(run.metrics, [Row(step=6, time=1.0, metrics={})])
    assert read_rows(run.metrics)[-1].step == 6, "rows after damage are written behind whole ones"


def _make_comparison(folder: Path) -> None:
    _make_data(folder)
    files = {"A": {0: folder / "found.json"}, "B": {0: folder / "others.json"}}
    (folder / "comparison.json").write_text(to_json(compare(folder / "instances_val.json", files, resamples=20)))


def _no_input(folder: Path) -> None:
    """Nothing: the damage writes it."""


TARGETS: Mapping[str, Target] = {
    "yaml": Target(
        _copy_experiments,
        damaged(*(f"experiments/{name}*.yaml" for name in ("tiny", "base", "groups/A", "sweeps/"))),
        _read_yaml,
    ),
    "override": Target(_no_input, _damage_override, _read_override, 1.5),
    "coco": Target(_make_data, damaged("instances_val.json"), _read_coco, 1.5),
    "lvis": Target(_make_data, damaged("lvis.json"), _read_lvis),
    "jsonl": Target(
        _make_data,
        damaged("samples.jsonl"),
        lambda folder: read_jsonl(folder / "samples.jsonl", folder / "val", bbox_format="pixels"),
    ),
    "image": Target(_no_input, _damage_picture, lambda folder: np.asarray(read_image(folder / "picture.png"))),
    "detections": Target(_make_data, damaged("found.json", "others.json"), _read_found),
    "answers": Target(_make_answers, _damage_answers, _read_answers),
    "checkpoint": Target(
        lambda folder: shutil.copytree(TINY_BASE, folder / "base"),
        damaged("base/*.*"),
        lambda folder: load(folder / "base"),
        0.4,
    ),
    "adapter": Target(_make_adapter, _damage_adapter, _read_adapter, 0.4),
    "run": Target(_make_run, damaged("**/*"), _read_run),
    "comparison": Target(
        _make_comparison,
        damaged("comparison.json"),
        lambda folder: from_json(read_content(folder / "comparison.json")),
        0.5,
    ),
}
