"""How a model answers: which tokens end an answer and carry numbers, how it is constrained, where its objects stand."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from transformers import PreTrainedTokenizerBase

from coordexp.coord_tokens.grammar.constrain import ObjectGrammar, plain_text_ids
from coordexp.coord_tokens.grammar.parse import parse_generated
from coordexp.coord_tokens.vocab import AnswerVocab


class WrittenObject(NamedTuple):
    """One well-formed object of an answer.

    Attributes:
        desc: its description as written.
        bins: x1, y1, x2, y2 in thousandths of the image side; corners may be swapped.
        desc_tokens: the tokens that write the description, at least one.
        number_tokens: the tokens that write each coordinate.
    """

    desc: str
    bins: Sequence[int]
    desc_tokens: slice
    number_tokens: Sequence[slice]


class AnswerFormat(Protocol):
    """One form of answers."""

    @property
    def end_id(self) -> int:
        """The token that ends an answer."""
        ...

    @property
    def number_ids(self) -> range:
        """The tokens that carry numbers, in the order of their values: 1000 bins, ten digits, or none."""
        ...

    @property
    def open_id(self) -> int | None:
        """The token that opens an object; None where there is no such token."""
        ...

    def grammar(self, vocab_size: int) -> ObjectGrammar | None:
        """Return what constrained decoding allows, for a model with so many logits; None if there is no such thing."""
        ...

    def read(self, ids: Sequence[int]) -> tuple[Sequence[WrittenObject], Sequence[str]]:
        """Return the objects of an answer as written, and the kind of each malformed piece; never an error."""
        ...


class SequenceFormat:
    """The answers that coordexp trains: objects between markers, in coord tokens or in digits."""

    def __init__(self, vocab: AnswerVocab, tokenizer: PreTrainedTokenizerBase) -> None:
        """Prepare for many answers."""
        self._vocab, self._tokenizer = vocab, tokenizer
        self._text_ids = frozenset(plain_text_ids(tokenizer))
        self.end_id, self.number_ids, self.open_id = vocab.end_id, vocab.numbers.ids, vocab.obj_start_id

    def grammar(self, vocab_size: int) -> ObjectGrammar:
        """Return what constrained decoding allows, for a model with so many logits."""
        return ObjectGrammar.for_model(self._vocab, self._tokenizer, vocab_size=vocab_size)

    def read(self, ids: Sequence[int]) -> tuple[list[WrittenObject], Sequence[str]]:
        """Return the objects of an answer as written, and the kind of each malformed piece."""
        parsed = parse_generated(ids, self._vocab, text_ids=self._text_ids)
        objects = [
            WrittenObject(
                # The exact inverse of writing it: no clean-up.
                str(
                    self._tokenizer.decode(
                        ids[span.desc], skip_special_tokens=False, clean_up_tokenization_spaces=False
                    )
                ),
                [self._vocab.numbers.bin_of(ids[number]) for number in span.numbers],
                span.desc,
                span.numbers,
            )
            for span in parsed.objects
        ]
        return objects, parsed.failures
