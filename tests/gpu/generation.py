"""Answers to images: how fast the product generates them, and how fast transformers' ``generate``.

Random weights never end an answer. A script makes every answer the annotated one, so that lengths are those of COCO:
behind the grammar, all but the next token is forbidden.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.data.batch import EncodedSample
from coordexp.evaluate.generate.answer import Answer
from coordexp.evaluate.generate.formats import SequenceFormat
from coordexp.evaluate.generate.generation import generate_queue
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.metrics import Decoding
from coordexp.train.setup.components import Components
from tests.benchmarks.bench_generate import plain_generate, scripted

from .record import GIB, Cell, Numbers
from .setting import Setting, components, configured

NOTES = (
    "Random weights never end an answer: each is made the annotated one, token by token, behind the grammar. Lengths "
    "are COCO's (7.3 objects on average, at most 93); a queue of four batches passes through the rows of one, the "
    "longest answers first, as in an evaluation.",
    "val2017_minutes: 5,000 images at the speed of this cell; scoring comes on top.",
    "batch 1 and 16: greedy answers by the same weights and images, without a script. Random weights give nearly flat "
    "distributions, in which rounding changes the likeliest token more often than in a trained model.",
    "transformers' generate: the same answers by batches that wait for their longest answer, without a record of them.",
)
_VAL2017 = 5_000
_BATCHES = 4  # of a queue
_COMPARED_IMAGES, _COMPARED_TOKENS = 32, 36  # four objects each; one by one this takes half a minute at 4B


def generate_cells(base: Setting) -> list[Cell]:
    """Return the cells, the most telling first."""
    on_gpu = torch.cuda.is_available()
    sizes, seconds = ((128, 32, 256), 60.0) if on_gpu else ((2,), 1.0)
    ways: tuple[Decoding, ...] = ("constrained", "free")
    cells = [Cell(f"{way} batch {size}", seconds, _generating(base, way, size)) for size in sizes for way in ways]
    plain = _generating(base, "constrained", sizes[0], plain=True)
    compared = replace(base, num_images=_COMPARED_IMAGES if on_gpu else 4)
    return [
        cells[0],
        Cell("the same answers at batch 1 and 16", seconds, lambda: compare_batch_sizes(compared)),
        Cell(f"constrained batch {sizes[0]} transformers' generate", seconds, plain),
        *cells[1:],
    ]


def _generating(base: Setting, decoding: Decoding, batch_size: int, *, plain: bool = False) -> Callable[[], Numbers]:
    setting = replace(base, num_images=_BATCHES * batch_size)
    return lambda: generate(setting, decoding=decoding, batch_size=batch_size, plain=plain)


def generate(setting: Setting, *, decoding: Decoding, batch_size: int, plain: bool = False) -> Numbers:
    """Generate one queue; a few tokens before it load the kernels."""
    parts, answering = _answering(setting)
    encoding, model = parts.encoding, parts.model
    end_id = SequenceFormat(encoding.vocab, encoding.tokenizer).end_id
    samples, written = encoding.dataset(parts.val.samples, with_targets=False), encoding.dataset(parts.val.samples)
    answers = [_answer(written[index], end_id=end_id) for index in range(len(samples))]
    longest = max(map(len, answers)) + 1
    longest_first = sorted(range(len(answers)), key=lambda index: -len(answers[index]))
    by_prompt = sorted(longest_first, key=lambda index: -samples.lengths[index])  # as one knows who has only prompts
    batches = [by_prompt[at : at + batch_size] for at in range(0, len(by_prompt), batch_size)]

    def write(max_new_tokens: int, queue: list[int]) -> None:
        grammar = answering.grammar if decoding == "constrained" else None
        limits = {"batch_size": batch_size, "max_new_tokens": max_new_tokens}
        generate_queue(answering, samples, queue, grammar=grammar, **limits)

    def write_plainly() -> None:
        for batch in batches:
            own = [answers[index] for index in batch]
            chosen = [samples[index] for index in batch]
            found = plain_generate(inner_model(model), chosen, own, answering=answering)
            assert all(row[: len(answer)] == answer for row, answer in zip(found, own, strict=True))

    by_image = {sample.image_id: answer for sample, answer in zip(parts.val.samples, answers, strict=True)}
    script = scripted(by_image, end_id=end_id, device=answering.device)
    with script, answering.evaluating(), torch.inference_mode():
        write(4, longest_first[:batch_size])
        started = _now()
        write_plainly() if plain else write(longest, longest_first)
        taken = _now() - started
    num_tokens, num_objects = sum(map(len, answers)), sum(row.count(encoding.vocab.obj_end_id) for row in answers)
    return {
        "images_s": len(answers) / taken,
        "boxes_s": num_objects / taken,
        "tokens_s": num_tokens / taken,
        "val2017_minutes": _VAL2017 / len(answers) * taken / 60,
        "longest_answer": longest,
        "mean_answer": num_tokens / len(answers),
        "objects": num_objects,
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else None,
    }


def compare_batch_sizes(setting: Setting) -> Numbers:
    """Write the same images' answers alone and 16 at a time; say how many are equal, and how far the others part.

    In half precision a batch of another size is rounded otherwise. What that does to an answer is the noise of every
    evaluation in bfloat16.
    """
    parts, answering = _answering(setting)
    samples = parts.encoding.dataset(parts.val.samples, with_targets=False)
    coord_ids = frozenset(parts.encoding.vocab.coord_ids)
    answers: dict[int, dict[int, Answer]] = {}
    with answering.evaluating(), torch.inference_mode():
        for batch_size in (1, 16):
            written = generate_queue(
                answering,
                samples,
                range(len(samples)),
                grammar=answering.grammar,
                batch_size=batch_size,
                max_new_tokens=_COMPARED_TOKENS,
            )
            answers[batch_size] = {answer.image_id: answer for answer in written}

    num_identical, mean_differences, bin_differences = 0, [0.0], [0]
    for image_id, alone in answers[1].items():
        batched = answers[16][image_id]
        pairs = list(zip(alone.ids.tolist(), batched.ids.tolist(), strict=False))
        num_shared = next((index for index, (a, b) in enumerate(pairs) if a != b), len(pairs))
        num_identical += alone.ids.tolist() == batched.ids.tolist()

        is_coord = [token in coord_ids for token, _ in pairs[:num_shared]]
        means = abs(alone.expected[:num_shared] - batched.expected[:num_shared])[is_coord]
        mean_differences += (1000 * means).tolist()
        if num_shared < len(pairs) and coord_ids.issuperset(pairs[num_shared]):
            bin_differences.append(abs(pairs[num_shared][0] - pairs[num_shared][1]))
    return {
        "images": len(answers[1]),
        "identical_fraction": num_identical / len(answers[1]),
        "largest_expected_difference_bins": max(mean_differences),
        "largest_argmax_difference_bins": max(bin_differences),
    }


def _answering(setting: Setting) -> tuple[Components, AnsweringModel]:
    """Return the parts of a run of this setting, on its device, and the model that answers."""
    parts = components(configured(setting))
    if torch.cuda.is_available():
        parts.model.to("cuda")
        torch.cuda.reset_peak_memory_stats()
    encoding = parts.encoding
    form = SequenceFormat(encoding.vocab, encoding.tokenizer)
    answering = AnsweringModel(parts.model, encoding.tokenizer, encoding.image_spec, form, encode=encoding.dataset)
    return parts, answering


def _answer(sample: EncodedSample, *, end_id: int) -> list[int]:
    """Return the tokens of an answer without what follows its end."""
    return sample.target_ids[: sample.target_ids.index(end_id)]


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
