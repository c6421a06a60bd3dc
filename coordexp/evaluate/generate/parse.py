"""A generated sequence -> the record of its image: objects with category, boxes and one of the named scores.

Coord tokens give two readings of a box, that of the emitted bins and that of their distributions; digits give the
written number alone, which then stands for both.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.bins import decode_array
from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, plain_text_ids
from coordexp.coord_tokens.grammar.parse import ObjectSpan, parse_generated
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.distributions import BinCurve, ObjectCurves
from coordexp.evaluate.generate.generation import GeneratedSequence
from coordexp.evaluate.objects import DetectedObject, Four, ImageRecord

_COORD_WEIGHT = 0.7


class SequenceParser:
    """The answers that coordexp trains, for the images of one evaluation: objects between markers, over one vocabulary.

    It is an :class:`~coordexp.evaluate.generate.decode.AnswerFormat`.
    """

    def __init__(
        self,
        vocab: CoordVocab,
        tokenizer: PreTrainedTokenizerBase,
        *,
        categories: CategoryIndex,
        score: ScoreName,
    ) -> None:
        """Prepare for many sequences.

        Args:
            vocab: ids of markers and numbers.
            tokenizer: the tokenizer of ``vocab``.
            categories: finds the category of a description.
            score: the named score of a detection.
        """
        self._vocab = vocab
        self._tokenizer = tokenizer
        self._categories = categories
        self._score: ScoreName = score
        self._text_ids = frozenset(plain_text_ids(tokenizer))

    @property
    def end_id(self) -> int:
        """Ends an answer."""
        return self._vocab.end_id

    @property
    def number_ids(self) -> range:
        """The tokens that carry numbers."""
        return self._vocab.numbers.ids

    @property
    def open_id(self) -> int:
        """Opens an object."""
        return self._vocab.obj_start_id

    def grammar(self, vocab_size: int) -> ObjectGrammar:
        """Return what constrained decoding allows, for a model with so many logits."""
        return ObjectGrammar.for_model(self._vocab, self._tokenizer, vocab_size=vocab_size)

    def record(self, seq: GeneratedSequence) -> ImageRecord:
        """Return everything that is kept of one image."""
        parsed = parse_generated(seq.ids, self._vocab, text_ids=self._text_ids)
        objects = tuple(self._object(seq, span) for span in parsed.objects)
        return ImageRecord(
            image_id=seq.image_id,
            objects=objects,
            failures=parsed.failures,
            truncated=seq.truncated,
            coord_mass=self._masses(seq, parsed.objects),
            num_tokens=len(seq.ids),
            token_ids=seq.ids,
            curves=None if seq.coord_probs is None else _curves(objects, parsed.objects, seq.coord_probs),
            unforced=seq.unforced,
        )

    def _masses(self, seq: GeneratedSequence, spans: Sequence[ObjectSpan]) -> tuple[float, ...]:
        """Return the mass at every token that carries a number; digits do so within a box alone."""
        numbers, masses = self._vocab.numbers, seq.statistics.coord_mass
        if numbers.are_text:
            return tuple(mass for span in spans for number in span.numbers for mass in masses[number])
        return tuple(mass for token, mass in zip(seq.ids, masses, strict=True) if token in numbers.ids)

    def _object(self, seq: GeneratedSequence, span: ObjectSpan) -> DetectedObject:
        bins, desc = self._bins(seq, span), self._text(seq.ids[span.desc])
        expected = decode_array(bins).tolist() if self._vocab.numbers.are_text else seq.statistics.expected[span.box]
        return DetectedObject(
            desc=desc,
            category_id=self._categories.find(desc),
            bins=bins,
            expected=_four(expected),
            width=_four((0.0,) * 4 if self._vocab.numbers.are_text else seq.statistics.width[span.box]),
            score=_named_score(self._score, seq, span),
        )

    def _bins(self, seq: GeneratedSequence, span: ObjectSpan) -> tuple[int, int, int, int]:
        x1, y1, x2, y2 = (self._vocab.numbers.bin_of(seq.ids[number]) for number in span.numbers)
        return x1, y1, x2, y2

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text of description tokens: the exact inverse of writing it, no clean-up."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _four(values: Sequence[float]) -> Four:
    x1, y1, x2, y2 = values
    return x1, y1, x2, y2


def _curves(
    objects: Sequence[DetectedObject], spans: Sequence[ObjectSpan], probs_TK: NDArray[np.float32]
) -> tuple[ObjectCurves, ...]:
    """Return the bin distributions of the objects of a sequence; ``probs_TK`` has one at each position."""
    return tuple(
        ObjectCurves(
            desc=item.desc,
            bins=item.bins,
            expected=item.expected,
            width=item.width,
            curves=tuple(BinCurve.of(probs_K) for probs_K in probs_TK[span.box]),
        )
        for item, span in zip(objects, spans, strict=True)
    )


def _named_score(name: ScoreName, seq: GeneratedSequence, span: ObjectSpan) -> float:
    log_probs = seq.statistics.log_probs
    return SCORES[name]([math.fsum(log_probs[number]) for number in span.numbers], log_probs[span.desc])


def _geometric_mean(log_probs: Sequence[float]) -> float:
    return math.exp(math.fsum(log_probs) / len(log_probs))


def _coord_desc(coord: Sequence[float], desc: Sequence[float]) -> float:
    return _COORD_WEIGHT * _geometric_mean(coord) + (1 - _COORD_WEIGHT) * _geometric_mean(desc)


SCORES: dict[ScoreName, Callable[[Sequence[float], Sequence[float]], float]] = {
    "coord": lambda coord, desc: _geometric_mean(coord),
    "desc": lambda coord, desc: _geometric_mean(desc),
    "coord_desc": _coord_desc,
    "constant": lambda coord, desc: 1.0,  # AP then depends on the order of the detections
}
"""Name -> score of an object in [0, 1], from the log probabilities of its four coordinates and of its description's
tokens, both over the full vocabulary: geometric mean probabilities, or 0.7 and 0.3 of both. A coordinate written in
digits has the probability of all three."""
