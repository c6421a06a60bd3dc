"""The form of answers that coordexp trains: which tokens have a meaning, how it is constrained, where objects stand."""

from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, plain_text_ids
from coordexp.coord_tokens.grammar.parse import parse_generated
from coordexp.coord_tokens.vocab import CoordVocab


class WrittenObject(NamedTuple):
    """One well-formed object of an answer, and which of the answer's tokens (or characters) write it.

    Attributes:
        desc: its description as written.
        bins: x1, y1, x2, y2 in thousandths of the image side; corners may be swapped.
        words: where the description stands, at least one token.
        numbers: where each coordinate stands.
    """

    desc: str
    bins: Sequence[int]
    words: slice
    numbers: Sequence[slice]


class SequenceFormat:
    """Objects between markers, with coordinates in coord tokens or in digits.

    ``number_ids`` are the tokens that carry numbers, in the order of their values: 1000 bins, or ten digits.
    ``open_id`` is the token that opens an object.
    """

    def __init__(self, vocab: CoordVocab, tokenizer: PreTrainedTokenizerBase) -> None:
        self._vocab, self._tokenizer = vocab, tokenizer
        self._text_ids = frozenset(plain_text_ids(tokenizer))
        self.end_id, self.number_ids, self.open_id = vocab.end_id, vocab.numbers.ids, vocab.obj_start_id

    def grammar(self, vocab_size: int) -> ObjectGrammar:
        """Return what constrained decoding allows, for a model with so many logits."""
        return ObjectGrammar.for_model(self._vocab, self._tokenizer, vocab_size=vocab_size)

    def read(self, ids: Sequence[int], size_px: tuple[int, int]) -> tuple[list[WrittenObject], Sequence[str]]:
        """Return the objects of an answer as written, and the kind of each malformed piece; never an error.

        The size of the picture decides nothing here, and in the other forms of answers only what is in pixels.
        """
        parsed = parse_generated(ids, self._vocab, text_ids=self._text_ids)
        objects: list[WrittenObject] = []
        for span in parsed.objects:
            # The exact inverse of writing it: no clean-up.
            desc = self._tokenizer.decode(
                list(ids[span.desc]), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            bins = [self._vocab.numbers.bin_of(ids[number]) for number in span.numbers]
            objects.append(WrittenObject(str(desc), bins, span.desc, span.numbers))
        return objects, parsed.failures
