"""One process's part of an evaluation: batches of images in, records out."""

from collections.abc import Callable, Sequence
from typing import Protocol

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar
from coordexp.coord_tokens.vocab import END_TOKEN, CoordVocab
from coordexp.data.dataset import IMAGE_TOKEN
from coordexp.data.patches import ImageSpec
from coordexp.errors import TokenizerError
from coordexp.evaluate.evaluation import SplitEvaluation
from coordexp.evaluate.generate.generation import (
    GeneratedSequence,
    GenerationSpec,
    MeasuredSamples,
    evaluation_mode,
    generate_sequences,
    static_batches,
)
from coordexp.evaluate.generate.parse import SequenceParser
from coordexp.evaluate.objects import ImageRecord
from coordexp.metrics import Decoding


class AnswerParser(Protocol):
    """Reads what was generated for an image."""

    def record(self, seq: GeneratedSequence) -> ImageRecord:
        """Return everything that is kept of one image."""
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
        tokenizer: PreTrainedTokenizerBase,
        vocab: CoordVocab | None,
        image_spec: ImageSpec,
        samples: MeasuredSamples,
        parser: AnswerParser | None = None,
    ) -> None:
        """Plan the batches.

        Args:
            evaluation: which images, and how.
            model: generates; put in evaluation mode and back.
            tokenizer: the tokenizer of ``vocab``.
            vocab: ids of markers and coord tokens; None where answers are no target sequences.
            image_spec: how patches become pixel values.
            samples: the evaluation's samples, encoded, with empty targets; read batch by batch.
            parser: reads answers that are no target sequences; None for those over ``vocab``.
        """
        self._evaluation = evaluation
        self._model = model
        self._tokenizer = tokenizer
        self._vocab = vocab
        self.samples = samples
        self._generation = GenerationSpec(
            max_new_tokens=evaluation.spec.max_new_tokens,
            end_id=_token_id(tokenizer, END_TOKEN),
            coord_ids=range(0) if vocab is None else vocab.coord_ids,
            pad_id=_pad_id(tokenizer),
            image_token_id=_token_id(tokenizer, IMAGE_TOKEN),
            image_spec=image_spec,
        )
        if parser is None:
            assert vocab is not None
            categories, score = evaluation.categories, evaluation.spec.score
            parser = SequenceParser(vocab, tokenizer, categories=categories, score=score)
        self._parser = parser
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
        return [self._parser.record(seq) for seq in sequences]

    def _object_grammar(self) -> ObjectGrammar:
        if self._grammar is None:
            assert self._vocab is not None, "an evaluation without it decodes freely"
            vocab_size = self._model.config.get_text_config().vocab_size
            self._grammar = ObjectGrammar.for_model(self._vocab, self._tokenizer, vocab_size=vocab_size)
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
