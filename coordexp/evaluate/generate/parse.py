"""A generated sequence -> the record of its image: objects with category, boxes and one of the named scores."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from coordexp.config.schema.evaluation import ScoreName
from coordexp.coord_tokens.grammar.constrain import plain_text_ids
from coordexp.coord_tokens.grammar.parse import ObjectSpan, parse_generated
from coordexp.coord_tokens.vocab import CoordVocab
from coordexp.detection.categories import CategoryIndex
from coordexp.evaluate.distributions import NUM_OBJECTS, BinCurve, ObjectCurves
from coordexp.evaluate.generate.generation import GeneratedSequence
from coordexp.evaluate.objects import DetectedObject, Four, ImageRecord

_COORD_WEIGHT = 0.7


class SequenceParser:
    """Parses what was generated over one vocabulary for the images of one evaluation."""

    def __init__(
        self, vocab: CoordVocab, tokenizer: PreTrainedTokenizerBase, *, categories: CategoryIndex, score: ScoreName
    ) -> None:
        """Prepare for many sequences.

        Args:
            vocab: ids of markers and coord tokens.
            tokenizer: the tokenizer of ``vocab``.
            categories: finds the category of a description.
            score: the named score of a detection.
        """
        self._vocab = vocab
        self._tokenizer = tokenizer
        self._categories = categories
        self._score: ScoreName = score
        self._text_ids = frozenset(plain_text_ids(tokenizer))

    def record(self, seq: GeneratedSequence) -> ImageRecord:
        """Return everything that is kept of one image."""
        parsed = parse_generated(seq.ids, self._vocab, text_ids=self._text_ids)
        objects = tuple(self._object(seq, span) for span in parsed.objects)
        masses = zip(seq.ids, seq.statistics.coord_mass, strict=True)
        return ImageRecord(
            image_id=seq.image_id,
            objects=objects,
            failures=parsed.failures,
            truncated=seq.truncated,
            coord_mass=tuple(mass for token, mass in masses if token in self._vocab.coord_ids),
            curves=None if seq.coord_probs is None else _curves(objects, parsed.objects, seq.coord_probs),
        )

    def _object(self, seq: GeneratedSequence, span: ObjectSpan) -> DetectedObject:
        x1, y1, x2, y2 = (token - self._vocab.coord_ids.start for token in seq.ids[span.box])
        desc = self._text(seq.ids[span.desc])
        return DetectedObject(
            desc=desc,
            category_id=self._categories.find(desc),
            bins=(x1, y1, x2, y2),
            expected=_four(seq.statistics.expected[span.box]),
            width=_four(seq.statistics.width[span.box]),
            score=SCORES[self._score](seq.statistics.log_probs[span.box], seq.statistics.log_probs[span.desc]),
        )

    def _text(self, ids: Sequence[int]) -> str:
        """Return the text of description tokens: the exact inverse of writing it, no clean-up."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _four(values: tuple[float, ...]) -> Four:
    x1, y1, x2, y2 = values
    return x1, y1, x2, y2


def _curves(
    objects: Sequence[DetectedObject], spans: Sequence[ObjectSpan], probs_TK: NDArray[np.float32]
) -> tuple[ObjectCurves, ...]:
    """Return the bin distributions of the first objects of a sequence; ``probs_TK`` has one at each position."""
    return tuple(
        ObjectCurves(
            desc=item.desc,
            bins=item.bins,
            expected=item.expected,
            width=item.width,
            curves=tuple(BinCurve.of(probs_K) for probs_K in probs_TK[span.box]),
        )
        for item, span in zip(objects[:NUM_OBJECTS], spans, strict=False)
    )


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
"""Name -> score of an object in [0, 1], from the log probabilities of its four coord tokens and of its description's
tokens, both over the full vocabulary: geometric mean probabilities, or 0.7 and 0.3 of both."""
