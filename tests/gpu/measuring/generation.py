"""Answers to images: how fast the product generates and scores them.

Random weights never end an answer. A script makes every answer the annotated one, so that lengths are those of COCO:
behind the grammar, all but the next token is forbidden.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.data.batch import EncodedSample
from coordexp.data.sample import Objects, Sample
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.evaluate.evaluation import EvaluationSpec, SplitEvaluation
from coordexp.evaluate.generate.generation import (
    GeneratedSequence,
    evaluation_mode,
    generate_sequences,
)
from coordexp.evaluate.generate.parse import SequenceParser
from coordexp.evaluate.generate.rows import GenerationSpec
from coordexp.files import write_json
from coordexp.metrics import Decoding
from coordexp.runs.folder import EvaluationFolder
from coordexp.train.run import set_up_process
from coordexp.train.setup.components import Components
from tests.benchmarks.bench_evaluate import HEIGHT, WIDTH, make_records, make_truth
from tests.benchmarks.bench_generate import plain_generate, scripted

from .record import GIB, Cell, Numbers
from .shapes import Setting, components, configured

NOTES = (
    "Random weights never end an answer: each is made the annotated one, token by token, behind the grammar. Lengths "
    "are COCO's (7.3 objects on average, at most 93); a queue of four batches passes through the rows of one, the "
    "longest answers first, as in an evaluation.",
    "val2017_minutes: 5,000 images at the speed of this cell; scoring comes on top, see its cells.",
    "step_ms: of one token of each row, from two runs of different length; prefill_ms: of a batch until its first "
    "token, images read and the vision tower included.",
    "transformers' generate: the same answers by batches that wait for their longest answer, without a record of them; "
    "its step_ms is that of the rows.",
)
_VAL2017 = 5_000
_PROBE_STEPS = (4, 12)
_BATCHES = 4  # of a queue


def generate_cells(base: Setting) -> list[Cell]:
    """Return the cells of generation, the most telling first, and those of scoring."""
    on_gpu = torch.cuda.is_available()
    sizes = (128, 32, 256) if on_gpu else (2,)
    seconds = 60.0 if on_gpu else 1.0
    cells = [
        Cell(f"{decoding} batch {size}", seconds, _generating(base, decoding, size))
        for size in sizes
        for decoding in ("constrained", "free")
    ]
    plain = f"constrained batch {sizes[0]} transformers' generate"
    cells.append(Cell(plain, seconds, _generating(base, "constrained", sizes[0], plain=True)))
    num_scored = _VAL2017 if base.size != "tiny" else 100
    scoring = [Cell(f"scoring {way}, {num_scored:,} images", 10.0, _scoring(way, num_scored)) for way in _WAYS]
    return [*cells[:1], *scoring, *cells[1:]]


_WAYS: tuple[Decoding, ...] = ("constrained", "free")


def _generating(
    base: Setting, decoding: Decoding, batch_size: int, *, plain: bool = False
) -> Callable[[float], Numbers]:
    setting = replace(base, num_images=_BATCHES * batch_size)
    return lambda left: generate(setting, decoding=decoding, seconds=left, plain=plain)


def generate(setting: Setting, *, decoding: Decoding, seconds: float, plain: bool = False) -> Numbers:
    """Generate one queue, after short answers that load kernels and tell how long it will take."""
    config = configured(setting, Path(tempfile.gettempdir()) / "coordexp-campaign")
    set_up_process(config)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    parts = components(config, setting.size)
    answering = _Answering(parts, decoding, batch_size=setting.num_images // _BATCHES)
    answering.run(2, num_batches=1)  # loads kernels
    # A limit of n tokens takes n - 1 steps where that is a multiple of the steps between two looks.
    short, long = (answering.run(1 + steps, num_batches=1)[1] for steps in _PROBE_STEPS)
    step = (long - short) / (_PROBE_STEPS[1] - _PROBE_STEPS[0])
    first_seconds = short - _PROBE_STEPS[0] * step
    expected = _BATCHES * first_seconds + step * (answering.waited_for if plain else answering.kept_busy)
    if expected > seconds:
        raise RuntimeError(f"steps of {1000 * step:.1f} ms would take about {expected:.0f} s; {seconds:.0f} left")
    written, num_images = sum(map(len, answering.answers)), len(answering.answers)
    found: dict[str, object] = {}
    if plain:
        taken, num_objects = answering.run_plain(), sum(map(answering.num_objects, answering.answers))
    else:
        sequences, taken = answering.run(answering.longest)
        started = time.perf_counter()
        records = [answering.parser.record(seq) for seq in sequences]
        found["parsing_ms_an_image"] = 1000 * (time.perf_counter() - started) / num_images
        num_objects = sum(len(record.objects) for record in records)
    return found | {
        "images_s": num_images / taken,
        "boxes_s": num_objects / taken,
        "tokens_s": written / taken,
        "val2017_minutes": _VAL2017 / num_images * taken / 60,
        "prefill_ms": 1000 * first_seconds,
        "step_ms": 1000 * step,
        "longest_answer": answering.longest,
        "mean_answer": written / num_images,
        "objects": num_objects,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None,
    }


class _Answering:
    """Generates the annotated answers of one queue, as far as is asked."""

    def __init__(self, parts: Components, decoding: Decoding, *, batch_size: int) -> None:
        encoding = parts.encoding
        self._parts, self._samples = parts, encoding.dataset(parts.val.samples, with_targets=False)
        self._batch_size = batch_size
        written = encoding.dataset(parts.val.samples)
        names = dict(enumerate(sorted({name for sample in parts.val.samples for name in sample.objects.descs})))
        self.parser = SequenceParser(
            encoding.vocab, encoding.tokenizer, categories=CategoryIndex(names), score="coord_desc"
        )
        self.answers = [_answer(written[index], end_id=self.parser.end_id) for index in range(len(self._samples))]
        self._queue = sorted(range(len(self.answers)), key=lambda index: -len(self.answers[index]))
        self.longest = max(map(len, self.answers)) + 1
        self._grammar = None
        if decoding == "constrained":
            self._grammar = self.parser.grammar(parts.model.config.get_text_config().vocab_size)

    @property
    def _device(self) -> torch.device:
        return next(self._parts.model.parameters()).device

    @property
    def _batches(self) -> list[list[int]]:
        """Batches as one would make them who knows the lengths of prompts alone."""
        order = sorted(self._queue, key=lambda index: -self._samples.lengths[index])
        return [order[at : at + self._batch_size] for at in range(0, len(order), self._batch_size)]

    @property
    def waited_for(self) -> int:
        """Steps of batches that wait for their longest answer."""
        return sum(max(len(self.answers[index]) for index in batch) + 1 for batch in self._batches)

    @property
    def kept_busy(self) -> int:
        """Steps of rows that are given on, at most."""
        return sum(map(len, self.answers)) // self._batch_size + self.longest

    def num_objects(self, answer: Sequence[int]) -> int:
        """Return how many objects an answer has."""
        return list(answer).count(self.parser.markers.close_id)

    def run(self, max_new_tokens: int, *, num_batches: int = _BATCHES) -> tuple[list[GeneratedSequence], float]:
        """Return the sequences, and the seconds they took."""
        _wait()
        started = time.perf_counter()
        script = scripted(self.answers, end_id=self.parser.end_id, device=self._device)
        with script, evaluation_mode(self._parts.model):
            found = generate_sequences(
                self._parts.model,
                self._samples,
                spec=self._spec(max_new_tokens),
                grammar=self._grammar,
                queues=[self._queue[: num_batches * self._batch_size]],
                batch_size=self._batch_size,
            )
        _wait()
        return found, time.perf_counter() - started

    def run_plain(self) -> float:
        """Return the seconds that transformers' own ``generate`` takes for the same answers, batch by batch."""
        model = inner_model(self._parts.model)
        _wait()
        started = time.perf_counter()
        with evaluation_mode(self._parts.model), torch.inference_mode():
            for batch in self._batches:
                samples, answers = [self._samples[index] for index in batch], [self.answers[index] for index in batch]
                longest = max(map(len, answers)) + 1
                found = plain_generate(model, samples, answers, spec=self._spec(longest))
                for row, answer in zip(found, answers, strict=True):
                    assert row[: len(answer)] == answer
        _wait()
        return time.perf_counter() - started

    def _spec(self, max_new_tokens: int) -> GenerationSpec:
        encoding, parser = self._parts.encoding, self.parser
        pad_id = encoding.tokenizer.pad_token_id
        assert isinstance(pad_id, int)
        return GenerationSpec(
            max_new_tokens=max_new_tokens,
            pad_id=pad_id,
            image_token_id=encoding.prompt.image_token_id,
            image_spec=encoding.image_spec,
            end_id=parser.end_id,
            number_ids=parser.number_ids,
            markers=parser.markers,
        )


def _answer(sample: EncodedSample, *, end_id: int) -> list[int]:
    """Return the tokens of an answer without what follows its end."""
    return sample.target_ids[: sample.target_ids.index(end_id)]


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _scoring(decoding: Decoding, num_images: int) -> Callable[[float], Numbers]:
    return lambda left: score(decoding, num_images)


def score(decoding: Decoding, num_images: int) -> Numbers:
    """Time everything behind generation: reading the ground truth, matching, metrics, analysis, all files."""
    rng = np.random.default_rng(0)
    document = make_truth(rng, num_images)
    records = make_records(rng, document)
    nothing = Objects((), np.zeros((0, 4)))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_json(folder / "instances.json", document)
        samples = [Sample(folder / f"{i}.jpg", WIDTH, HEIGHT, image_id=i, objects=nothing) for i in range(num_images)]
        started = time.perf_counter()
        evaluation = SplitEvaluation(
            read_ground_truth(folder / "instances.json"), samples, EvaluationSpec(decoding=(decoding,))
        )
        metrics = evaluation.run(lambda way: [records], EvaluationFolder(folder / "eval"))
        seconds = time.perf_counter() - started
    num_boxes = sum(len(record.objects) for record in records)
    return {"score_seconds": seconds, "boxes_s": num_boxes / seconds, "AP": metrics[f"{decoding}/expected/AP"]}
