"""One process's part of an evaluation: batches of images in, records out."""

from collections.abc import Callable, Sequence
from typing import Protocol

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.data.dataset import IMAGE_TOKEN
from coordexp.data.patches import ImageSpec
from coordexp.errors import ConfigError, TokenizerError
from coordexp.evaluate.evaluation import SplitEvaluation
from coordexp.evaluate.generate.generation import (
    GeneratedSequence,
    GenerationSpec,
    MeasuredSamples,
    ObjectMarkers,
    evaluation_mode,
    generate_sequences,
    static_batches,
)
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
    def markers(self) -> ObjectMarkers | None:
        """The tokens that open and close an object; None where there are no such tokens."""
        ...

    def grammar(self, vocab_size: int) -> ObjectGrammar | None:
        """Return what constrained decoding allows, for a model with so many logits; None if there is no such thing."""
        ...

    def record(self, seq: GeneratedSequence) -> ImageRecord:
        """Return everything that is kept of one image; nothing that was generated is an error."""
        ...


class SplitDecoder:
    """Generates and parses the images of an evaluation, batch by batch.

    Attributes:
        samples: the images with their prompts, encoded when they are read.
        batches: the images of each batch, as indices of the samples. Processes that share a split
            share out these batches: the files are then the same for any number of processes, as long
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
    ) -> None:
        """Plan the batches.

        Args:
            evaluation: which images, and how.
            model: generates; put in evaluation mode and back.
            answers: how the model answers, for the categories and the score of this evaluation.
            tokenizer: the model's.
            image_spec: how patches become pixel values.
            samples: the evaluation's samples, encoded, with empty targets; read batch by batch.
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
            markers=answers.markers,
        )
        self._grammar: ObjectGrammar | None = None
        self.batches = static_batches(samples.lengths, batch_size=evaluation.spec.batch_size)

    def decode(
        self, decoding: Decoding, batches: Sequence[Sequence[int]], *, on_batch: Callable[[int], None] | None = None
    ) -> list[ImageRecord]:
        """Generate and parse some of the batches; ``on_batch`` is called with the images of each that is done."""
        grammar = self._object_grammar() if decoding == "constrained" else None
        with evaluation_mode(self._model):
            sequences = generate_sequences(
                self._model,
                self.samples,
                spec=self._generation,
                grammar=grammar,
                batches=batches,
                curves_of=self._evaluation.images_with_curves,
                on_batch=on_batch,
            )
        return [self._answers.record(seq) for seq in sequences]

    def _object_grammar(self) -> ObjectGrammar:
        if self._grammar is None:
            self._grammar = self._answers.grammar(self._model.config.get_text_config().vocab_size)
        if self._grammar is None:
            raise ConfigError("this kind of answer has no grammar to constrain it; use free decoding")
        return self._grammar


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if not isinstance(tokenizer.pad_token_id, int):
        raise TokenizerError("the tokenizer has no padding token; expected pad_token in its configuration")
    return tokenizer.pad_token_id


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    found = tokenizer.convert_tokens_to_ids(token)
    if not isinstance(found, int):
        raise TokenizerError(f"the tokenizer has no token {token!r}")
    return found
