"""An evaluation from images to files and metrics, alone and shared by ranks."""

import contextlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coordexp.config.schema.data import Shapes
from coordexp.data.batch import EncodedSample
from coordexp.data.images.patches import to_patches
from coordexp.data.images.pixels import read_image
from coordexp.data.sample import Sample
from coordexp.data.shapes import CATEGORIES
from coordexp.data.sources.shapes import write_shapes
from coordexp.detection import evaluate_detections
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.detection.metrics import detection_metrics
from coordexp.detection.names.categories import CategoryIndex
from coordexp.errors import DataError
from coordexp.evaluate.analysis import Analysis
from coordexp.evaluate.answers import ReadAnswer
from coordexp.evaluate.distributions import Distributions
from coordexp.evaluate.evaluation import EvaluationImages, ModelEvaluation, score_answers
from coordexp.evaluate.settings import EvaluationSettings
from coordexp.metrics import ANSWER_METRICS, SERVED_METRICS, MetricName
from coordexp.runs.folder import EvaluationFolder
from tests.support.evaluation import Item, analyse, answers_of, sample_of
from tests.support.metrics import unregistered

NUM_IMAGES = 6


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("shapes") / "data", Shapes(num_train=1, num_val=NUM_IMAGES))


class Encoded(list[EncodedSample]):
    """Encoded samples in memory."""

    @property
    def lengths(self) -> list[int]:
        return [sample.length for sample in self]


@dataclass(frozen=True)
class Split:
    """Images with their annotations, and a model to evaluate on them."""

    base: object
    annotations: Path
    samples: list[Sample]
    encoded: list[EncodedSample]

    def data(self, *, num_images: int = NUM_IMAGES, is_subset: bool = False, aliases=None) -> EvaluationImages:
        truth = read_ground_truth(self.annotations)
        categories = CategoryIndex(truth.categories, aliases=aliases)
        return EvaluationImages(truth, self.samples[:num_images], categories, is_subset=is_subset)

    def evaluation(self, settings: EvaluationSettings) -> ModelEvaluation:
        answering = replace(self.base.answering, encode=lambda samples: Encoded(self.encoded[: len(samples)]))
        return ModelEvaluation(answering, self.data(), settings)

    def run(self, settings: EvaluationSettings, output: Path) -> dict[str, float]:
        """Evaluate in one process."""
        return self.evaluation(settings).run(EvaluationFolder(output))

    def score(self, images, output: Path, decoding: str, *, settings=None, answers=None, **options) -> dict[str, float]:
        """Evaluate objects by image as if they had been generated."""
        answers = answers or answers_of(images)
        settings = settings or EvaluationSettings(decoding=(decoding,))
        return score_answers(self.data(**options), settings, lambda way: answers, EvaluationFolder(output))


def split_of(base, shapes: Path) -> Split:
    """The split as the readers give it: sizes from the file, encoded images."""
    annotations = shapes / "instances_val.json"
    images = json.loads(annotations.read_text())["images"]
    encoded = []
    for image in images:
        patches, grid = to_patches(read_image(shapes / "val" / image["file_name"]), base.image_spec)
        tokens = base.image_spec.num_tokens(width=image["width"], height=image["height"])
        template = base.sample(1)
        pad = base.model.config.image_token_id
        text = [i for i in template.prompt_ids if i != pad]
        at = template.prompt_ids.index(pad)
        prompt = [*text[:at], *[pad] * tokens, *text[at:]]
        encoded.append(replace(template, prompt_ids=prompt, patches=patches, grid=grid, image_id=image["id"]))
    samples = [sample_of(image["id"], (image["width"], image["height"])) for image in images]
    return Split(base, annotations, samples, encoded)


def without_time(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "second" not in name}


def test_end_to_end(base, shapes: Path, tmp_path: Path) -> None:
    split = split_of(base, shapes)
    evaluation = split.evaluation(EvaluationSettings(batch_size=4, max_new_tokens=48, details=False))
    done: list[int] = []
    base.model.train()
    metrics = evaluation.run(EvaluationFolder(tmp_path), on_images=done.append)
    assert base.model.training
    base.model.eval()
    assert sum(done) == 2 * NUM_IMAGES
    assert len(done) >= 2 * len(evaluation.queues)
    for decoding in ("constrained", "free"):
        folder = tmp_path / decoding
        names = {"detections.argmax.json", "detections.expected.json", "objects.jsonl", "answers.jsonl", "unknown.json"}
        names.add("generated_by.json")
        assert {path.name for path in folder.iterdir()} == names
        lines = [json.loads(line) for line in (folder / "objects.jsonl").read_text().splitlines()]
        assert [line["image_id"] for line in lines] == sorted(sample.image_id for sample in split.samples)
        assert metrics[f"{decoding}/num_objects"] == sum(len(line["objects"]) for line in lines)
        assert metrics[f"{decoding}/malformed"] == sum(len(line["failures"]) for line in lines)
        assert metrics[f"{decoding}/seconds"] > 0
        for box in ("argmax", "expected"):
            ap = evaluate_detections(split.annotations, folder / f"detections.{box}.json").AP
            assert metrics[f"{decoding}/{box}/AP"] == ap == 0.0
            # No shape is smaller than 32 x 32 px: an undefined AP is absent, not -1.
            assert metrics.get(f"{decoding}/{box}/AP_small", 0.0) >= 0.0
    assert metrics["constrained/malformed/unclosed"] == metrics["constrained/malformed"]
    assert metrics["constrained/num_objects"] > 0
    assert metrics["free/malformed"] > 0
    assert metrics["constrained/unknown_category"] == metrics["constrained/num_objects"], "random text names no shape"
    unknown = json.loads((tmp_path / "constrained" / "unknown.json").read_text())
    assert sum(unknown.values()) == metrics["constrained/unknown_category"]
    assert unregistered(metrics) == []
    of_boxes = {MetricName.parse(name).metric for name in metrics if MetricName.parse(name).boxes}
    assert of_boxes <= {metric.name for metric in (*detection_metrics(), *ANSWER_METRICS, *SERVED_METRICS)}
    json.dumps(metrics, allow_nan=False)


@contextlib.contextmanager
def some_answers_end_at_once(base):
    """The end is what the model itself prefers of some images; for the others the grammar has much to forbid."""
    direction = torch.randn(base.model.lm_head.in_features, generator=torch.Generator().manual_seed(1))

    def hook(module, args, logits):
        logits = logits.clone()
        logits[..., base.vocab.end_id] += 1000.0 * ((args[0] @ direction).sin() > 0)
        return logits

    handle = base.model.lm_head.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _tokens_by_image(answers: Sequence[ReadAnswer]) -> dict[int, list[int]]:
    return {answer.image_id: answer.token_ids.tolist() for answer in answers}


def test_free_decoding_takes_over_what_the_grammar_did_not_change(native, shapes: Path, tmp_path: Path) -> None:
    split, both = split_of(native, shapes), EvaluationSettings(batch_size=4, max_new_tokens=48)
    evaluation = split.evaluation(both)
    done: list[int] = []
    with some_answers_end_at_once(native):
        constrained = evaluation.answer("constrained", evaluation.queues)
        num_unforced = sum(answer.unforced for answer in constrained)
        assert 0 < num_unforced < NUM_IMAGES
        free = evaluation.answer("free", evaluation.queues, on_images=done.append)
        assert sum(done) == NUM_IMAGES
        constrained_of = {answer.image_id: answer for answer in constrained}
        assert len(free) == NUM_IMAGES
        for answer in free:
            assert (answer is constrained_of[answer.image_id]) == answer.unforced
        assert sum(answer.unforced for answer in free) == num_unforced
        metrics = split.run(both, tmp_path / "both")
        alone = split.run(replace(both, decoding=("free",)), tmp_path / "alone")
        # A process that takes another one's place knows nothing of its answers.
        late = split.evaluation(both).answer("free", evaluation.queues)
    assert _tokens_by_image(late) == _tokens_by_image(free)
    for name, value in without_time(alone).items():
        assert metrics[name] == pytest.approx(value, abs=1e-5), name
    answers = [(tmp_path / name / "free" / "answers.jsonl").read_text() for name in ("both", "alone")]
    assert answers[0] == answers[1]
    # Speed is of the answers that were written: their boxes a second and images a second, in one and the same time.
    written = [answer for answer in free if not answer.unforced]
    seconds = len(written) / metrics["free/images_per_second"]
    num_boxes = sum(len(answer.objects) for answer in written)
    assert metrics["free/boxes_per_second"] * seconds == pytest.approx(num_boxes)
    assert metrics["free/seconds"] > seconds
    with some_answers_end_at_once(native):
        fuller = split.run(replace(both, batch_size=NUM_IMAGES), tmp_path / "fuller")
    assert "constrained/images_per_second" in fuller
    assert "free/images_per_second" not in fuller, "what fills no batch says nothing of speed"


def test_ranks_share_the_work_and_change_nothing(native, shapes: Path, tmp_path: Path) -> None:
    # Queues are the same for any number of ranks: other neighbours would round other digits.
    split, settings = split_of(native, shapes), EvaluationSettings(batch_size=2, max_new_tokens=24)
    alone = split.run(settings, tmp_path / "one")
    evaluation, data = split.evaluation(settings), split.data()
    assert len(evaluation.queues) > 1
    sent: dict[str, list[ReadAnswer]] = {}

    def on_second_rank(way: str) -> list[ReadAnswer]:
        sent[way] = pickle.loads(pickle.dumps(evaluation.answer(way, evaluation.queues[1::2])))
        return []  # handed over to the first rank

    output = EvaluationFolder(tmp_path / "two")
    assert score_answers(data, settings, on_second_rank, output) == {}
    assert not output.path.exists()
    shared = score_answers(
        data, settings, lambda way: evaluation.answer(way, evaluation.queues[0::2]) + sent[way], output
    )
    assert without_time(shared) == without_time(alone)
    for decoding in settings.decoding:
        assert len(list((tmp_path / "one" / decoding).iterdir())) == 8
        for path in (tmp_path / "one" / decoding).glob("[!g]*"):  # who generated it is asked of each engine
            assert path.read_text() == (tmp_path / "two" / decoding / path.name).read_text()


def perfect_answers(split: Split) -> dict[int, list[Item]]:
    """What a perfect model would have written; the corners of every other box are swapped."""
    data = json.loads(split.annotations.read_text())
    images: dict[int, list[Item]] = {}
    for sample in split.samples:
        objects = images.setdefault(sample.image_id, [])
        for a in (a for a in data["annotations"] if a["image_id"] == sample.image_id):
            x, y, w, h = a["bbox"]
            norm = (x / sample.width, y / sample.height, (x + w) / sample.width, (y + h) / sample.height)
            norm = norm if len(objects) % 2 else (norm[2], norm[3], norm[0], norm[1])
            bins = tuple(min(999, round(1000 * c)) for c in norm)
            name, rank = CATEGORIES[a["category_id"] - 1], len(objects)
            objects.append(Item(name, bins, category_id=a["category_id"], expected=norm, score=1 / (1 + rank)))
    return images


def test_perfect_answers_score_one_and_missing_images_cost(native, shapes: Path, tmp_path: Path) -> None:
    split = split_of(native, shapes)
    images = perfect_answers(split)
    metrics = split.score(images, tmp_path, "constrained")
    assert metrics["constrained/expected/AP"] == pytest.approx(1.0)
    assert 0.9 < metrics["constrained/argmax/AP"] <= 1.0
    assert metrics["constrained/empty_images"] == metrics["constrained/unknown_category"] == 0
    detections = json.loads((tmp_path / "constrained" / "detections.argmax.json").read_text())
    assert all(d["bbox"][2] > 0 and d["bbox"][3] > 0 for d in detections)

    # Only the first two samples are given: on the whole split the other images count as empty.
    two = dict(list(images.items())[:2])
    partial = split.score(two, tmp_path, "constrained", num_images=2)
    subset = split.score(two, tmp_path, "constrained", num_images=2, is_subset=True)
    assert subset["constrained/expected/AP"] == pytest.approx(1.0)
    assert partial["constrained/expected/AP"] < 0.7


def test_the_published_headline_is_pycocotools_own(native, shapes: Path, tmp_path: Path, monkeypatch) -> None:
    split = split_of(native, shapes)
    images = perfect_answers(split)
    plain = {way: split.score(images, tmp_path, way) for way in ("constrained", "free")}
    for name in ("AP", "AP50", "AP75"):
        assert plain["constrained"][f"constrained/expected/{name}"] == plain["free"][f"free/expected/{name}"]
    monkeypatch.setattr("coordexp.evaluate.results.published_precision", lambda truth, detections: {"AP": 0.125})
    marked = split.score(images, tmp_path, "constrained")
    assert marked["constrained/expected/AP"] == 0.125
    assert marked["constrained/argmax/AP"] == plain["constrained"]["constrained/argmax/AP"]
    assert split.score(images, tmp_path, "free")["free/expected/AP"] == plain["free"]["free/expected/AP"]
    subset = split.score(images, tmp_path, "constrained", is_subset=True)
    assert subset["constrained/expected/AP"] == pytest.approx(1.0)
    # Boxes of one reading have one set of metrics, pycocotools' own where nothing is constrained.
    digits = {key: [thing._replace(expected=None) for thing in things] for key, things in images.items()}
    settings = EvaluationSettings(decoding=("free",), answer="qwen-json")
    metrics = split.score(digits, tmp_path, "free", settings=settings)
    argmax, expected = (
        {name.replace(kind, ""): value for name, value in metrics.items() if kind in name}
        for kind in ("argmax", "expected")
    )
    assert argmax == expected
    assert argmax["free//AP"] == 0.125


def test_details_are_written_where_they_are_asked_for(native, shapes: Path, tmp_path: Path) -> None:
    split = split_of(native, shapes)
    split.run(EvaluationSettings(batch_size=4, max_new_tokens=48), tmp_path)
    for decoding in ("constrained", "free"):
        folder = tmp_path / decoding
        assert analyse(split.annotations, folder) == Analysis.read(folder / "analysis.json")
        curves = Distributions.read(folder / "distributions.json")
        lines = {
            row["image_id"]: row["objects"]
            for row in map(json.loads, (folder / "objects.jsonl").read_text().splitlines())
        }
        assert [image.image_id for image in curves.images] == sorted(sample.image_id for sample in split.samples)
        num_objects = 0
        for image in curves.images:
            assert len(image.objects) == min(4, len(lines[image.image_id]))
            for curves_of_object, row in zip(image.objects, lines[image.image_id], strict=False):
                assert list(curves_of_object.bins) == row["bins"]
                assert list(curves_of_object.expected) == row["expected"]
                for curve, mean, width in zip(curves_of_object.curves, row["expected"], row["width"], strict=True):
                    p, k = np.array(curve.units) / 1e5, np.arange(len(curve.units)) + curve.start
                    assert p.sum() == pytest.approx(1, abs=5e-3)
                    assert (p @ k) / p.sum() / 1000 == pytest.approx(mean, abs=2e-3)
                    assert (p @ (k - p @ k / p.sum()) ** 2 / p.sum()) ** 0.5 == pytest.approx(width, rel=2e-2)
                num_objects += 1
        assert num_objects > 0 or decoding == "free"


def test_unknown_descriptions_are_counted_and_aliases_help(native, shapes: Path, tmp_path: Path) -> None:
    split = split_of(native, shapes)
    plain, aliased = (split.data(aliases=aliases).categories for aliases in (None, {"Crimson disc": "red circle"}))
    assert plain.find("crimson disc") is None
    assert aliased.find("crimson disc") == plain.find("red circle")
    ids = [sample.image_id for sample in split.samples]

    def metrics_with(category_id: int | None) -> dict[str, float]:
        images = {key: [Item("crimson disc", category_id=category_id)] * 2 for key in ids}
        answers = answers_of(images, failures={key: ["stray_tokens"] for key in ids}, truncated=ids)
        return split.score(images, tmp_path, "free", answers=answers)

    metrics = metrics_with(None)
    assert metrics["free/unknown_category"] == metrics["free/num_objects"] == 2 * NUM_IMAGES
    assert metrics["free/malformed/stray_tokens"] == metrics["free/truncated_images"] == NUM_IMAGES
    assert metrics["free/malformed_fraction"] == pytest.approx(1 / 3)
    assert json.loads((tmp_path / "free" / "detections.argmax.json").read_text()) == []
    assert metrics_with(1)["free/unknown_category"] == 0
    assert len(json.loads((tmp_path / "free" / "detections.argmax.json").read_text())) == 2 * NUM_IMAGES


def test_what_does_not_fit_together_is_refused(native, shapes: Path, tmp_path: Path) -> None:
    split = split_of(native, shapes)
    with pytest.raises(DataError, match=split.annotations.name):
        split.data(num_images=0)
    answers = answers_of({split.samples[0].image_id: []})
    for wrong, num_images in ((answers * 2, 2), (answers, NUM_IMAGES), (answers_of({77: []}), 1)):
        with pytest.raises(DataError, match=rf"\b{len(wrong)} answers.*\b{num_images} images"):
            split.score({}, tmp_path, "free", answers=wrong, num_images=num_images)
    assert not list(tmp_path.glob("free/detections*"))
