"""Answers to images: how fast the product generates and scores them.

Random weights never end an answer. A script makes every answer the annotated one, so that lengths are those of COCO
and a batch runs until its longest answer ends: after the grammar, one more processor forbids all but the next token.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor

from coordexp.data.batch import EncodedSample
from coordexp.data.sample import Objects, Sample
from coordexp.detection.categories import CategoryIndex
from coordexp.detection.ground_truth import read_ground_truth
from coordexp.evaluate.evaluation import EvaluationSpec, SplitEvaluation
from coordexp.evaluate.generate import generation
from coordexp.evaluate.generate.generation import (
    GeneratedSequence,
    GenerationSpec,
    evaluation_mode,
    generate_sequences,
    static_batches,
)
from coordexp.evaluate.generate.parse import SequenceParser
from coordexp.files import write_json
from coordexp.metrics import Decoding
from coordexp.runs.folder import EvaluationFolder
from coordexp.train.run import set_up_process
from coordexp.train.setup.components import Components
from tests.benchmarks.bench_evaluate import HEIGHT, WIDTH, make_records, make_truth

from .record import GIB, Cell, Numbers
from .shapes import Setting, components, configured

NOTES = (
    "Random weights never end an answer: each is made the annotated one, token by token, behind the grammar. Lengths "
    "are COCO's (7.3 objects on average, at most 93), and a batch runs until its longest answer ends.",
    "val2017_minutes: 5,000 images at the speed of this cell; scoring comes on top, see its cells.",
    "step_ms: of one token of each answer, from two runs of different length; prefill_ms: of a batch until its first "
    "token, images read and the vision tower included.",
    "static cache: keys and values in memory of the full length, so that transformers compiles the step and replays it "
    "as one CUDA graph; the product does not do so yet. compiled_seconds: what the first answers take longer.",
)
_VAL2017 = 5_000
_PROBE_TOKENS = 8


def generate_cells(base: Setting) -> list[Cell]:
    """Return the cells of generation, the most telling first, and those of scoring."""
    on_gpu = torch.cuda.is_available()
    sizes = (128, 32, 256) if on_gpu else (2,)
    seconds = 20.0 if on_gpu else 1.0
    cells = [
        Cell(f"{decoding} batch {size}", seconds, _generating(base, decoding, size))
        for size in sizes
        for decoding in ("constrained", "free")
    ]
    still = f"constrained batch {sizes[0]} static cache"  # last: how long it compiles nobody knows
    cells.append(Cell(still, seconds, _generating(base, "constrained", sizes[0], static_cache=True)))
    num_scored = _VAL2017 if base.size != "tiny" else 100
    scoring = [Cell(f"scoring {way}, {num_scored:,} images", 10.0, _scoring(way, num_scored)) for way in _WAYS]
    return [*cells[:1], *scoring, *cells[1:]]


_WAYS: tuple[Decoding, ...] = ("constrained", "free")


def _generating(
    base: Setting, decoding: Decoding, batch_size: int, *, static_cache: bool = False
) -> Callable[[float], Numbers]:
    setting = replace(base, num_images=batch_size)
    return lambda left: generate(setting, decoding=decoding, seconds=left, static_cache=static_cache)


class Script(LogitsProcessor):
    """Forbids all but the next token of each answer; behind an answer, its end token."""

    def __init__(self, answers: Sequence[Sequence[int]], *, end_id: int, device: torch.device) -> None:
        longest = max(map(len, answers))
        rows = [[*answer, *[end_id] * (longest + 1 - len(answer))] for answer in answers]
        self._tokens_TB = torch.tensor(rows, device=device).t().contiguous()
        self._step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return ``scores`` ``[B, V]`` with -inf everywhere else."""
        only_B1 = self._tokens_TB[min(self._step, len(self._tokens_TB) - 1)].unsqueeze(1)
        self._step += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, only_B1, scores.gather(1, only_B1))


def generate(setting: Setting, *, decoding: Decoding, seconds: float, static_cache: bool = False) -> Numbers:
    """Generate one batch, after short ones that load kernels and tell how long it will take."""
    config = configured(setting, Path(tempfile.gettempdir()) / "coordexp-campaign")
    set_up_process(config)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    parts = components(config, setting.size)
    answering = _Answering(parts, decoding)
    answering.run(2)  # loads kernels
    first_seconds = answering.run(1)[1]
    probe_seconds = answering.run(1 + _PROBE_TOKENS)[1]
    step = (probe_seconds - first_seconds) / _PROBE_TOKENS
    longest = max(map(len, answering.answers)) + 1
    expected = first_seconds + step * longest
    if expected > seconds:
        raise RuntimeError(f"{longest} tokens at {1000 * step:.1f} ms take about {expected:.0f} s; {seconds:.0f} left")
    found: dict[str, object] = {}
    with _static_cache() if static_cache else contextlib.nullcontext():
        first = answering.run(longest)[1] if static_cache else 0.0
        sequences, taken = answering.run(longest)
    if static_cache:
        found["compiled_seconds"] = first - taken
    started = time.perf_counter()
    records = [answering.parser.record(seq) for seq in sequences]
    parsing = time.perf_counter() - started
    num_objects = sum(len(record.objects) for record in records)
    written = sum(map(len, answering.answers))
    return found | {
        "images_s": len(records) / taken,
        "boxes_s": num_objects / taken,
        "tokens_s": written / taken,
        "val2017_minutes": _VAL2017 / len(records) * taken / 60,
        "prefill_ms": 1000 * first_seconds,
        "step_ms": 1000 * (taken - first_seconds) / (longest - 1),
        "longest_answer": longest,
        "mean_answer": written / len(records),
        "objects": num_objects,
        "parsing_ms_an_image": 1000 * parsing / len(records),
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None,
    }


@contextlib.contextmanager
def _static_cache() -> Generator[None]:
    """Have answers generated with a cache of fixed size."""
    plain = generation._greedy  # pyright: ignore[reportPrivateUsage]

    def fixed(spec: GenerationSpec) -> GenerationConfig:
        config = plain(spec)
        config.cache_implementation = "static"
        return config

    with mock.patch.object(generation, "_greedy", fixed):
        yield


class _Answering:
    """Generates the annotated answers of one batch, as far as is asked."""

    def __init__(self, parts: Components, decoding: Decoding) -> None:
        encoding = parts.encoding
        self._parts, self._samples = parts, encoding.dataset(parts.val.samples, with_targets=False)
        written = encoding.dataset(parts.val.samples)
        self._device = next(parts.model.parameters()).device
        names = dict(enumerate(sorted({name for sample in parts.val.samples for name in sample.objects.descs})))
        self.parser = SequenceParser(
            encoding.vocab, encoding.tokenizer, categories=CategoryIndex(names), score="coord_desc"
        )
        self._batch = static_batches(self._samples.lengths, batch_size=len(self._samples))[0]
        self.answers = [_answer(written[index], end_id=self.parser.end_id) for index in self._batch]
        self._grammar = None
        if decoding == "constrained":
            self._grammar = self.parser.grammar(parts.model.config.get_text_config().vocab_size)

    def run(self, max_new_tokens: int) -> tuple[list[GeneratedSequence], float]:
        """Return the sequences, and the seconds they took."""
        encoding, parser = self._parts.encoding, self.parser
        pad_id = encoding.tokenizer.pad_token_id
        assert isinstance(pad_id, int)
        spec = GenerationSpec(
            max_new_tokens=max_new_tokens,
            pad_id=pad_id,
            image_token_id=encoding.prompt.image_token_id,
            image_spec=encoding.image_spec,
            end_id=parser.end_id,
            number_ids=parser.number_ids,
            markers=parser.markers,
        )
        script = Script(self.answers, end_id=parser.end_id, device=self._device)
        _wait()
        started = time.perf_counter()
        with evaluation_mode(self._parts.model):
            found = generate_sequences(
                self._parts.model,
                self._samples,
                spec=spec,
                grammar=self._grammar,
                batches=[self._batch],
                processors=[script],
            )
        _wait()
        return found, time.perf_counter() - started


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
        metrics = evaluation.run(lambda way, sample: [records], EvaluationFolder(folder / "eval"))
        seconds = time.perf_counter() - started
    num_boxes = sum(len(record.objects) for record in records)
    return {"score_seconds": seconds, "boxes_s": num_boxes / seconds, "AP": metrics[f"{decoding}/expected/AP"]}
