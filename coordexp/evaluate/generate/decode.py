"""One process's part of an evaluation: queues of images in, records out."""

import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.data.dataset import IMAGE_TOKEN
from coordexp.data.patches import ImageSpec
from coordexp.errors import ConfigError, TokenizerError
from coordexp.evaluate.evaluation import SplitEvaluation
from coordexp.evaluate.generate.generation import (
    GeneratedSequence,
    MeasuredSamples,
    evaluation_mode,
    generate_sequences,
    image_queues,
)
from coordexp.evaluate.generate.given import GivenAnswer, read_sequences, target_ids
from coordexp.evaluate.generate.rows import GenerationSpec
from coordexp.evaluate.objects import ImageRecord
from coordexp.metrics import Decoding


class AnswerFormat(Protocol):
    """How a model answers: which tokens end an answer and carry its numbers, how it is constrained, how it is read."""

    @property
    def end_id(self) -> int:
        """The token that ends an answer."""
        ...

    @property
    def number_ids(self) -> range:
        """The tokens that carry numbers, in the order of their values; empty where none are looked at."""
        ...

    @property
    def open_id(self) -> int | None:
        """The token that opens an object; None where there is no such token."""
        ...

    def grammar(self, vocab_size: int) -> ObjectGrammar | None:
        """Return what constrained decoding allows, for a model with so many logits; None if there is no such thing."""
        ...

    def record(self, seq: GeneratedSequence) -> ImageRecord:
        """Return everything that is kept of one image; nothing that was generated is an error."""
        ...


class SplitDecoder:
    """Generates and parses the images of an evaluation, queue by queue.

    Attributes:
        samples: the images with their prompts, encoded when they are read.
        queues: the images that pass through the same rows, as indices of the samples. Processes that share a split
            share out these queues: the files are then the same for any number of processes, as long
            as each computes alike (same device, same number of threads).
    """

    def __init__(
        self,
        evaluation: SplitEvaluation,
        model: PreTrainedModel | PeftModel,
        *,
        answers: AnswerFormat,
        tokenizer: PreTrainedTokenizerBase,
        image_spec: ImageSpec,
        samples: MeasuredSamples,
        given: Mapping[int, GivenAnswer] | None = None,
        source: Path = Path(),
    ) -> None:
        """Plan the queues.

        Args:
            evaluation: which images, and how.
            model: generates; put in evaluation mode and back.
            answers: how the model answers, for the categories and the score of this evaluation.
            tokenizer: the model's.
            image_spec: how patches become pixel values.
            samples: the evaluation's samples, encoded, with empty targets; read as they are needed.
            given: answers by image, to be read instead of generated.
            source: the file they come from.

        Raises:
            DataError: if the given answers are not in the model's tokens.
        """
        self._evaluation = evaluation
        self._model = model
        self._answers = answers
        self.samples = samples
        self._generation = GenerationSpec(
            max_new_tokens=evaluation.spec.max_new_tokens,
            pad_id=_pad_id(tokenizer),
            image_token_id=_token_id(tokenizer, IMAGE_TOKEN),
            image_spec=image_spec,
            end_id=answers.end_id,
            number_ids=answers.number_ids,
            open_id=answers.open_id,
        )
        self._constrained: dict[int, ImageRecord] = {}
        self._grammar: ObjectGrammar | None = None
        self._given: Mapping[int, Sequence[int]] | None = None
        lengths, batch_size = list(samples.lengths), evaluation.spec.batch_size
        if given is None:
            num_objects = [len(sample.objects.descs) for sample in evaluation.samples]
            self.queues = image_queues(lengths, expected=num_objects, batch_size=batch_size)
            return
        vocab_size = model.config.get_text_config().vocab_size
        self._given = target_ids(given, tokenizer, self._generation, vocab_size=vocab_size, source=source)
        lengths = [
            length + len(self._given[sample.image_id])
            for length, sample in zip(lengths, evaluation.samples, strict=True)
        ]
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        self.queues = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]  # each is one batch

    @property
    def hardware(self) -> str:
        """The device that generates, by its name."""
        device = self._model.device
        if device.type == "cuda":
            return torch.cuda.get_device_name(device)
        threads = torch.get_num_threads()
        return f"{_processor()}, {threads} {'thread' if threads == 1 else 'threads'}"

    def decode(
        self,
        decoding: Decoding,
        queues: Sequence[Sequence[int]],
        *,
        on_images: Callable[[int], None] | None = None,
    ) -> list[ImageRecord]:
        """Generate and parse some of the queues.

        Where an evaluation decodes freely after it has decoded under the grammar, an answer that the grammar did not
        change is not generated again.

        Args:
            decoding: whether the grammar constrains.
            queues: which.
            on_images: called with the number of images just finished.
        """
        takes_over = self._given is None and self._evaluation.spec.decoding == ("constrained", "free")
        if takes_over and decoding == "free":
            return [record for queue in queues for record in self._decode_freely(queue, on_images)]
        found = self.sequences(decoding, queues, on_images=on_images)
        records = [self._answers.record(seq) for seq in found]
        if takes_over:
            self._constrained |= zip((index for queue in queues for index in queue), records, strict=True)
        return records

    def _decode_freely(self, queue: Sequence[int], on_images: Callable[[int], None] | None) -> list[ImageRecord]:
        """Take over what the grammar did not change, and generate the rest."""
        if not all(index in self._constrained for index in queue):  # by a process that is no more
            self.decode("constrained", [queue])
        found = {index: record for index in queue if (record := self._constrained.pop(index)).unforced}
        if on_images is not None and found:
            on_images(len(found))
        rest = [index for index in queue if index not in found]
        written = self.sequences("free", [rest] if rest else [], on_images=on_images)
        found |= zip(rest, map(self._answers.record, written), strict=True)
        return [found[index] for index in queue]

    def sequences(
        self,
        decoding: Decoding,
        queues: Sequence[Sequence[int]],
        *,
        on_images: Callable[[int], None] | None = None,
    ) -> list[GeneratedSequence]:
        """Generate some of the queues, or read the given answers, as :meth:`decode` does; parse nothing."""
        curves_of, wanted = self._evaluation.images_with_curves, self._evaluation.spec
        model, samples, spec, given = self._model, self.samples, self._generation, self._given
        with evaluation_mode(model):
            if given is not None:
                return read_sequences(
                    model,
                    samples,
                    given,
                    spec=spec,
                    batches=queues,
                    curves_of=curves_of,
                    on_batch=on_images,
                )
            return generate_sequences(
                model,
                samples,
                spec=spec,
                grammar=self._object_grammar() if decoding == "constrained" else None,
                queues=queues,
                batch_size=wanted.batch_size,
                curves_of=curves_of,
                on_images=on_images,
            )

    def _object_grammar(self) -> ObjectGrammar:
        if self._grammar is None:
            self._grammar = self._answers.grammar(self._model.config.get_text_config().vocab_size)
        if self._grammar is None:
            raise ConfigError("this kind of answer has no grammar to constrain it; use free decoding")
        return self._grammar


def _processor() -> str:
    """Return the name of the CPU, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if not isinstance(tokenizer.pad_token_id, int):
        raise TokenizerError("the tokenizer has no padding token; expected pad_token in its configuration")
    return tokenizer.pad_token_id


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    found = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(found, int):
        raise TokenizerError(f"the tokenizer has no token {token!r}")
    return found
