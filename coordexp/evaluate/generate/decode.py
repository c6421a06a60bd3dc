"""One process's part of an evaluation: batches of images in, parsed records out."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, plain_text_ids
from coordexp.coord_tokens.grammar.parse import DecodeText, parse_objects
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.data.batches.prompt import IMAGE_TOKEN
from coordexp.data.images.patches import ImageSpec
from coordexp.detection.score import ScoreName
from coordexp.errors import TokenizerError
from coordexp.evaluate.distributions import curves_of
from coordexp.evaluate.generate.generation import (
    GeneratedSequence,
    GenerationSpec,
    Samples,
    evaluation_mode,
    generate_sequences,
    static_batches,
)
from coordexp.evaluate.records import ImageRecord
from coordexp.metrics import Decoding


@dataclass(frozen=True)
class EvaluationSpec:
    """How to evaluate, equal for every group.

    Attributes:
        batch_size: images generated together.
        max_new_tokens: length limit of an answer, the end token included.
        decoding: ``constrained`` (under the object grammar), ``free``, or both.
        score: the named score of a detection.
        aliases: further descriptions -> category names.
    """

    batch_size: int = 16
    max_new_tokens: int = 512
    decoding: tuple[Decoding, ...] = ("constrained", "free")
    score: ScoreName = "coord_desc"
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])


class SplitDecoder:
    """Generates and parses the images of a split, batch by batch.

    Attributes:
        batches: the images of each batch, as indices of the samples. Processes that share a split
            share out these batches: the files are then the same for any number of processes, as long
            as each computes alike (same device, same number of threads).
    """

    def __init__(
        self,
        model: PreTrainedModel | PeftModel,
        *,
        tokenizer: PreTrainedTokenizerBase,
        vocab: CoordVocab,
        samples: Samples,
        image_spec: ImageSpec,
        spec: EvaluationSpec,
        lengths: Sequence[int] | None = None,
        images_with_curves: Collection[int] = (),
    ) -> None:
        """Plan the batches.

        Args:
            model: generates; put in evaluation mode and back.
            tokenizer: the tokenizer of ``vocab``.
            vocab: ids of markers and coord tokens.
            samples: encoded samples with empty targets; a lazy data set is read batch by batch.
            image_spec: how patches become pixel values.
            spec: how to evaluate.
            lengths: expected length of each sample, to batch alike ones; a plain list of samples needs none.
            images_with_curves: ids of the images whose bin distributions are kept.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._samples = samples
        self._generation = GenerationSpec(
            max_new_tokens=spec.max_new_tokens,
            pad_id=_pad_id(tokenizer),
            image_token_id=_image_token_id(tokenizer),
            image_spec=image_spec,
        )
        self._text_ids = frozenset(plain_text_ids(tokenizer))
        self._decode_text = text_decoder(tokenizer)
        self._images_with_curves = images_with_curves
        self._grammar: ObjectGrammar | None = None
        known = _lengths(samples) if lengths is None else lengths
        self.batches = static_batches(known, num_samples=len(samples), batch_size=spec.batch_size)

    def decode(
        self, decoding: Decoding, batches: Sequence[Sequence[int]], *, on_batch: Callable[[int], None] | None = None
    ) -> list[ImageRecord]:
        """Generate and parse some of the batches; ``on_batch`` is called with the images of each that is done."""
        grammar = self._object_grammar() if decoding == "constrained" else None
        with evaluation_mode(self._model):
            sequences = generate_sequences(
                self._model,
                self._samples,
                vocab=self._vocab,
                spec=self._generation,
                grammar=grammar,
                batches=batches,
                curves_of=self._images_with_curves,
                on_batch=on_batch,
            )
        return [self._record(seq) for seq in sequences]

    def _record(self, seq: GeneratedSequence) -> ImageRecord:
        parsed = parse_objects(seq, self._vocab, self._decode_text, text_ids=self._text_ids)
        coord_ids = self._vocab.coord_ids
        return ImageRecord(
            image_id=seq.image_id,
            parsed=parsed,
            truncated=seq.truncated,
            coord_mass=tuple(mass for token, mass in zip(seq.ids, seq.coord_mass, strict=True) if token in coord_ids),
            curves=None if seq.coord_probs is None else curves_of(parsed.objects, seq.coord_probs),
        )

    def _object_grammar(self) -> ObjectGrammar:
        if self._grammar is None:
            vocab_size = self._model.config.get_text_config().vocab_size
            self._grammar = ObjectGrammar.for_model(self._vocab, self._tokenizer, vocab_size=vocab_size)
        return self._grammar


def text_decoder(tokenizer: PreTrainedTokenizerBase) -> DecodeText:
    """Return the ids -> description function: the exact inverse of writing it, no clean-up."""

    def decode_text(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode_text


def _lengths(samples: Samples) -> list[int] | None:
    """Lengths of samples in memory; reading a lazy data set for them would encode every image twice."""
    return [sample.length for sample in samples] if isinstance(samples, list | tuple) else None


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if not isinstance(tokenizer.pad_token_id, int):
        raise TokenizerError("the tokenizer has no padding token; expected pad_token in its configuration")
    return tokenizer.pad_token_id


def _image_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    found = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
    if not isinstance(found, int):
        raise TokenizerError(f"the tokenizer has no token {IMAGE_TOKEN!r}")
    return found
