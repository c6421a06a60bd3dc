"""Answers in rows that are given on, and by transformers' ``generate``, whose batches wait for their longest answer.

``python tests/benchmarks/bench_generate.py [IMAGES]`` (default 256). A small Qwen3-VL with random weights on a CPU, one
thread; every answer is forced to be the annotated one of a COCO-like image (7.3 objects on average, at most 93), so
that lengths are COCO's: it says what writing costs, and nothing of its being right. CPU seconds, and forward passes
that predict a token.
"""

import contextlib
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordexp.data.batch import EncodedSample
from coordexp.evaluate.generate import generation
from coordexp.evaluate.generate.generation import generate_queue, image_queues
from coordexp.evaluate.generate.model import AnsweringModel
from coordexp.evaluate.generate.rows import AnswerRows
from tests.benchmarks.coco_lengths import coco_scenes
from tests.support.model_fixtures import random_base
from tests.support.plain_generate import left_padded

Answers = Sequence[Sequence[int]]


def table(answers: Answers, *, end_id: int, device: torch.device) -> Tensor:
    """Return ``[N, T]`` the tokens of each answer, its end token behind it."""
    longest = max(map(len, answers)) + 1
    return torch.tensor([[*answer, *[end_id] * (longest - len(answer))] for answer in answers], device=device)


@contextlib.contextmanager
def scripted(answers: Mapping[int, Sequence[int]], *, end_id: int, device: torch.device) -> Generator[None]:
    """Make the next token of each answer, image by image, the likeliest by far; behind it, its end token."""
    ids_NT = table([*answers.values()], end_id=end_id, device=device)
    rows_of = {image_id: row for row, image_id in enumerate(answers)}

    class ScriptedRows(AnswerRows):
        script_BT: Tensor

        def begin(self, image_ids: Sequence[int], *prompt: object, **keys: object) -> list[int]:
            if not hasattr(self, "script_BT"):
                self.script_BT = ids_NT[:1].repeat(len(self), 1)
            rows = super().begin(image_ids, *prompt, **keys)
            self.script_BT[rows] = ids_NT[[rows_of[image_id] for image_id in image_ids]]
            return rows

        def choose(self, logits_NV: Tensor, rows: Sequence[int] | None = None) -> None:
            written_B = self.state.num_written_B
            at_N = written_B if rows is None else written_B[list(rows)]
            script_NT = self.script_BT if rows is None else self.script_BT[list(rows)]
            next_N1 = script_NT.gather(1, at_N.clamp(max=script_NT.shape[1] - 1).unsqueeze(1))
            lead_N1 = torch.full_like(next_N1, 1000, dtype=logits_NV.dtype)
            super().choose(logits_NV.scatter_add(1, next_N1, lead_N1), rows)

        def keep_used(self) -> None:
            self.script_BT = self.script_BT[self.used]
            super().keep_used()

    with mock.patch.object(generation, "AnswerRows", ScriptedRows):
        yield


class Script(LogitsProcessor):
    """The same for ``generate``."""

    def __init__(self, ids_NT: Tensor, prompt: int) -> None:
        self._ids_NT, self._prompt = ids_NT, prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return ``scores`` ``[B, V]`` with -inf everywhere else."""
        only_B1 = self._ids_NT[:, min(input_ids.shape[1] - self._prompt, self._ids_NT.shape[1] - 1)].unsqueeze(1)
        return torch.full_like(scores, -torch.inf).scatter_(1, only_B1, scores.gather(1, only_B1))


def plain_generate(
    model: PreTrainedModel, samples: Sequence[EncodedSample], answers: Answers, *, answering: AnsweringModel
) -> list[list[int]]:
    """Return the tokens of one batch by transformers' ``generate``, padded on the left."""
    prompt = max(sample.length for sample in samples)
    end_id, pad_id = answering.answers.end_id, answering.pad_id
    ids_NT = table(answers, end_id=end_id, device=model.device)
    found = model.generate(
        **left_padded(
            samples,
            pad_id=pad_id,
            image_token_id=answering.image_token_id,
            image_spec=answering.image_spec,
            model=model,
        ),
        logits_processor=LogitsProcessorList([Script(ids_NT, prompt)]),
        generation_config=GenerationConfig(
            do_sample=False,
            max_new_tokens=max(map(len, answers)) + 1,
            eos_token_id=[end_id, pad_id],
            pad_token_id=pad_id,
        ),
    )
    return found[:, prompt:].tolist()


def main(num_images: int) -> None:
    """Write the same answers both ways, at two sizes of a batch."""
    torch.set_num_threads(1)
    base = random_base("native", seed=7)
    samples = [base.sample(number) for number in range(num_images)]
    word, vocab = base.tokenizer.encode("circle")[0], base.vocab
    one = [vocab.obj_start_id, word, vocab.box_start_id, *[vocab.coord_ids.start] * 4, vocab.obj_end_id]
    answers: Answers = [one * int(objects) for objects in coco_scenes(num_images)[1]]
    answering, longest = base.answering, max(map(len, answers)) + 1
    passes: list[int] = []
    base.model.lm_head.register_forward_hook(lambda *_: passes.append(1))
    print(f"{num_images} images, {sum(map(len, answers)):,} tokens, the longest answer {max(map(len, answers))}")
    for batch_size in (32, 128):
        lengths = [sample.length for sample in samples]
        # As an evaluation deals them out, which knows how many objects there are, and as one knows nothing.
        queues = image_queues(lengths, expected=list(map(len, answers)), batch_size=batch_size)
        order = sorted(range(num_images), key=lambda index: -lengths[index])
        batches = [order[at : at + batch_size] for at in range(0, num_images, batch_size)]
        cost: dict[str, tuple[float, int]] = {}
        for way in ("generate", "rows"):
            passes.clear()
            started = time.process_time()
            script = scripted(dict(enumerate(answers)), end_id=vocab.end_id, device=base.model.device)
            with script, answering.evaluating(), torch.inference_mode():
                if way == "rows":
                    limits = {"grammar": None, "batch_size": batch_size, "max_new_tokens": longest}
                    written = {
                        answer.image_id: answer.ids.tolist()
                        for queue in queues
                        for answer in generate_queue(answering, samples, queue, **limits)
                    }
                    found = [written[index] for queue in queues for index in queue]
                else:
                    found = [
                        row[: len(answers[index])]
                        for batch in batches
                        for index, row in zip(
                            batch,
                            plain_generate(
                                base.model,
                                [samples[i] for i in batch],
                                [answers[i] for i in batch],
                                answering=answering,
                            ),
                            strict=True,
                        )
                    ]
            cost[way] = time.process_time() - started, len(passes)
            groups = queues if way == "rows" else batches
            assert found == [list(answers[index]) for group in groups for index in group], "all was written"
        (plain, plain_passes), (ours, our_passes) = cost["generate"], cost["rows"]
        print(
            f"batch {batch_size:4}: generate {plain:6.1f} s, {plain_passes:5} passes   rows {ours:6.1f} s, "
            f"{our_passes:5} passes   {plain / ours:.2f} times as fast, {plain_passes / our_passes:.2f} times fewer"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
