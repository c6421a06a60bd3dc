"""The form of the answers that coordexp trains: its special tokens, its grammar, and how its objects are read."""

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
        words: the tokens of the description, at least one.
        numbers: the tokens of each coordinate.
    """

    desc: str
    bins: Sequence[int]
    words: slice
    numbers: Sequence[slice]


class SequenceFormat:
    """Objects between markers, with coordinates in coord tokens or in digits.

    Attributes:
        end_id: the token that ends an answer.
        number_ids: the tokens that carry numbers, in the order of their values: 1000 bins, or ten digits.
        open_id: the token that opens an object.
    """

    def __init__(self, vocab: CoordVocab, tokenizer: PreTrainedTokenizerBase) -> None:
        """Prepare for many answers in the tokens of a vocabulary."""
        self.end_id = vocab.end_id
        self.number_ids = vocab.numbers.ids
        self.open_id = vocab.obj_start_id
        self._vocab = vocab
        self._tokenizer = tokenizer
        self._text_ids = frozenset(plain_text_ids(tokenizer))

    def grammar(self, vocab_size: int) -> ObjectGrammar:
        """Return what constrained decoding allows, for a model with this many logits."""
        return ObjectGrammar.for_model(self._vocab, self._tokenizer, vocab_size=vocab_size)

    def read(self, ids: Sequence[int], size_px: tuple[int, int]) -> tuple[list[WrittenObject], Sequence[str]]:
        """Return the objects of an answer as written, and the kind of each malformed piece; never an error.

        ``size_px`` is ignored: only a form that writes pixels needs the size of the image.
        """
        parsed = parse_generated(ids, self._vocab, text_ids=self._text_ids)
        objects: list[WrittenObject] = []
        for span in parsed.objects:
            # Without clean-up, decoding is the exact inverse of encoding the description.
            desc = self._tokenizer.decode(
                list(ids[span.desc]), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            bins = [self._vocab.numbers.bin_of(ids[number]) for number in span.numbers]
            objects.append(WrittenObject(str(desc), bins, span.desc, span.numbers))
        return objects, parsed.failures
